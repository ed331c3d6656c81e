"""The incidents of an attempt: numbered, stamped, counted without end, stored within a bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from soak.core.ports import Clock, Happening
from soak.core.records import Incident

ROWS_MAX = 100  # per card and kind; further ones are counted, not stored: one is enough to decide
RECENT = 20


class Journal:
    """Turns happenings into incidents of one attempt. `stored`: those that the attempt already has."""

    def __init__(self, attempt: int, clock: Clock, stored: Iterable[Incident] = ()) -> None:
        self._attempt, self._clock = attempt, clock
        self._next_seq = 1 + max((i.seq for i in stored if i.attempt == attempt), default=-1)
        self._counts: dict[tuple[str | None, str], int] = {}
        self.recent: tuple[Incident, ...] = ()

    @property
    def counts(self) -> Mapping[tuple[str | None, str], int]:
        """How many there were, by (gpu, kind)."""
        return dict(self._counts)

    def record(self, happening: Happening, at_ms: int) -> Incident | None:
        """The incident, or None beyond the bound of its card and kind."""
        key = (happening.gpu, happening.kind)
        self._counts[key] = self._counts.get(key, 0) + 1
        if self._counts[key] > ROWS_MAX:
            return None
        incident = Incident(
            attempt=self._attempt,
            seq=self._next_seq,
            at_ms=at_ms,
            utc_ms=self._clock.utc_ms() - (self._clock.boot_ms() - happening.boot_ms),
            kind=happening.kind,
            gpu=happening.gpu,
            detail=happening.detail,
            data=dict(happening.data),
        )
        self._next_seq += 1
        self.recent = (*self.recent[1 - RECENT :], incident)
        return incident
