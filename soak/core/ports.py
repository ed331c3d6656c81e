"""The seams of a run: what `soak.run` needs of the world, and the messages that cross.

The real parts (`telemetry`, `load`, `store`, `schedule`) and the simulated ones implement these protocols and
pass the same contract suites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from soak.core.protocol import Shape
from soak.core.records import Attempt, GradientCheck, Poll


class Clock(Protocol):
    """Time, handed in."""

    def boot_ms(self) -> int:
        """Milliseconds since boot, suspend included (CLOCK_BOOTTIME)."""

    def utc_ms(self) -> int:
        """The wall clock, milliseconds since 1970 UTC. A stamp; it orders nothing."""


@dataclass(frozen=True, slots=True)
class Happening:
    """An incident as an edge sees it; the run gives it its attempt, sequence number and elapsed time."""

    kind: str  # one of core.incidents.KINDS
    boot_ms: int
    gpu: str | None = None
    detail: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


class Telemetry(Protocol):
    """Readings of every card of the run, polled elsewhere; taking them never waits for a driver."""

    def take(self) -> Sequence[Poll | Happening]:
        """What came in since the last call, in the order of its arrival. Never blocks."""

    def stop(self, deadline_ms: int) -> None:
        """Ends the polling; returns within `deadline_ms`, the child killed if need be."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker has compiled the smallest, largest and an odd shape, and finished its first step."""

    gpu: str
    boot_ms: int
    kernel: str
    kernel_reason: str
    step_ms: float  # a step of the largest shape
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(
        default_factory=dict
    )  # calibration, memory taken, device as the runtime sees it


@dataclass(frozen=True, slots=True)
class Progress:
    """Steps done by one worker in one rotation, so far; also its heartbeat (at least one a second).

    `last_step_boot_ms`: when the last step finished; None before the first. `expected_step_ms`: of the
    current shape. `rate_ratio`: work rate over this card's own calibrated rate, None where no rule applies
    (CPU, not yet known). `exempt`: our own check or rotation is under way, the rate is not judged.
    """

    gpu: str
    boot_ms: int
    rotation: int
    n_steps: int
    flops: int
    last_step_boot_ms: int | None
    expected_step_ms: float
    rate_ratio: float | None = None
    exempt: bool = False
    golden: str = ""
    n_due: int = 0  # comparisons due in this rotation, so far
    n_compared: int = 0
    mismatches: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    """A gradient check was made. The run gives it its attempt and elapsed times."""

    gpu: str
    boot_ms: int
    check: GradientCheck  # attempt, due_ms and at_ms are the run's to fill in


LoadEvent: TypeAlias = Ready | Progress | Checked | Happening


class Load(Protocol):
    """The cards at work. Orders return at once; what comes of them is taken later."""

    def rotate(self, shape: Shape) -> None:
        """Every worker goes over to this rotation, which it has prepared before."""

    def check(self, index: int) -> None:
        """Every worker makes gradient check `index` on its current rotation, the load going on."""

    def take(self) -> Sequence[LoadEvent]:
        """What came in since the last call; also keeps deadlines and restarts workers. Never blocks."""

    def stop(self, deadline_ms: int) -> None:
        """Ends every worker within `deadline_ms`: TERM, then KILL; an unkillable one is left."""


class Store(Protocol):
    """Where rows go. Writing never blocks the run: rows wait in memory, bounded, while the store is away."""

    def write(self, *records: Any) -> None:
        """Records of `core.records`; one with a key already written replaces it (the open slot)."""

    def flush(self, deadline_ms: int) -> bool:
        """Waits until everything is written; False where the deadline came first."""

    def take(self) -> Sequence[Happening]:
        """What happened to the store since the last call."""

    def close_attempt(self, attempt: Attempt, deadline_ms: int) -> Attempt | None:
        """Flushes, counts the run's rows, and writes the closing record; the attempt with it, or None."""
