"""What the metrics are made from: the last snapshot, and how old it is."""

from __future__ import annotations

from dataclasses import dataclass

from soak.core.records import Quantity, ReadingStatus
from soak.core.snapshot import CardSnapshot, Snapshot

FRESH_MS = 10_000  # a reading older than this, and than two polls, is not known any more


@dataclass(frozen=True, slots=True)
class Moment:
    """`age_ms`: how long ago the snapshot was made."""

    snapshot: Snapshot
    age_ms: int

    @property
    def run_id(self) -> str:
        return self.snapshot.info.run_id

    @property
    def cards(self) -> tuple[CardSnapshot, ...]:
        """Every card of the run, also one that is gone."""
        return self.snapshot.cards

    @property
    def present(self) -> tuple[CardSnapshot, ...]:
        """The cards that are there; the values of one that vanished stop."""
        return tuple(card for card in self.cards if card.up)

    @property
    def has_begun(self) -> bool:
        """Whether t0 is set: before it nothing was counted."""
        return bool(self.snapshot.attempt.stretches)

    def reading(self, card: CardSnapshot, quantity: Quantity) -> float | None:
        """The last poll's value; None where there is none, or where it is too old to be called current."""
        if card.poll is None:
            return None
        age_ms = self.snapshot.boot_ms - card.poll.boot_ms + self.age_ms
        reading = card.poll.readings.get(quantity)
        if reading is None or reading.status is not ReadingStatus.OK:
            return None
        return reading.value if age_ms <= max(FRESH_MS, 2 * self.snapshot.protocol.poll_ms) else None
