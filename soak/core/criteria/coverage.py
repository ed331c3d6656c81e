"""coverage: the run was observed for 99 % of its time, and its record is complete. It never fails."""

from __future__ import annotations

from typing import ClassVar

from soak.core.criteria.base import Card, Conclusion, Evidence, Standing
from soak.core.records import Slot, State


class Coverage:
    name: ClassVar[str] = "coverage"

    def __init__(self, card: Card) -> None:
        self._card = card
        self._observed_ms = 0

    def fold(self, record: Evidence) -> None:
        if isinstance(record, Slot):
            self._observed_ms += record.observed_ms

    def conclude(self, standing: Standing) -> Conclusion:
        limits, elapsed_ms = self._card.protocol.limits, standing.elapsed_ms
        share = self._observed_ms / elapsed_ms if elapsed_ms > 0 else None
        missed_ms = elapsed_ms - self._observed_ms
        enough = self._observed_ms > 0 and (
            self._observed_ms >= limits.coverage_min * elapsed_ms or missed_ms <= self._card.two_polls_ms
        )
        reason = f"{self._observed_ms / 1000:.0f} of {elapsed_ms / 1000:.0f} s observed"
        if standing.ended and standing.closing != "":
            closing = standing.closing or "there is no closing record"
            state, reason = State.UNKNOWN, f"{reason}; {closing}"
        else:
            state = State.PASS if enough else State.UNKNOWN
            if enough and share is not None and share < limits.coverage_min:
                reason = f"{reason}; two polls may be lost in any run"
        return Conclusion(state, reason, value=share, threshold=limits.coverage_min, unit="of the time")
