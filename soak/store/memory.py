"""A store in memory, for campaigns of simulated runs and for tests. It ends with its process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from soak.core.ports import Clock, Happening
from soak.core.records import Attempt, Closing, RunRecord
from soak.store.backlog import Backlog, Outages
from soak.store.keys import RUN_TABLES, Key, Record, assemble, key_of


class MemoryStore:
    """A `Store` (soak.core.ports) for the rows of one run. While `away` is set it refuses writes."""

    def __init__(self, clock: Clock, *, limit_rows: int = 50_000) -> None:
        self.away = ""  # why the store refuses; "" while it works
        self._records: dict[Key, Record] = {}
        self._limit_rows = limit_rows
        self._backlog = Backlog(limit_rows)
        self._outages = Outages(clock, "memory")

    @property
    def rows_waiting(self) -> int:
        """Rows that are not stored yet."""
        return len(self._backlog)

    def write(self, *records: Any) -> None:
        """Takes records of the run; one with a known key replaces it. TypeError for anything else."""
        for record in records:
            if self.away or self.rows_waiting:
                self._outages.dropped(self._backlog.put(record), self._limit_rows)
            else:
                self._records[key_of(record)] = record
        self.flush(0)

    def flush(self, deadline_ms: int) -> bool:  # noqa: ARG002 (nothing here takes time)
        """Whether everything is stored."""
        if not self.rows_waiting:
            return True
        if self.away:
            self._outages.failed(self.away, self.rows_waiting)
            return False
        arrived = self._backlog.take(self.rows_waiting)
        self._records.update((key_of(record), record) for record in arrived)
        self._backlog.arrived()
        self._outages.worked(len(arrived))
        return True

    def take(self) -> Sequence[Happening]:
        """What happened to the store since the last call."""
        return self._outages.take()

    def close_attempt(self, attempt: Attempt, deadline_ms: int) -> Attempt | None:
        """Stores the attempt with its closing record; None while away."""
        self.write(attempt)
        if not self.flush(deadline_ms):
            return None
        closing = Closing(rows=self._count(), dropped=self._backlog.dropped[attempt.number])
        closed = replace(attempt, closing=closing)
        self.write(closed)
        return closed

    def record(self) -> RunRecord:
        """The run as stored."""
        return assemble(self._records.values(), self._count())

    def _count(self) -> dict[str, int]:
        counts = Counter(table for table, _ in self._records)
        (info,) = (record for (table, _), record in self._records.items() if table == "run")
        counts["device"] = len(getattr(info, "devices", ()))
        return {table: counts[table] for table in RUN_TABLES}
