"""One rotation on a GPU: its tensors, and what has come of its steps."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from soak.core.protocol import Shape
from soak.load.buffers_gpu import Size
from soak.load.rate import WorkRate
from soak.load.recipe import Inputs
from soak.load.streams import Event


@dataclass(eq=False)
class RotationGpu:
    """`place`: which set of inputs and golden outputs it uses. Counted by the launching thread alone."""

    shape: Shape
    size: Size
    place: int
    inputs: Inputs
    prepared: Any  # the kernel's configuration and scratch
    drawn: Event
    work: float  # operations of a step
    expected_step_ms: float
    rate: WorkRate = field(init=False)
    n_launched: int = 0
    n_in_flight: int = 0
    n_steps: int = 0
    n_due: int = 0
    n_compared: int = 0
    mismatches: int = 0
    n_told: int = 0
    golden: str = ""
    taken: bool = False  # it is or was the current one
    over: bool = False  # another rotation has taken its place
    retired: threading.Event = field(default_factory=threading.Event)  # and its last step was seen

    def __post_init__(self) -> None:
        self.rate = WorkRate(self.work)

    def retire_if_done(self) -> None:
        """Its inputs may be drawn over from then on."""
        if self.over and self.n_in_flight == 0:
            self.retired.set()


@dataclass(frozen=True, slots=True)
class Tally:
    """A rotation's counts at one instant."""

    n_steps: int
    n_due: int
    n_compared: int
    mismatches: int
    golden: str


def tally_of(rotation: RotationGpu) -> Tally:
    """Read by other threads: compared before due, so that it never exceeds it."""
    n_compared, mismatches = rotation.n_compared, rotation.mismatches
    return Tally(rotation.n_steps, rotation.n_due, n_compared, mismatches, rotation.golden)
