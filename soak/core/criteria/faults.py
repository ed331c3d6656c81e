"""faults: the card neither crashed its worker nor vanished nor stopped working.

What counts is in `core.incidents`; the judge lays incidents over every criterion alike, so that this one has
nothing to add: without an incident there was no fault.
"""

from __future__ import annotations

from typing import ClassVar

from soak.core.criteria.base import Card, Conclusion, Evidence, Standing
from soak.core.incidents import KINDS
from soak.core.records import Incident, State


class Faults:
    name: ClassVar[str] = "faults"

    def __init__(self, card: Card) -> None:
        self._card = card
        self._n = 0

    def fold(self, record: Evidence) -> None:
        if isinstance(record, Incident) and KINDS[record.kind].criterion == self.name:
            self._n += 1

    def conclude(self, standing: Standing) -> Conclusion:
        if standing.elapsed_ms <= 0:
            return Conclusion(State.UNKNOWN, "the run has not begun", unit="incidents")
        return Conclusion(State.PASS, "none", value=float(self._n), threshold=0.0, unit="incidents")
