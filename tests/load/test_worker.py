"""The worker process itself, on the CPU: a whole life, and every way to end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from soak.core.protocol import Protocol
from soak.core.records import Device
from soak.load import wire
from soak.load.environment import worker_environment
from soak.load.pool import WORKER
from soak.load.process import look_at

ENVIRONMENT = worker_environment(Device("cpu", "cpu"), os.environ)


class Worker:
    def __init__(self, protocol: Protocol, *options: str, engine: str = "cpu", rotation: int = 0) -> None:
        self.process = subprocess.Popen(
            [*WORKER, "--parent", str(os.getpid()), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=ENVIRONMENT, start_new_session=True,
        )  # fmt: skip
        self.said: list[Any] = []
        self.order(wire.Start("cpu", engine, protocol, rotation))

    def order(self, order: wire.Order) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(wire.encode(order))
        self.process.stdin.flush()

    def hear(self, wanted: Callable[[Any], bool]) -> Any:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.said.append(wire.decode_said(line).event)
            if wanted(self.said[-1]):
                return self.said[-1]
        raise AssertionError(f"the worker ended; it said {self.said}")

    def ready(self) -> Any:
        return self.hear(lambda event: hasattr(event, "kernel"))

    def ended(self, timeout_s: float) -> int:
        return self.process.wait(timeout_s)


@pytest.fixture
def worker(protocol: Protocol) -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(*options: str, changed: dict[str, Any] | None = None, **named: Any) -> Worker:
        workers.append(Worker(replace(protocol, **(changed or {})), *options, **named))
        return workers[-1]

    yield start
    for each in workers:
        each.process.kill()
        each.process.communicate()


def test_a_whole_life(worker: Callable[..., Worker], protocol: Protocol) -> None:
    one = worker(rotation=3)
    ready = one.ready()
    assert (ready.gpu, ready.kernel) == ("cpu", "torch.flash_attention_cpu")
    assert ready.step_ms > 0
    assert "rejected 9 of 9" in ready.facts["self_test"]
    assert "injected" not in ready.facts
    one.order(wire.Check(5))
    check = one.hear(lambda event: hasattr(event, "check")).check
    shape = protocol.shape(3)
    assert (check.index, check.rotation, check.seq_len, check.seed) == (5, 3, shape.seq_len, shape.seed)
    assert check.slices == ((0, 0), (0, 1))
    assert [error.tensor for error in check.errors] == ["o", "dq", "dk", "dv"]
    assert all(
        error.n_elements == 2 * shape.seq_len * 32 and error.n_nonfinite == 0 for error in check.errors
    )
    assert all(error.max_abs < 1e-5 and error.relative_l2 < 1e-5 for error in check.errors)
    assert check.golden_proved is True
    one.order(wire.Rotate(4))
    last = one.hear(lambda event: getattr(event, "rotation", 0) == 4 and event.n_steps > 5)
    assert last.golden
    assert last.mismatches == 0
    assert last.n_due == last.n_compared > 0
    assert last.last_step_boot_ms is not None
    before = [event for event in one.said if getattr(event, "rotation", 0) == 3][-1]
    assert before.n_steps > 0
    one.order(wire.Stop())
    assert one.ended(3.0) == 0


def test_two_processes_give_the_same_bits(worker: Callable[..., Worker]) -> None:
    def golden(one: Worker, rotation: int) -> str:
        named = one.hear(lambda e: getattr(e, "golden", "") and e.rotation == rotation)
        found: str = named.golden
        return found

    one, other = worker(), worker(rotation=1)
    first = golden(one, 0)
    one.order(wire.Rotate(1))
    assert golden(one, 1) == golden(other, 1) != first


def test_an_injected_flip_is_found_where_it_is(worker: Callable[..., Worker], protocol: Protocol) -> None:
    one = worker("--inject-bit-flip", "0:6")
    assert one.ready().facts["injected"] == {"rotation": 0, "step": 6}
    found = one.hear(lambda event: getattr(event, "kind", "") == "mismatch")
    row = protocol.shape(0).seq_len // 2
    expected = {
        "tensor": "dq", "batch": 0, "head": 1, "rows": [[row, row + 1]], "n_bits": 1, "n_elements": 1,
        "first_xor": 8, "replay": "transient", "step": 6, "rotation": 0, "golden_intact": True,
    }  # fmt: skip
    assert expected.items() <= found.data.items()
    assert one.hear(lambda event: getattr(event, "n_steps", 0) > 7).mismatches == 1


def test_beats_come_inside_a_long_step(worker: Callable[..., Worker]) -> None:
    """A head takes longer than a second: Python's lock must be free meanwhile."""
    one = worker(changed={"seq_len_min": 6000, "seq_len_max": 6000, "heads": 1, "head_dim": 128})
    assert one.ready().step_ms > 500  # two lanes or more share a step's time
    beats = [one.hear(lambda event: hasattr(event, "n_steps")).boot_ms for _ in range(6)]
    assert sorted(later - beat for beat, later in pairwise(beats))[2] < 1000


@pytest.mark.parametrize("when", ["ready", "at once"])
def test_the_end_of_stdin_ends_it(worker: Callable[..., Worker], when: str) -> None:
    one = worker()
    if when == "ready":
        one.ready()
    assert one.process.stdin is not None
    one.process.stdin.close()
    one.process.stdin = None
    assert one.ended(2.0 if when == "ready" else 10.0) == wire.EXIT_PARENT_GONE


def test_term_ends_it_within_a_second_and_ctrl_c_does_not(worker: Callable[..., Worker]) -> None:
    one = worker(changed={"seq_len_min": 3000, "seq_len_max": 3000, "heads": 1, "head_dim": 128})
    one.ready()
    one.process.send_signal(signal.SIGINT)
    one.hear(lambda event: hasattr(event, "n_steps"))
    one.hear(lambda event: hasattr(event, "n_steps"))
    one.process.send_signal(signal.SIGTERM)
    assert one.ended(1.0) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("engine", "changed", "kind", "says"),
    [
        ("steam", {}, "worker_error", "no engine 'steam'"),
        ("cpu", {"kernel": "triton"}, "compile_error", "no kernel 'triton'"),
        ("cpu", {"dtype": "float16"}, "compile_error", "float32, not float16"),
    ],
)
def test_what_it_cannot_do_it_says(
    worker: Callable[..., Worker], engine: str, changed: dict[str, Any], kind: str, says: str
) -> None:
    one = worker(engine=engine, changed=changed)
    found = one.hear(lambda event: hasattr(event, "kind"))
    assert found.kind == kind
    assert says in found.detail
    assert one.ended(5.0) == wire.EXIT_CODES[kind]


PARENT = """
import subprocess, sys, time
from soak.core.protocol import Limits, Protocol
from soak.core.records import Device
from soak.load.pool import Pool
class Clock:
    def boot_ms(self): return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    def utc_ms(self): return 0
protocol = Protocol(60_000, 10_000, 30_000, 10_000, 1_000, 0, 2000, 2000, 7, Limits(frozenset()),
                    dtype="float32")
pool = Pool([Device("cpu", "cpu")], protocol, Clock())
pool.start()
while not any(type(event).__name__ == "Ready" for event in pool.take()):
    time.sleep(0.05)
print(pool.pids["cpu"], flush=True)
time.sleep(60)
"""


def test_a_killed_parent_leaves_no_orphan() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
        parent.wait(5.0)
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        if (look := look_at(pid)) is None or look.state == "Z":  # ended; its new parent may be slow
            return
        time.sleep(0.02)
    raise AssertionError(f"worker {pid} still lives")
