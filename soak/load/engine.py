"""What a worker needs of the thing that computes, the same for a CPU and a GPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from soak.core.ports import Checked, Happening, Progress, Ready


class Engine(Protocol):
    """A card at work in threads of its own; every method but `begin` returns at once."""

    def begin(self, rotation: int) -> Ready:
        """Compiles, tests itself, starts the load on `rotation`; returns when the first step is done."""

    def rotate(self, index: int) -> None:
        """Goes over to rotation `index` as soon as its inputs are there, and prepares the one after."""

    def check(self, index: int) -> None:
        """Makes gradient check `index` on the current rotation while the load goes on."""

    def progress(self) -> tuple[Progress, int | None]:
        """How far it is, and since when (boot_ms) its oldest step is running."""

    def take(self) -> Sequence[Progress | Checked | Happening]:
        """What happened since the last call. Raises what ended one of its threads."""


@dataclass(frozen=True, slots=True)
class BitFlip:
    """A test's damage: one bit of dQ is flipped in step `step` of rotation `rotation`, once.

    It hits the last head, row seq_len // 2, column 1, bit 3. `Ready.facts["injected"]` says so.
    """

    rotation: int
    step: int

    @classmethod
    def parse(cls, text: str) -> BitFlip:
        """From `ROTATION:STEP`, both counted from 0. Raises ValueError."""
        rotation, step = (int(part) for part in text.split(":"))
        return cls(rotation, step)


class LoadError(Exception):
    """The load cannot go on; `kind` is the incident (`core.incidents.KINDS`)."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


def boot_ms() -> int:
    """CLOCK_BOOTTIME in milliseconds, the clock that parent and workers share."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
