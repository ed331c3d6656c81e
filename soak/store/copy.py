"""Every run of one database into another, of whatever kind: all rows or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from soak.core.errors import CannotRun, ConfigError
from soak.store import mapping
from soak.store.db import Database, count_rows, refusing

ROWS_AT_ONCE = 1_000
IDS_TOLD = 5


@dataclass(frozen=True, slots=True)
class Copied:
    """The runs, newest first, and how many rows of each table went over."""

    run_ids: tuple[str, ...]
    rows: Mapping[str, int]


def copy_runs(source: Database, target: Database) -> Copied:
    """Copies all runs of one instant; leases are nobody's evidence and stay.

    The source is read only, the target raised to this version. ConfigError where the target holds a run of
    the same id (then nothing is written), CannotRun where either cannot be used.
    """
    source.check_current()
    target.upgrade()
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
