"""Keeps a card's queue full: launches steps ahead of it, looks at each when it is done, in their order.

One thread does all of this. It waits for the card only while the queue is full; nothing is synchronised per
step. The first step of a rotation writes the golden outputs; every `compare_every`-th writes to one of two
slots, is compared there on the device, and its slot is used again only when the host has seen the count; all
other steps write over one another. A rotation follows the one before without a gap: it was prepared, and it
has its own golden outputs, since steps of the old one are still in the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from soak.load.buffers_gpu import Buffers, OutputSet, Slot
from soak.load.capture_gpu import Capture
from soak.load.engine import BitFlip
from soak.load.gradient import Outputs
from soak.load.integrity import flip_bit_in_place, golden_name
from soak.load.kernel_gpu import Kernel
from soak.load.rotation_gpu import RotationGpu
from soak.load.streams import Event, Streams

AHEAD_MS = 200.0  # of work in the queue: a host that is away for less leaves no gap
AHEAD_MAX = 64  # steps


class Owner(Protocol):
    """Whom the launcher asks what to do and tells what it saw; all from its own thread."""

    def next_rotation(self, current: RotationGpu) -> RotationGpu | None:
        """The prepared rotation, if it is time to go over to it."""

    def wants_capture(self) -> bool:
        """Whether a gradient check waits for the outputs of a step."""

    def capture(self, rotation: RotationGpu, outputs: Outputs, done: Event) -> Capture:
        """Copies slices of these outputs beside the load."""

    def captured(self, capture: Capture) -> None:
        """Its step was compared: the check can be made."""

    def finished(self, rotation: RotationGpu) -> None:
        """A step is done and counted."""

    def mismatch(self, rotation: RotationGpu, step: int, slot: Slot) -> None:
        """This step's digests differ. Nothing else is launched meanwhile."""


@dataclass(slots=True)
class _Flight:
    """A step in the queue."""

    rotation: RotationGpu
    step: int
    done: Event
    launched_ms: int
    slot: Slot | None = None
    capture: Capture | None = None


class Launcher:
    def __init__(
        self,
        streams: Streams,
        kernel: Kernel,
        buffers: Buffers,
        owner: Owner,
        now_ms: Callable[[], int],
        *,
        compare_every: int,
        inject: BitFlip | None = None,
    ) -> None:
        self._streams, self._kernel, self._buffers, self._owner = streams, kernel, buffers, owner
        self._now_ms = now_ms
        self._compare_every, self._inject = compare_every, inject
        self._flights: deque[_Flight] = deque()
        self._next_slot = 0

    def run(self, rotation: RotationGpu, is_over: Callable[[], bool]) -> None:
        """Until `is_over`; what is in the queue then is waited for."""
        with self._streams.load():
            self._streams.after(rotation.drawn)
            while not is_over():
                if following := self._owner.next_rotation(rotation):
                    rotation = self._go_over(rotation, following)
                while len(self._flights) >= self._n_ahead(rotation):
                    self._see_oldest()
                self._launch(rotation)
            while self._flights:
                self._see_oldest()

    def in_step_since(self) -> int | None:
        """When the oldest step in the queue was launched, boot_ms; for other threads."""
        try:
            return self._flights[0].launched_ms
        except IndexError:
            return None

    def _go_over(self, before: RotationGpu, rotation: RotationGpu) -> RotationGpu:
        before.over = True
        before.retire_if_done()
        self._streams.after(rotation.drawn)
        return rotation

    def _n_ahead(self, rotation: RotationGpu) -> int:
        return min(max(2, int(AHEAD_MS / max(rotation.expected_step_ms, 1e-3))), AHEAD_MAX)

    def _launch(self, rotation: RotationGpu) -> None:
        step, size = rotation.n_launched, rotation.size
        wants_capture = step > 0 and self._owner.wants_capture()
        hit = self._inject == BitFlip(rotation.shape.index, step)
        slot = None
        if step > 0 and (step % self._compare_every == 0 or wants_capture or hit):
            slot = self._free_slot()
        target: OutputSet = slot or (self._buffers.plain if step else self._buffers.golden[rotation.place])
        outputs = target.outputs(size)
        self._kernel.run(rotation.prepared, rotation.inputs, outputs, rotation.shape.causal)
        if hit:
            flip_bit_in_place(outputs.dq[-1, -1], size.seq_len // 2, 1, 3)
        if step == 0:
            self._buffers.launch_golden_digests(rotation.place, size)
        if slot is not None:
            slot.launch_comparison(size, self._buffers.golden[rotation.place], self._buffers.weights)
        done = self._streams.mark()
        flight = _Flight(rotation, step, done, self._now_ms(), slot)
        if slot is not None and wants_capture:
            flight.capture = self._owner.capture(rotation, outputs, done)
            slot.copied = flight.capture.copied
        rotation.n_launched += 1
        rotation.n_in_flight += 1
        self._flights.append(flight)

    def _free_slot(self) -> Slot:
        """The next slot, once the step that used it last was seen and a check has its copy."""
        slot = self._buffers.slots[self._next_slot]
        self._next_slot = (self._next_slot + 1) % len(self._buffers.slots)
        while slot.is_busy:
            self._see_oldest()
        if slot.copied is not None:
            slot.copied.wait()
            slot.copied = None
        slot.is_busy = True
        return slot

    def _see_oldest(self) -> None:
        """Waits for the oldest step, counts it, and looks at its comparison."""
        flight = self._flights[0]
        flight.done.wait()
        self._flights.popleft()
        rotation = flight.rotation
        rotation.n_steps += 1
        rotation.rate.finished(self._now_ms())
        if flight.step == 0:
            digests = self._buffers.golden_digests(rotation.place, rotation.size)
            rotation.golden = golden_name(digests)
        if flight.slot is not None:
            self._see_comparison(flight, flight.slot)
        rotation.n_in_flight -= 1
        rotation.retire_if_done()
        self._owner.finished(rotation)

    def _see_comparison(self, flight: _Flight, slot: Slot) -> None:
        rotation = flight.rotation
        differs = slot.n_differing() > 0
        rotation.n_due += 1
        rotation.n_compared += 1
        if differs:
            rotation.mismatches += 1
            self._owner.mismatch(rotation, flight.step, slot)
        if flight.capture is not None:
            flight.capture.is_golden = not differs
            self._owner.captured(flight.capture)
        slot.is_busy = False
