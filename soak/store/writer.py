"""The one writer of a run's rows: they wait here, one a key, and go to the database in few transactions.

write() -> Backlog -> (writer thread) one transaction a batch -> database
              ^ what did not arrive comes back, and is tried again later and later
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sqlalchemy import Connection, Insert, delete, select, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects import sqlite as sqlite_dialect
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from soak.core.ports import Clock, Happening
from soak.core.records import Attempt, Closing, RunInfo
from soak.store import mapping
from soak.store.backlog import Backlog, Outages, is_final
from soak.store.db import Database, StoreAway, count_rows, explain
from soak.store.keys import Record, key_of

_AWAY = (SQLAlchemyError, sqlite3.Error, OSError, StoreAway)  # try again later
_REFUSED = (IntegrityError, DataError, OverflowError, TypeError, ValueError)  # this row will never fit
_LEASE_EVERY_MS = 15_000
_NO_PAGE_LIMIT = 4_294_967_294  # SQLite's own


class Lease(Protocol):
    """What the writer renews while it runs."""

    def renew(self) -> Sequence[str]:
        """The names that another holds now; empty while all is well."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long rows wait, and how many may."""

    commit_ms: int = 1_000  # a closed slot, a check, an incident
    open_rows_ms: int = 5_000  # a row that is about to be replaced: the open slot, a heartbeat
    retry_first_ms: int = 1_000
    retry_most_ms: int = 15_000
    batch_rows: int = 2_000  # in one transaction
    limit_rows: int = 50_000  # waiting


SIMULATED_PACE = Pace(commit_ms=300_000, open_rows_ms=300_000, retry_first_ms=10_000, retry_most_ms=60_000)


