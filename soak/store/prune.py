"""Old runs out of a database: which, and their removal. A run that a daemon holds stays."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import delete

from soak.core.errors import CannotRun
from soak.store import mapping
from soak.store.db import Database, explain, refusing
from soak.store.keys import RunSummary
from soak.store.lease import Lease

DAY_MS = 24 * 3_600_000
_KEEP = re.compile(r"([0-9]{1,6})(d?)")


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays: the newest `n_runs`, or what was at work in the last `age_ms`; one of the two."""

    n_runs: int | None = None
    age_ms: int | None = None

    @classmethod
    def parse(cls, text: str) -> Keep:
        """From `20` (runs) or `30d` (days). Raises ValueError."""
        found = _KEEP.fullmatch(text)
        if found is None:
            raise ValueError(text)
        number = int(found[1])
        return cls(age_ms=number * DAY_MS) if found[2] else cls(n_runs=number)


def old_runs(runs: Sequence[RunSummary], keep: Keep, now_utc_ms: int) -> list[RunSummary]:
    """Those that do not stay, newest first; `runs` as `Database.runs` gives them."""
    if keep.n_runs is not None:
        return list(runs[keep.n_runs :])
    assert keep.age_ms is not None
    return [run for run in runs if now_utc_ms - last_at_work_utc_ms(run) > keep.age_ms]


def last_at_work_utc_ms(run: RunSummary) -> int:
    """When its last attempt ended; began, where it has no end; when it was created, where there is none."""
    attempt = run.attempt
    if attempt is None:
        return run.info.created_utc_ms
    return max(run.info.created_utc_ms, attempt.ended_utc_ms or attempt.started_utc_ms)


@contextmanager
def held(lease: Lease, run_id: str) -> Iterator[bool]:
    """Whether nobody else has the run; while the context lasts it is held, so that no daemon takes it up."""
    try:
        lease.acquire(run_id, [])
    except CannotRun:
        yield False
        return
    try:
        yield True
    finally:
        lease.release()


def remove(database: Database, lease: Lease, run_ids: Sequence[str]) -> tuple[list[str], int]:
    """Removes each run with all its rows; those removed, and how many rows that was. A run that a daemon
    holds by now stays. CannotRun where the database cannot be written."""
    removed, n_rows = [], 0
    for run_id in run_ids:
        with held(lease, run_id) as is_ours:
            if not is_ours:
                continue
            with refusing(database), database.write() as connection:
                for rows in reversed(mapping.MAPS):  # what hangs on a run before the run
                    gone = connection.execute(delete(rows.table).where(rows.table.c.run_id == run_id))
                    n_rows += gone.rowcount
        removed.append(run_id)
    return removed, n_rows


def vacuum(database: Database) -> str:
    """Gives the room of removed rows back to the disk; "" where that was done, else why it was not.

    PostgreSQL does it by itself.
    """
    if database.path is None:
        return ""
    why_not = ""
    connection = database.engine.raw_connection()
    try:
        connection.cursor().execute("VACUUM")
    except sqlite3.Error as error:
        why_not = explain(error)
    finally:
        connection.close()
    kept_log = database.truncate_log()  # also of what an undone VACUUM left there
    return why_not or kept_log
