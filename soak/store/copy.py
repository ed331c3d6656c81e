"""Every run of one database into another, of whatever kind: all rows or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select

from soak.core.errors import CannotRun, ConfigError
from soak.store import mapping
from soak.store.db import Database, count_rows, refusing, sqlite_path
from soak.store.folder import prepare_folder

ROWS_AT_ONCE = 1_000
IDS_TOLD = 5
_OF_A_FILE = ("", "-wal", "-shm", "-journal", ".migrating")  # what SQLite and we put at its path


@dataclass(frozen=True, slots=True)
class Copied:
    """The runs, newest first, and how many rows of each table went over."""

    run_ids: tuple[str, ...]
    rows: Mapping[str, int]


@contextmanager
def copy_target(url: str) -> Iterator[Database]:
    """The database to copy into, made where it is missing. What fails in the context leaves no room taken: a
    file that was made here goes again, one that was there gives back that of the undone rows."""
    path = sqlite_path(url)
    is_made = path is not None and _make(path)
    try:
        with Database.open(url) as target:
            try:
                yield target
            except BaseException:
                target.truncate_log()
                raise
    except BaseException:
        if path is not None and is_made and not _holds_runs(url):
            for ending in _OF_A_FILE:
                path.with_name(path.name + ending).unlink(missing_ok=True)
        raise


def _make(path: Path) -> bool:
    """Whether the file was not there; it is now, and empty, so that it is known whose it is."""
    prepare_folder(path.parent)
    try:
        path.touch(0o644, exist_ok=False)
    except OSError:  # it is there, or opening it will say what is wrong
        return False
    return True


def _holds_runs(url: str) -> bool:
    """Whether another program has put some there since, or the copy was whole before it was stopped."""
    try:
        with Database.open(url, readonly=True) as database:
            return bool(database.runs())
    except CannotRun:  # not even a table
        return False


def copy_runs(source: Database, target: Database) -> Copied:
    """Copies all runs of one instant; leases are nobody's evidence and stay.

    The source is read only, the target raised to this version. ConfigError where the target holds a run of
    the same id (then nothing is written), CannotRun where either cannot be used.
    """
    source.check_current()
    target.upgrade()
    target.truncate_log()  # what cannot go into the file later, on a full disk, would hold undone rows there
    with refusing(source), source.read() as origin:
        ids = {info.run_id: info.created_utc_ms for info in mapping.RUN.read(origin, devices=())}
        with refusing(target), target.write() as copy:
            known = {info.run_id for info in mapping.RUN.read(copy, devices=())}
            _refuse_known(sorted(known & ids.keys()), target.where)
            rows = {rows.table.name: _copy_table(origin, copy, rows) for rows in mapping.MAPS}
            for run_id in ids:
                _require_whole(run_id, count_rows(origin, run_id), count_rows(copy, run_id))
    return Copied(tuple(sorted(ids, key=lambda run_id: (ids[run_id], run_id), reverse=True)), rows)


def _refuse_known(both: list[str], where: str) -> None:
    if both:
        some = ", ".join(both[:IDS_TOLD]) + (f" and {len(both) - IDS_TOLD} more" if both[IDS_TOLD:] else "")
        raise ConfigError(
            f"{where} holds {some} already; copy into another database, or remove them there first."
        )


def _copy_table(origin: Connection, copy: Connection, rows: mapping.RowMap[Any]) -> int:
    """Values as Python has them, so that each kind of database writes them its own way."""
    n_rows = 0
    found = origin.execution_options(yield_per=ROWS_AT_ONCE).execute(select(rows.table))
    for part in found.mappings().partitions(ROWS_AT_ONCE):
        copy.execute(insert(rows.table), [dict(row) for row in part])
        n_rows += len(part)
    return n_rows


def _require_whole(run_id: str, there: Mapping[str, int], here: Mapping[str, int]) -> None:
    """CannotRun, which undoes the copy, where a row was lost on the way."""
    if there != here:
        raise CannotRun(
            f"Run {run_id} has {sum(there.values())} rows, its copy {sum(here.values())}; nothing was copied."
        )