class Writer:
    """A `Store` (soak.core.ports) over a database, for the rows of one run.

    `threaded`: a thread of its own writes and `write` returns at once. Without it `write` itself writes when
    rows are due by the clock: the same calls give the same transactions (the simulator). The first record
    of a new run is its RunInfo, since all others hang on it.
    """

    def __init__(
        self,
        database: Database,
        run_id: str,
        clock: Clock,
        *,
        threaded: bool = True,
        pace: Pace | None = None,
        lease: Lease | None = None,
    ) -> None:
        self._database = database
        self._run_id = run_id
        self._clock = clock
        self._pace = pace or (Pace() if threaded else SIMULATED_PACE)
        self._lease = lease
        self._lease_due_ms = clock.boot_ms() + _LEASE_EVERY_MS
        self._backlog = Backlog(self._pace.limit_rows)
        self._outages = Outages(clock, database.where)
        self._upserts = _upserts(database.engine.dialect.name)
        self._due_ms: int | None = None  # when the rows that wait are to be written
        self._retry_ms = self._pace.retry_first_ms
        self._dropped_before: dict[int, int] = {}  # by attempt, as the database said first
        self._page_limit: int | None = None
        self._changed = threading.Condition()  # guards everything here but the database
        self._n_waiting_for = 0  # callers inside flush and close_attempt
        self._closing: Attempt | None = None
        self._closed: Attempt | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None
        if threaded:  # a daemon: a database that never answers does not hold up the end of the process
            self._thread = threading.Thread(target=self._loop, name="soak-store", daemon=True)
            self._thread.start()

    @property
    def rows_waiting(self) -> int:
        """Rows that are not in the database yet."""
        with self._changed:
            return len(self._backlog)

    def write(self, *records: Any) -> None:
        """Takes records of the run; one with a known key replaces it. TypeError for anything else."""
        with self._changed:
            for record in records:
                n_dropped = self._backlog.put(record)
                self._outages.dropped(n_dropped, self._pace.limit_rows)
                if not self._outages.is_away:
                    wait_ms = self._pace.commit_ms if is_final(record) else self._pace.open_rows_ms
                    self._due(self._clock.boot_ms() + wait_ms)
            self._changed.notify_all()
        if self._thread is None and self._is_due(full=True):
            self._write_all()

    def flush(self, deadline_ms: int) -> bool:
        """Writes now; False where rows still wait after `deadline_ms` (without a thread: after one try)."""
        if self._thread is None:
            return self._write_all()
        with self._changed:
            return self._await(lambda: not len(self._backlog), deadline_ms)

    def take(self) -> Sequence[Happening]:
        """What happened to the store since the last call."""
        with self._changed:
            if self._thread is not None and not self._stopped and not self._thread.is_alive():
                self._outages.failed("the writer's thread ended by an error of its own", len(self._backlog))
            return self._outages.take()

    def close_attempt(self, attempt: Attempt, deadline_ms: int) -> Attempt | None:
        """Writes what waits, then the attempt with its closing record, both or nothing; None: not in time.

        The closing counts every row of the whole run, the same as `Database.load(...).rows` does; nothing
        may be written for the run after it.
        """
        if self._thread is None:
            return self._close(attempt) if self._write_all() else None
        with self._changed:
            self._closing, self._closed = attempt, None
            self._await(lambda: self._closed is not None, deadline_ms)
            self._closing = None
            return self._closed

    def close(self, deadline_ms: int) -> bool:
        """Flushes and ends the thread; False where rows were left. The database stays open."""
        flushed = self.flush(deadline_ms)
        if self._thread is not None:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            self._thread.join(deadline_ms / 1000)
        return flushed

    def limit_space(self, extra_pages: int | None) -> None:
        """The simulator's full disk: the file may grow by so many pages and no more; None frees it again.

        SQLite itself refuses (SQLITE_FULL), as it does when the disk is full.
        """
        assert self._database.path is not None, "only a file can be full"
        with self._database.read() as connection:
            n_pages: int = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        self._page_limit = _NO_PAGE_LIMIT if extra_pages is None else n_pages + extra_pages

    # --- the thread

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not (self._stopped or self._is_due() or self._is_lease_due() or self._may_close()):
                    self._changed.wait(self._pause_s())
                if self._stopped:
                    return
                closing = self._closing if self._may_close() else None
                due = self._is_due()
            if due:
                self._write_batch()
            if closing is not None:
                self._close(closing)
            self._renew_lease()

    def _may_close(self) -> bool:
        return (
            self._closing is not None
            and self._closed is None
            and not len(self._backlog)
            and (self._due_ms is None or self._is_due())  # a closing that failed waits its time
        )

    def _pause_s(self) -> float:
        """Until the next thing is due; at most a second, since a suspended machine's timers are late."""
        if self._due_ms is None:
            return 1.0
        return min(max(self._due_ms - self._clock.boot_ms(), 1) / 1000, 1.0)

    def _await(self, done: Callable[[], bool], deadline_ms: int) -> bool:
        """Hurries the thread until `done()`; False at the deadline. Called with the lock held."""
        assert self._thread is not None
        until = time.monotonic() + deadline_ms / 1000
        self._n_waiting_for += 1
        self._due_ms = self._clock.boot_ms()
        self._changed.notify_all()
        try:
            while not done():
                left = until - time.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    return False
                self._changed.wait(min(left, 0.5))
            return True
        finally:
            self._n_waiting_for -= 1

    def _is_lease_due(self) -> bool:
        return self._lease is not None and self._clock.boot_ms() >= self._lease_due_ms

    def _renew_lease(self) -> None:
        if self._lease is None or not self._is_lease_due():
            return
        self._lease_due_ms = self._clock.boot_ms() + _LEASE_EVERY_MS
        try:
            lost = self._lease.renew()
        except _AWAY as error:
            with self._changed:
                self._lease_due_ms = self._clock.boot_ms() + self._pace.retry_first_ms
                self._failed(error)
        else:
            with self._changed:
                self._worked(0)
                if lost:
                    self._outages.lost_lease(lost)

    # --- writing

    def _due(self, at_ms: int) -> None:
        self._due_ms = at_ms if self._due_ms is None else min(self._due_ms, at_ms)

    def _is_due(self, *, full: bool = False) -> bool:
        """Whether rows are to be written now; `full`: also because a whole batch waits."""
        if self._due_ms is not None and self._clock.boot_ms() >= self._due_ms:
            return True
        return full and not self._outages.is_away and len(self._backlog) >= self._pace.batch_rows

    def _write_all(self) -> bool:
        """Writes batch after batch; False where the store refused."""
        while len(self._backlog):
            if not self._write_batch():
                return False
        return True

    def _write_batch(self) -> bool:
        """One batch, one transaction. A row that can never be stored is dropped; a failed batch waits."""
        with self._changed:
            self._due_ms = None
            batch = self._backlog.take(self._pace.batch_rows)
            dropped = dict(self._backlog.dropped)
        try:
            refused = self._commit(batch, dropped) if batch else []
        except _AWAY as error:
            with self._changed:
                self._backlog.failed()
                self._failed(error)
            return False
        with self._changed:
            self._backlog.arrived()
            for record, why in refused:
                self._backlog.count_dropped(record)
                self._outages.refused(record, explain(why))
            if batch:
                self._worked(len(batch) - len(refused))
            if len(self._backlog) and self._due_ms is None:
                self._due_ms = self._clock.boot_ms()
            self._changed.notify_all()
        return True

    def _commit(self, batch: Sequence[Record], dropped: Mapping[int, int]) -> list[tuple[Record, Exception]]:
        """Stores the records; where one is refused for itself, halves the batch until it is found."""
        try:
            with self._writing() as connection:
                self._store(connection, batch)
                self._store_dropped(connection, dropped)
        except _AWAY + _REFUSED as error:
            if not _is_refusal(error):
                raise
            if len(batch) == 1:
                return [(batch[0], error)]
            middle = len(batch) // 2
            return self._commit(batch[:middle], dropped) + self._commit(batch[middle:], dropped)
        return []

    def _store(self, connection: Connection, batch: Sequence[Record]) -> None:
        by_table: dict[str, list[Record]] = {}
        for record in batch:
            by_table.setdefault(key_of(record)[0], []).append(record)
        for rows in mapping.MAPS:
            records = by_table.get(rows.table.name)
            if records:
                connection.execute(self._upserts[rows.table.name], rows.to_rows(self._run_id, records))
            for record in records or ():
                if isinstance(record, RunInfo):
                    self._store_devices(connection, record)

    def _store_devices(self, connection: Connection, info: RunInfo) -> None:
        device = mapping.DEVICE.table
        gpus = [d.gpu for d in info.devices]
        connection.execute(delete(device).where(device.c.run_id == self._run_id, device.c.gpu.not_in(gpus)))
        if gpus:
            connection.execute(self._upserts["device"], mapping.device_rows(self._run_id, info.devices))

    def _store_dropped(self, connection: Connection, dropped: Mapping[int, int]) -> None:
        """Says with each attempt how many of its rows were dropped, by this process and by those before."""
        attempt = mapping.ATTEMPT.table
        for number, n in dropped.items():
            row = attempt.c.run_id == self._run_id, attempt.c.attempt == number
            if number not in self._dropped_before:
                before = connection.execute(select(attempt.c.dropped).where(*row)).scalar()
                if before is None:
                    continue  # the attempt itself is still to come
                self._dropped_before[number] = before
            total = self._dropped_before[number] + n
            connection.execute(update(attempt).where(*row).values(dropped=total))

    def _close(self, attempt: Attempt) -> Attempt | None:
        """The attempt's last row: written, the run counted, the count written, in one transaction."""
        table = mapping.ATTEMPT.table
        row = table.c.run_id == self._run_id, table.c.attempt == attempt.number
        with self._changed:
            self._due_ms = None
            dropped = dict(self._backlog.dropped)
        try:
            with self._writing() as connection:
                self._store(connection, [attempt])
                self._store_dropped(connection, dropped)
                closed = replace(
                    attempt,
                    closing=Closing(
                        rows=count_rows(connection, self._run_id),
                        dropped=connection.execute(select(table.c.dropped).where(*row)).scalar_one(),
                    ),
                )
                self._store(connection, [closed])
        except _AWAY as error:
            with self._changed:
                self._failed(error)
            return None
        with self._changed:
            self._worked(1)
            if self._closing is attempt:  # else the caller has given up waiting
                self._closed = closed
            self._changed.notify_all()
        return closed

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._database.write() as connection:
            if self._page_limit is not None:
                connection.exec_driver_sql(f"PRAGMA max_page_count={self._page_limit}")
            yield connection

    def _failed(self, error: Exception) -> None:
        self._outages.failed(explain(error), len(self._backlog))
        hurry_ms = 250 if self._n_waiting_for else self._retry_ms
        self._due_ms = self._clock.boot_ms() + hurry_ms
        self._retry_ms = min(self._retry_ms * 2, self._pace.retry_most_ms)

    def _worked(self, n_written: int) -> None:
        self._outages.worked(n_written)
        self._retry_ms = self._pace.retry_first_ms


def _is_refusal(error: Exception) -> bool:
    """Whether the row is at fault and not the store: trying again would never help."""
    return isinstance(error, _REFUSED) or (
        isinstance(error, StatementError) and not isinstance(error, DBAPIError)  # a value of no known type
    )


def _upserts(dialect: str) -> dict[str, Insert]:
    """By table: the statement that inserts a row or replaces the one with its key."""
    insert = postgresql.insert if dialect == "postgresql" else sqlite_dialect.insert
    statements: dict[str, Insert] = {}
    for rows in mapping.MAPS:
        statement = insert(rows.table)
        key = [column.name for column in rows.table.primary_key.columns]
        # `attempt.dropped` is the writer's own count and no part of the record
        new = {c.name: statement.excluded[c.name] for c in rows.table.c if c.name not in (*key, "dropped")}
        statements[rows.table.name] = statement.on_conflict_do_update(index_elements=key, set_=new)
    return statements
