"""The load on a GPU, CUDA or HIP: attention forward and backward on every card, work queued ahead of it.

    launching thread   `launcher`: keeps the queue full, sees every step, asks here what is wanted
    preparing thread   draws the next rotation's inputs on the device, beside the load
    checking thread    float64 on the host, from slices that were copied out beside the load

Every machine code that a run can need is compiled and run before the first step, so nothing compiles later.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from soak.core.ports import Checked, Happening, Progress, Ready
from soak.core.protocol import Protocol, Shape
from soak.core.records import GradientCheck
from soak.load import gradient, memory
from soak.load.buffers_gpu import Buffers, Slot
from soak.load.calibration import Calibration
from soak.load.capture_gpu import Capture, HostCopies
from soak.load.engine import BitFlip, boot_ms
from soak.load.gradient import Outputs
from soak.load.kernel_gpu import Kernel
from soak.load.launcher import Launcher
from soak.load.mismatch import MISMATCHES_TOLD
from soak.load.recipe import fill_inputs
from soak.load.replay_gpu import explain
from soak.load.rotation_gpu import RotationGpu, tally_of
from soak.load.streams import Event, Streams
from soak.load.warmup_gpu import Warmup, work_of

CHECKS_WAITING = 4


@dataclass(frozen=True)
class Rig:
    """A card ready to be used: its streams, the kernel for it, and what is to be recorded about both."""

    streams: Streams
    kernel: Kernel
    facts: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    burst_ms: float = 3_000.0  # of full load before t0: the card's own power and utilisation must rise


class EngineGpu:
    """Implements `soak.load.engine.Engine`, and `soak.load.launcher.Owner` towards its launching thread."""

    def __init__(self, gpu: str, protocol: Protocol, rig: Rig, inject: BitFlip | None = None) -> None:
        self._gpu, self._protocol, self._rig, self._inject = gpu, protocol, rig, inject
        self._buffers = Buffers(protocol, rig.streams)
        self._copies = HostCopies(protocol, rig.streams)
        self._launcher = Launcher(
            rig.streams, rig.kernel, self._buffers, self, boot_ms,
            compare_every=protocol.compare_every, inject=inject,
        )  # fmt: skip
        self._calibration = Calibration({(1, False): 1.0})
        self._events: deque[Progress | Checked | Happening] = deque()  # the worker empties it twice a second
        self._error: BaseException | None = None
        self._stopping = threading.Event()
        self._began = threading.Event()  # the first step is done
        self._current: RotationGpu | None = None
        self._next: RotationGpu | None = None  # prepared
        self._lock = threading.Lock()  # over _next
        self._wanted = 0
        self._wake_preparer = threading.Event()
        self._last_step_boot_ms: int | None = None
        self._check_orders: deque[int] = deque(maxlen=CHECKS_WAITING)
        self._captures: queue.SimpleQueue[Capture | None] = queue.SimpleQueue()
        self._checking = self._explaining = False
        self._threads: list[threading.Thread] = []

    # soak.load.engine.Engine, from the worker's main thread

    def begin(self, rotation: int) -> Ready:
        p, rig = self._protocol, self._rig
        warmup = Warmup(p, rig.streams, rig.kernel, self._buffers)
        facts = {**rig.facts, "bytes": memory.bytes_needed(p), **warmup.run(rig.burst_ms)}
        self._calibration = warmup.calibration
        self._wanted = rotation
        self._current = first = self._prepare(p.shape(rotation), place=0)
        first.taken = True
        self._start(lambda: self._launcher.run(first, self._stopping.is_set), "launcher")
        self._start(self._prepare_ahead, "preparer")
        self._start(self._check_gradients, "checker")
        while not self._began.wait(0.05):
            self._raise()
        return Ready(
            gpu=self._gpu,
            boot_ms=boot_ms(),
            kernel=rig.kernel.name,
            kernel_reason=rig.kernel.reason,
            step_ms=self._step_ms(p.seq_len_max, False),
            versions={**rig.versions, **rig.kernel.versions},
            facts={**facts, **({"injected": asdict(self._inject)} if self._inject else {})},
        )

    def rotate(self, index: int) -> None:
        self._wanted = index
        self._wake_preparer.set()

    def check(self, index: int) -> None:
        self._check_orders.append(index)

    def progress(self) -> tuple[Progress, int | None]:
        assert self._current is not None, "begin() comes first"
        return self._progress_of(self._current), self._launcher.in_step_since()

    def take(self) -> Sequence[Progress | Checked | Happening]:
        self._raise()
        return [self._events.popleft() for _ in range(len(self._events))]

    def stop(self) -> None:
        """Ends the threads and waits for them; a worker process just exits instead."""
        self._stopping.set()
        self._wake_preparer.set()
        self._captures.put(None)
        for thread in self._threads:
            thread.join()

    # soak.load.launcher.Owner, from the launching thread

    def next_rotation(self, current: RotationGpu) -> RotationGpu | None:
        if self._wanted == current.shape.index:
            return None
        with self._lock:
            if self._next is None or self._next.shape.index != self._wanted:
                return None  # not drawn yet: the load goes on with the old one
            self._current, self._next = self._next, None
            self._current.taken = True
        self._wake_preparer.set()
        return self._current

    def wants_capture(self) -> bool:
        return bool(self._check_orders) and not self._checking

    def capture(self, rotation: RotationGpu, outputs: Outputs, done: Event) -> Capture:
        self._checking = True
        return self._copies.launch(self._check_orders.popleft(), rotation, outputs, done, boot_ms())

    def captured(self, capture: Capture) -> None:
        self._captures.put(capture)

    def finished(self, rotation: RotationGpu) -> None:
        self._last_step_boot_ms = boot_ms()
        self._began.set()
        if rotation.retired.is_set():
            self._events.append(self._progress_of(rotation))
            self._wake_preparer.set()

    def mismatch(self, rotation: RotationGpu, step: int, slot: Slot) -> None:
        if rotation.n_told >= MISMATCHES_TOLD:
            return
        self._explaining = True
        rig = self._rig
        told = explain(self._gpu, boot_ms(), rig.streams, rig.kernel, self._buffers, rotation, step, slot)
        rotation.n_told += len(told)
        self._events.extend(told)
        self._explaining = False

    # the other threads

    def _start(self, work: Callable[[], None], name: str) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the loop of a thread: the worker turns it into a record
                self._error = error

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _prepare_ahead(self) -> None:
        """Always has the next rotation ready: the one that is wanted, else the one after the current."""
        users = [self._current, None]  # who used each set of inputs last
        while not self._stopping.is_set():
            with self._lock:
                assert self._current is not None
                place, now = 1 - self._current.place, self._current.shape.index
                index = self._wanted if self._wanted != now else now + 1
                if self._next is not None and self._next.shape.index != index:
                    self._next = None  # an order that came between; it is drawn over
                before, is_ready = users[place], self._next is not None
            if is_ready or not (before is None or before.retired.is_set() or not before.taken):
                self._wake_preparer.wait()
                self._wake_preparer.clear()
                continue
            users[place] = prepared = self._prepare(self._protocol.shape(index), place)
            with self._lock:
                self._next = prepared

    def _prepare(self, shape: Shape, place: int) -> RotationGpu:
        """Draws the inputs on the device, beside the load; returns before they are drawn."""
        p, streams = self._protocol, self._rig.streams
        size = self._buffers.size(shape.seq_len)
        inputs = self._buffers.inputs(place, size)
        with streams.beside():
            fill_inputs(shape.seed, inputs, self._buffers.scratch)
            prepared = self._rig.kernel.prepare(inputs, shape.causal)
            drawn = streams.mark()
        work = work_of(p, shape.seq_len, shape.causal)
        expected_ms = self._step_ms(shape.seq_len, shape.causal)
        return RotationGpu(shape, size, place, inputs, prepared, drawn, work, expected_ms)

    def _check_gradients(self) -> None:
        while (capture := self._captures.get()) is not None:
            slices, shape = self._copies.read(capture), capture.rotation.shape
            errors = gradient.compare(slices, causal=shape.causal)
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
                slices=capture.slices,
                errors=errors,
                dtype=self._protocol.dtype,
                duration_ms=boot_ms() - capture.began_boot_ms,
                golden_proved=capture.is_golden,
            )
            self._checking = False
            self._events.append(Checked(self._gpu, boot_ms(), check))

    # what is said

    def _progress_of(self, rotation: RotationGpu) -> Progress:
        tally, shape, now_ms = tally_of(rotation), rotation.shape, boot_ms()
        rate = rotation.rate.rate(now_ms, rotation.expected_step_ms)
        return Progress(
            gpu=self._gpu,
            boot_ms=now_ms,
            rotation=shape.index,
            n_steps=tally.n_steps,
            flops=int(tally.n_steps * rotation.work),
            last_step_boot_ms=self._last_step_boot_ms,
            expected_step_ms=rotation.expected_step_ms,
            rate_ratio=None if rate is None else rate / self._calibration.rate(shape.seq_len, shape.causal),
            exempt=self._checking or self._explaining or tally.n_steps == 0,
            golden=tally.golden,
            n_due=tally.n_due,
            n_compared=tally.n_compared,
            mismatches=tally.mismatches,
        )

    def _step_ms(self, seq_len: int, causal: bool) -> float:
        return self._calibration.step_ms(seq_len, causal, work_of(self._protocol, seq_len, causal))

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
