"""What a criterion is: it folds records once, and concludes a finding from what it has folded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from soak.core.protocol import Protocol as RunProtocol
from soak.core.records import (
    Cause,
    Device,
    Finding,
    GradientCheck,
    Incident,
    IntegrityCheck,
    Slot,
    State,
    Stretch,
)

Evidence: TypeAlias = Slot | GradientCheck | IntegrityCheck | Incident


@dataclass(frozen=True, slots=True)
class Card:
    """What a criterion has to know of the card and the plan before the first record."""

    device: Device
    protocol: RunProtocol
    stretches: tuple[Stretch, ...] = (Stretch(0, 0),)
    waived: frozenset[str] = frozenset()

    @property
    def two_polls_ms(self) -> int:
        return 2 * self.protocol.poll_ms


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an attempt stands. `ended`: no more evidence comes. `closing`: "" where the closing record is
    there and its counts are met, else what is wrong with it; None while the attempt goes on."""

    elapsed_ms: int
    ended: bool = False
    closing: str | None = None

    def is_complete(self, protocol: RunProtocol) -> bool:
        return self.elapsed_ms >= protocol.duration_ms


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a criterion makes of its tally; the judge adds card, requirement, incidents and waiver."""

    state: State
    reason: str = ""
    value: float | None = None
    threshold: float | None = None
    unit: str = ""
    cause: Cause | None = None
    at_ms: int | None = None


class Criterion(Protocol):
    """Folds each record once; the order of records within a tick does not matter.

    Tallies are numbers only (bitsets where sets are wanted), so that a shallow copy can fold the records that
    are still open and be thrown away.
    """

    name: ClassVar[str]

    def fold(self, record: Evidence) -> None:
        """Takes a record; kinds that the criterion does not judge are passed over."""

    def conclude(self, standing: Standing) -> Conclusion:
        """The result so far."""


def finding(card: Card, criterion: str, conclusion: Conclusion) -> Finding:
    """A conclusion about a card, as the record that is stored and shown."""
    return Finding(
        gpu=card.device.gpu,
        criterion=criterion,
        required=criterion in card.protocol.limits.required,
        state=conclusion.state,
        value=conclusion.value,
        threshold=conclusion.threshold,
        unit=conclusion.unit,
        reason=conclusion.reason,
        cause=conclusion.cause,
        at_ms=conclusion.at_ms,
    )


def earliest(a: int | None, b: int | None) -> int | None:
    """The smaller of two instants, either of which may be absent."""
    return b if a is None else a if b is None else min(a, b)
