"""The GPU's engine without a GPU: everything but CUDA itself, on CPU tensors and a plain kernel."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from soak_kernels.reference import reference_slice

from soak.core.ports import Checked, Happening, Progress, Ready
from soak.core.protocol import Protocol
from soak.load import memory, wire
from soak.load.engine import BitFlip, LoadError
from soak.load.gradient import Outputs
from soak.load.integrity import flip_bit_in_place
from soak.load.pool import WORKER
from soak.load.recipe import Inputs
from soak.load.streams import HostStreams

pytest.importorskip("triton", reason="Triton is not installed")
from soak.load.engine_gpu import EngineGpu, Rig
from soak.load.launcher import AHEAD_MAX


class LazyEvent:
    """Not passed before somebody waits for it: what is read without waiting is read too early."""

    def __init__(self) -> None:
        self.passed = False
        self.at_s = time.perf_counter()

    def wait(self) -> None:
        self.passed = True

    def elapsed_ms(self, later: LazyEvent) -> float:
        return (later.at_s - self.at_s) * 1000.0


class LazyStreams(HostStreams):
    """`used`: the event behind the last use of each slot, by the address of its dQ."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[int, LazyEvent] = {}
        self.launching = threading.local()  # uses: the slot that the step being launched writes to

    def mark(self) -> Any:
        event = LazyEvent()
        uses = getattr(self.launching, "uses", None)
        if uses is not None:
            self.used[uses] = event
            self.launching.uses = None
        return event


class PlainKernel:
    """The reference, rounded; `faults`: (seq_len, number of the call with that length) -> damage."""

    name, reason = "test.plain", "no GPU here"
    versions: dict[str, str] = {}  # noqa: RUF012 - never changed

    def __init__(self, streams: LazyStreams) -> None:
        self.streams = streams
        self.faults: dict[tuple[int, int], Callable[[Outputs], None]] = {}
        self.calls: dict[int, int] = {}
        self.slots: dict[
            int, LazyEvent | None
        ] = {}  # address of a slot's dq -> the event behind its last use
        self.raises: Exception | None = None
        self.counting = False

    def variants(self, seq_lens: Sequence[int]) -> list[tuple[int, bool]]:
        return [(seq_lens[0], False)]

    def prepare(self, inputs: Inputs, causal: bool) -> str:
        return f"{tuple(inputs.q.shape)} {causal}"

    def run(self, prepared: str, inputs: Inputs, outputs: Outputs, causal: bool) -> None:
        if self.raises:
            raise self.raises
        assert prepared == f"{tuple(inputs.q.shape)} {causal}"
        address = outputs.dq.data_ptr()
        if self.counting and address in self.slots:
            before = self.streams.used.get(address)
            assert before is None or before.passed, "a slot is used again before its step was seen"
            self.streams.launching.uses = address
        for batch in range(inputs.q.shape[0]):
            for head in range(inputs.q.shape[1]):
                found = reference_slice(*(tensor[batch, head] for tensor in inputs), causal=causal)
                for name in Outputs._fields:
                    getattr(outputs, name)[batch, head] = getattr(found, name)
        seq_len = inputs.q.shape[2]
        if self.counting:
            number = self.calls[seq_len] = self.calls.get(seq_len, -1) + 1
            self.faults.get((seq_len, number), lambda _: None)(outputs)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small products are faster so, and tests share the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(protocol: Protocol) -> Protocol:
    return replace(
        protocol,
        dtype="float16",
        tokens=96,
        seq_len_min=17,
        seq_len_max=40,
        compare_every=2,
        heads=2,
        head_dim=32,
    )


