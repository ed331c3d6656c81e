"""The load on the CPU: attention forward and backward in float32, one sequence a step, every step compared.

Each allowed core has a lane, a thread that computes one head after another with one torch thread. So no core
waits for another at the end of a step, which keeps all of them busy with any number of heads; and PyTorch's
calls for forward and autograd leave Python's lock, so that lanes, heartbeats, drawing of inputs and checks
run side by side. What a lane does in Python between two calls is done under that lock, one lane at a time:
where a head takes less than `UNIT_MS_PER_LANE` for every lane, a step is the same sequence several times
over.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import product

import torch
from soak_kernels.digest import digest_weights
from soak_kernels.flops import backward_flops, forward_flops

from soak.core.ports import Checked, Happening, Progress, Ready
from soak.core.protocol import Protocol, Shape
from soak.core.records import GradientCheck
from soak.load import gradient
from soak.load.calibration import Calibration
from soak.load.cgroup import allowed_cores
from soak.load.engine import BitFlip, LoadError, boot_ms
from soak.load.gradient import Outputs, Slice
from soak.load.integrity import difference, flip_bit_in_place, replay_says
from soak.load.mismatch import MISMATCHES_TOLD, Place, mismatch
from soak.load.recipe import Inputs, draw_inputs
from soak.load.rotation_cpu import RotationCpu, Unit, one_copy

KERNEL = "torch.flash_attention_cpu"
KERNEL_REASON = (
    "PyTorch's flash attention for CPUs: gives LSE, the same bits every time, and needs no memory for scores"
)
CHECKS_WAITING = 4
UNIT_MS_PER_LANE = 5.0  # a lane's Python between two units takes about 0.1 ms: 2 % when all lanes want it
COPIES_MAX = 64


def attention(inputs: Inputs, causal: bool) -> Outputs:
    """Forward and backward of one head: inputs [1, 1, seq_len, head_dim], outputs [seq_len, …]."""
    return one_copy(attention_of_copies(inputs, causal, 1), 0)


def attention_of_copies(inputs: Inputs, causal: bool, copies: int) -> Outputs:
    """The same head `copies` times in one call: outputs [copies, seq_len, head_dim], LSE [copies, seq_len].

    Through autograd and not the backward operator itself: called from Python, that one holds Python's lock.
    """
    q, k, v, do = (tensor.detach().expand(copies, -1, -1, -1) for tensor in inputs)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    o, lse = torch._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
    return Outputs(*(tensor.detach()[:, 0] for tensor in (o, lse, dq, dk, dv)))


@dataclass
class _Capture:
    """Outputs that a check waits for; the lanes fill it."""

    index: int
    began_boot_ms: int
    heads: tuple[int, ...]
    rotation: RotationCpu
    got: dict[int, Outputs] = field(default_factory=dict)


class EngineCpu:
    """Implements `soak.load.engine.Engine`."""

    def __init__(self, gpu: str, protocol: Protocol, inject: BitFlip | None = None) -> None:
        if protocol.kernel not in ("auto", KERNEL):
            raise LoadError(
                "compile_error", f"the CPU has no kernel {protocol.kernel!r}; use auto or {KERNEL}"
            )
        if protocol.dtype != "float32":
            raise LoadError(
                "compile_error", f"the CPU's load is float32, not {protocol.dtype}; use profile cpu"
            )
        if not hasattr(torch, "_scaled_dot_product_flash_attention_for_cpu"):
            raise LoadError(
                "compile_error",
                f"PyTorch {torch.__version__} has no flash attention for CPUs; use 2.6 or later",
            )
        self._gpu, self._protocol, self._inject = gpu, protocol, inject
        self._n_lanes = allowed_cores()
        self._events: deque[Progress | Checked | Happening] = deque()  # the worker empties it twice a second
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._current: RotationCpu | None = None
        self._wanted = 0
        self._wake_preparer = threading.Event()
        self._began = threading.Event()  # the first step is done
        self._last_step_boot_ms: int | None = None
        self._capture: _Capture | None = None
        self._check_orders: deque[int] = deque(maxlen=CHECKS_WAITING)
        self._captures: queue.Queue[_Capture] = queue.Queue()
        self._checking = False
        self._calibration = Calibration({(1, False): 1.0})
        self._weights = digest_weights(protocol.seq_len_max, protocol.head_dim, "cpu")

    def begin(self, rotation: int) -> Ready:
        torch.set_num_threads(1)
        p = self._protocol
        said = gradient.self_test(attention, p.limits, head_dim=p.head_dim, dtype=torch.float32)
        self._calibration = self._measure()
        self._wanted = rotation
        self._current = self._draw(p.shape(rotation))
        for lane in range(self._n_lanes):
            self._thread(self._compute, f"lane {lane}")
        self._thread(self._prepare, "preparer")
        self._thread(self._check_gradients, "checker")
        while not self._began.wait(0.1):
            self._raise()
        return Ready(
            gpu=self._gpu,
            boot_ms=boot_ms(),
            kernel=KERNEL,
            kernel_reason=KERNEL_REASON,
            step_ms=self._step_ms(p.seq_len_max, False),
            versions={"torch": str(torch.__version__)},
            facts={
                "lanes": self._n_lanes,
                "self_test": said,
                "step_ms": {
                    f"{s}{' causal' if c else ''}": self._step_ms(s, c) for s, c in self._calibration.rates
                },
                **({"injected": asdict(self._inject)} if self._inject else {}),
            },
        )

    def rotate(self, index: int) -> None:
        self._wanted = index
        self._wake_preparer.set()

    def check(self, index: int) -> None:
        self._check_orders.append(index)

    def progress(self) -> tuple[Progress, int | None]:
        rotation = self._current
        assert rotation is not None, "begin() comes first"
        return self._progress_of(rotation), rotation.in_step_since()

    def take(self) -> Sequence[Progress | Checked | Happening]:
        self._raise()
        return [self._events.popleft() for _ in range(len(self._events))]

    # threads

    def _thread(self, work: Callable[[], None], name: str) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the loop of a thread: the worker turns it into a record
                self._error = error

        threading.Thread(target=run, name=name, daemon=True).start()

    def _compute(self) -> None:
        torch.set_num_threads(1)
        while self._error is None:
            rotation = self._current
            assert rotation is not None
            unit = rotation.next_unit(boot_ms())
            outputs = self._attend(rotation, unit.head)
            if self._inject == BitFlip(rotation.shape.index, unit.step) and unit.head == rotation.heads - 1:
                outputs = outputs._replace(dq=outputs.dq.contiguous())
                flip_bit_in_place(outputs.dq[0], rotation.shape.seq_len // 2, 1, 3)
            golden = rotation.settle(unit, outputs)
            if golden is not None:
                self._mismatch(rotation, unit, golden, outputs)
            if rotation.finish(unit, wrong=golden is not None):
                self._last_step_boot_ms = boot_ms()
                self._began.set()
            self._give_to_check(rotation, unit.head, one_copy(outputs, 0))

    def _prepare(self) -> None:
        """Draws the next rotation's inputs while the current one runs, and goes over when told."""
        p = self._protocol
        prepared: RotationCpu | None = None
        while True:
            assert self._current is not None
            index = self._wanted if self._wanted != self._current.shape.index else self._wanted + 1
            if prepared is None or prepared.shape.index != index:
                prepared = None  # its memory first
                prepared = self._draw(p.shape(index))
            if index == self._wanted:
                before, self._current, prepared = self._current, prepared, None
                self._events.append(self._progress_of(before))
                continue
            self._wake_preparer.wait()
            self._wake_preparer.clear()

    def _check_gradients(self) -> None:
        torch.set_num_threads(1)
        p = self._protocol
        while True:
            capture = self._captures.get()
            shape = capture.rotation.shape
            slices = [
                Slice(Inputs(*(tensor[0, head] for tensor in capture.rotation.inputs)), capture.got[head])
                for head in capture.heads
            ]
            errors = gradient.compare(slices, causal=shape.causal)
            proofs = [capture.rotation.carries_golden(head, capture.got[head]) for head in capture.heads]
            check = GradientCheck(
                attempt=0,
                gpu=self._gpu,
                index=capture.index,
                due_ms=0,
                at_ms=0,
                rotation=shape.index,
                seq_len=shape.seq_len,
                causal=shape.causal,
                seed=shape.seed,
                slices=tuple((0, head) for head in capture.heads),
                errors=errors,
                dtype=p.dtype,
                duration_ms=boot_ms() - capture.began_boot_ms,
                golden_proved=None if None in proofs else all(proofs),
            )
            with self._lock:
                self._checking = False
            self._events.append(Checked(self._gpu, boot_ms(), check))

    # one rotation

    def _draw(self, shape: Shape) -> RotationCpu:
        p = self._protocol
        inputs = draw_inputs(shape.seed, batch=1, heads=p.heads, seq_len=shape.seq_len, head_dim=p.head_dim)
        return RotationCpu(
            shape, inputs, p.heads, self._weights, self._copies(self._unit_ms(shape.seq_len, shape.causal))
        )

    def _attend(self, rotation: RotationCpu, head: int) -> Outputs:
        """Of every copy: [copies, seq_len, head_dim]."""
        inputs = Inputs(*(tensor[:, head : head + 1] for tensor in rotation.inputs))
        return attention_of_copies(inputs, rotation.shape.causal, rotation.copies)

    def _mismatch(self, rotation: RotationCpu, unit: Unit, golden: Outputs, got: Outputs) -> None:
        replayed = self._attend(rotation, unit.head)
        if rotation.mismatches >= MISMATCHES_TOLD:
            return
        for copy, name in product(range(rotation.copies), Outputs._fields):
            tensors = [getattr(each, name)[copy] for each in (golden, got, replayed)]
            found = difference(tensors[0], tensors[1])
            if found is None:
                continue
            place = Place(rotation.shape, unit.step, name, copy, unit.head)
            intact = rotation.golden_intact(unit.head, copy)
            self._events.append(mismatch(self._gpu, boot_ms(), place, found, replay_says(*tensors), intact))

    def _give_to_check(self, rotation: RotationCpu, head: int, outputs: Outputs) -> None:
        """Lets a check have these outputs if it waits for them; one check is in work at a time."""
        if not self._check_orders and self._capture is None:
            return
        with self._lock:
            if self._capture is None and self._check_orders and not self._checking:
                self._checking = True
                index = self._check_orders.popleft()
                chosen = gradient.choose_slices(self._protocol.seed, index, batch=1, heads=rotation.heads)
                self._capture = _Capture(index, boot_ms(), tuple(h for _, h in chosen), rotation)
            capture = self._capture
            if capture is None or rotation is not self._current:
                return
            if capture.rotation is not rotation:  # went over meanwhile: the old outputs cannot be completed
                capture.rotation, capture.got = rotation, {}
            if head in capture.heads:
                capture.got[head] = outputs
            if len(capture.got) == len(capture.heads):
                self._capture = None
                self._captures.put(capture)

    def _progress_of(self, rotation: RotationCpu) -> Progress:
        tally, shape = rotation.tally(), rotation.shape
        return Progress(
            gpu=self._gpu,
            boot_ms=boot_ms(),
            rotation=shape.index,
            n_steps=tally.n_steps,
            flops=int(tally.n_steps * rotation.copies * self._work(shape.seq_len, shape.causal)),
            last_step_boot_ms=self._last_step_boot_ms,
            expected_step_ms=rotation.copies * self._step_ms(shape.seq_len, shape.causal),
            exempt=self._checking or tally.n_steps == 0,
            golden=tally.golden,
            n_due=tally.n_due,
            n_compared=tally.n_compared,
            mismatches=tally.mismatches,
        )

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    # how long a step takes

    def _work(self, seq_len: int, causal: bool, heads: int | None = None) -> float:
        """Operations of one step."""
        size = (1, heads or self._protocol.heads, seq_len, seq_len, self._protocol.head_dim)
        return forward_flops(*size, causal=causal) + backward_flops(*size, causal=causal)

    def _step_ms(self, seq_len: int, causal: bool) -> float:
        """Of one copy, while every lane works."""
        return self._calibration.step_ms(seq_len, causal, self._work(seq_len, causal))

    def _unit_ms(self, seq_len: int, causal: bool) -> float:
        """Of one head of one copy on its lane."""
        return self._step_ms(seq_len, causal) * self._n_lanes / self._protocol.heads

    def _copies(self, unit_ms: float) -> int:
        return min(max(1, math.ceil(UNIT_MS_PER_LANE * self._n_lanes / unit_ms)), COPIES_MAX)

    def _measure(self) -> Calibration:
        """The smallest, the largest and an odd shape, a head on every lane at once."""
        p = self._protocol
        odd = min((p.seq_len_min + p.seq_len_max) // 2 | 1, p.seq_len_max)
        rates: dict[tuple[int, bool], float] = {}
        with ThreadPoolExecutor(self._n_lanes, initializer=torch.set_num_threads, initargs=(1,)) as lanes:
            for seq_len, causal in ((p.seq_len_min, False), (p.seq_len_max, False), (odd, True)):
                inputs = draw_inputs(0, batch=1, heads=self._n_lanes, seq_len=seq_len, head_dim=p.head_dim)
                heads = [Inputs(*(t[:, lane : lane + 1] for t in inputs)) for lane in range(self._n_lanes)]
                copies, elapsed_ms = 1, _elapsed_ms(lanes, heads, causal, 1)
                if self._copies(elapsed_ms) > 1:  # too short to be measured by itself
                    copies = self._copies(elapsed_ms)
                    elapsed_ms = _elapsed_ms(lanes, heads, causal, copies)
                rates[seq_len, causal] = copies * self._work(seq_len, causal, self._n_lanes) / elapsed_ms
        return Calibration(rates)


def _elapsed_ms(lanes: ThreadPoolExecutor, heads: Sequence[Inputs], causal: bool, copies: int) -> float:
    began = time.perf_counter()
    for done in [lanes.submit(attention_of_copies, head, causal, copies) for head in heads]:
        done.result()
    return (time.perf_counter() - began) * 1000.0
