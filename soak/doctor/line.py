"""What the checklist says: one line a check, or one a check and card."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from soak.core.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"  # a run starts, but its verdict may suffer
    FAIL = "fail"  # a run does not start, or cannot work
    SKIP = "skip"  # could not be asked; the reason is said, and counts for nothing


@dataclass(frozen=True, slots=True)
class Line:
    """`gpu`: the card that it is about; None: the machine. `remedy`: what to do, "" where nothing is."""

    check: str
    level: Level
    says: str
    remedy: str = ""
    gpu: str | None = None


def exit_code(lines: Iterable[Line]) -> int:
    """0: all is well; 3: warnings; 1: a fail."""
    levels = {line.level for line in lines}
    if Level.FAIL in levels:
        return EXIT_FAIL
    return EXIT_INCONCLUSIVE if Level.WARN in levels else EXIT_PASS