class Bench:
    """An engine at work, and what it said."""

    def __init__(self, protocol: Protocol, inject: BitFlip | None = None) -> None:
        self.streams = LazyStreams()
        self.kernel = PlainKernel(self.streams)
        self.engine = EngineGpu(
            "0000:33:00.0", protocol, Rig(self.streams, self.kernel, burst_ms=0.0), inject
        )
        self.kernel.slots = {slot._tensors[1].data_ptr() for slot in self.engine._buffers.slots}
        self.events: list[Any] = []

    def begin(self, rotation: int = 0) -> Ready:
        self.kernel.counting = False
        begin_launcher = self.engine._launcher.run

        def counted(*arguments: Any) -> None:
            self.kernel.counting = True
            begin_launcher(*arguments)

        self.engine._launcher.run = counted  # type: ignore[method-assign]  # to count
        return self.engine.begin(rotation)

    def until(self, wanted: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            came = [*self.engine.take(), self.engine.progress()[0]]
            self.events += came
            for event in came:
                if wanted(event):
                    return event
            time.sleep(0.01)
        raise AssertionError(f"nothing wanted; came {self.events[-5:]}")


@pytest.fixture
def bench(small: Protocol) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(inject: BitFlip | None = None, **changed: Any) -> Bench:
        made.append(Bench(replace(small, **changed), inject))
        return made[-1]

    yield make
    for each in made:
        each.engine.stop()


def at(rotation: int, n_steps: int) -> Callable[[Any], bool]:
    return lambda e: isinstance(e, Progress) and e.rotation == rotation and e.n_steps >= n_steps


def test_a_life_of_rotations_and_checks(bench: Callable[..., Bench], small: Protocol) -> None:
    one = bench()
    ready = one.begin()
    assert ready.kernel == "test.plain"
    assert len(ready.facts["step_ms"]) == 10  # five lengths, two masks
    assert "9 of 9" in ready.facts["self_test"]
    one.until(at(0, 5))
    assert len(one.kernel.slots) == 2
    for rotation in (1, 2, 3):
        one.engine.check(rotation)
        check = one.until(lambda e: isinstance(e, Checked)).check
        assert (check.index, check.rotation) == (rotation, rotation - 1)
        assert check.golden_proved is True
        assert all(error.relative_l2 < 1e-3 and error.n_nonfinite == 0 for error in check.errors)
        assert all(error.n_elements == 4 * small.shape(rotation - 1).seq_len * 32 for error in check.errors)
        one.engine.rotate(rotation)
        one.until(at(rotation, 9))
    finals = {e.rotation: e for e in one.events if isinstance(e, Progress)}
    for rotation in range(3):
        final = finals[rotation]
        assert final.golden
        assert final.n_compared == final.n_due >= (final.n_steps - 1) // 2 > 0
        assert final.flops > 0
        assert final.mismatches == 0
    assert len({final.golden for final in finals.values()}) == 4
    assert not [e for e in one.events if isinstance(e, Happening)]
    assert set(one.streams.used) == one.kernel.slots  # both were used, and the kernel looked each time


def test_a_rotation_that_is_skipped_to_is_drawn_then(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.begin(4)
    one.engine.rotate(9)
    one.until(at(9, 3))
    one.engine.rotate(10)
    one.until(at(10, 3))
    other = bench()
    other.begin(10)
    assert other.until(at(10, 1)).golden == one.until(at(10, 1)).golden


def test_an_injected_flip_is_found_at_a_step_that_is_not_due(
    bench: Callable[..., Bench], small: Protocol
) -> None:
    one = bench(BitFlip(0, 3))
    assert one.begin().facts["injected"] == {"rotation": 0, "step": 3}
    found = one.until(lambda e: isinstance(e, Happening))
    size = small.shape(0)
    row, batch = size.seq_len // 2, memory.batch_of(small, size.seq_len) - 1
    expected = {"tensor": "dq", "batch": batch, "head": 1, "step": 3, "n_bits": 1, "rows": ((row, row + 1),),
                "replay": "transient", "golden_intact": True}  # fmt: skip
    assert expected.items() <= found.data.items()
    assert one.until(at(0, 8)).mismatches == 1


def damage(name: str, head: int, row: int, column: int, bit: int) -> Callable[[Outputs], None]:
    return lambda outputs: flip_bit_in_place(getattr(outputs, name)[0, head], row, column, bit)


@pytest.mark.parametrize(("again", "says"), [(None, "transient"), (5, "repeatable"), (6, "unstable")])
def test_a_replay_says_what_kind_it_is(
    bench: Callable[..., Bench], small: Protocol, again: int | None, says: str
) -> None:
    """The step after the compared one may be in the queue already: the replay is the first call after the
    damage that writes where it did not."""
    one = bench()
    seq_len = small.shape(0).seq_len
    one.kernel.faults[seq_len, 2] = damage("dk", 1, 9, 4, 5)
    if again is not None:
        for number in range(3, 3 + 2 * AHEAD_MAX):
            one.kernel.faults[seq_len, number] = damage("dk", 1, 9, 4, again)
    one.begin()
    found = one.until(lambda e: isinstance(e, Happening))
    assert found.data["replay"] == says
    assert (found.data["tensor"], found.data["head"], found.data["rows"]) == ("dk", 1, ((9, 10),))


def test_the_log_sum_exp_is_compared_too(bench: Callable[..., Bench], small: Protocol) -> None:
    one = bench()

    def change(outputs: Outputs) -> None:
        outputs.lse[0, 0, 3] += 1.0

    one.kernel.faults[small.shape(0).seq_len, 4] = change
    one.begin()
    found = one.until(lambda e: isinstance(e, Happening))
    assert (found.data["tensor"], found.data["rows"]) == ("lse", ((3, 4),))


def test_many_mismatches_are_counted_and_few_are_told(bench: Callable[..., Bench], small: Protocol) -> None:
    one = bench()
    for number in range(1, 400):
        one.kernel.faults[small.shape(0).seq_len, number] = damage("dv", 0, number % 17, 0, 1)
    one.begin()
    last = one.until(lambda e: isinstance(e, Progress) and e.mismatches >= 20)
    assert last.mismatches <= last.n_compared
    assert len([e for e in one.events if isinstance(e, Happening)]) <= 16 + 4


def test_a_check_of_a_wrong_step_says_so(bench: Callable[..., Bench], small: Protocol) -> None:
    one = bench()
    for number in range(1, 200):
        one.kernel.faults[small.shape(0).seq_len, number] = lambda outputs: outputs.dq.zero_()
    one.engine.check(0)
    one.begin()
    check = one.until(lambda e: isinstance(e, Checked)).check
    assert check.golden_proved is False
    assert next(e for e in check.errors if e.tensor == "dq").relative_l2 == pytest.approx(1.0)


def test_a_kernel_that_does_not_compile_is_named_before_the_clock_starts(bench: Callable[..., Bench]) -> None:
    """A14."""
    one = bench()
    one.kernel.raises = RuntimeError("unsupported target: 'gfx906'")
    with pytest.raises(
        LoadError, match=r"test.plain does not run at seq_len 17, full.*unsupported target"
    ) as caught:
        one.begin()
    assert caught.value.kind == "compile_error"


def test_a_device_error_before_the_clock_starts_is_no_compile_error(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.kernel.raises = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory access"):
        one.begin()


def test_an_error_while_it_runs_reaches_the_worker(bench: Callable[..., Bench]) -> None:
    one = bench()
    one.begin()
    one.kernel.raises = RuntimeError("HIP error: an error")
    with pytest.raises(RuntimeError, match="HIP error"):
        one.until(lambda _: False)


def test_memory_is_what_the_buffers_take(small: Protocol) -> None:
    one = Bench(small)
    buffers = one.engine._buffers
    taken = sum(t.nbytes for place in buffers._inputs for t in place) + buffers.scratch.nbytes
    for outputs in (*buffers.golden, buffers.plain, *buffers.slots):
        taken += outputs._lse.nbytes + sum(t.nbytes for t in (*outputs._tensors, *outputs._digests))
    assert taken <= memory.bytes_needed(small) <= 8 * taken  # short rows are padded in the kernels' scratch
    standard = replace(small, heads=16, head_dim=128, tokens=32768, seq_len_min=512, seq_len_max=4096)
    assert 4 << 30 < memory.bytes_needed(standard) < 6 << 30


@contextmanager
def worker(protocol: Protocol, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [*WORKER, "--parent", str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={**os.environ, **environment}, start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            assert process.stdin is not None
            process.stdin.write(wire.encode(wire.Start("0000:33:00.0", "gpu", protocol)))
            process.stdin.write(wire.encode(wire.Check(0)))
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    return wire.decode_said(process.stdout.readline()).event


@pytest.mark.slow
def test_the_worker_runs_the_triton_kernels_interpreted(small: Protocol) -> None:
    """The whole worker of a GPU, with Triton's interpreter in place of the card."""
    tiny = replace(small, seq_len_min=16, seq_len_max=16, heads=1, head_dim=64, tokens=16)
    with worker(tiny, TRITON_INTERPRET="1") as process:
        said = [heard(process)]
        while not any(isinstance(e, Checked) for e in said) or getattr(said[-1], "n_compared", 0) < 2:
            said.append(heard(process))
    assert isinstance(said[0], Ready)
    assert said[0].kernel == "flash_v2"
    check = next(event.check for event in said if isinstance(event, Checked))
    assert all(error.relative_l2 < 2e-3 for error in check.errors)
    assert check.golden_proved is True
    assert said[-1].mismatches == 0


def test_without_a_gpu_the_worker_says_so(small: Protocol) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with worker(small) as process:
        said = heard(process)
        assert isinstance(said, Happening)
        assert said.kind == "worker_error"
        assert "offers no GPU" in said.detail
        assert process.wait(5.0) == wire.EXIT_CODES["worker_error"]
