"""continuity: the planned length was reached in one uninterrupted stretch. It never fails."""

from __future__ import annotations

from typing import ClassVar

from soak.core.criteria.base import Card, Conclusion, Evidence, Standing
from soak.core.records import State


class Continuity:
    name: ClassVar[str] = "continuity"

    def __init__(self, card: Card) -> None:
        self._card = card

    def fold(self, record: Evidence) -> None:
        """What breaks continuity is a stretch, or an incident that the judge lays over it."""

    def conclude(self, standing: Standing) -> Conclusion:
        protocol, n = self._card.protocol, len(self._card.stretches)
        hours = f"{standing.elapsed_ms / 3_600_000:.2f} of {protocol.duration_ms / 3_600_000:.2f} h"
        if n > 1:
            state, reason = State.UNKNOWN, f"{hours}, in {n} stretches"
        elif not standing.ended:
            state, reason = State.UNKNOWN, f"{hours}; the run goes on"
        elif not standing.is_complete(protocol):
            state, reason = State.UNKNOWN, f"ended after {hours}"
        else:
            state, reason = State.PASS, f"{hours} in one stretch"
        value = standing.elapsed_ms / 1000
        return Conclusion(state, reason, value=value, threshold=protocol.duration_ms / 1000, unit="s")
