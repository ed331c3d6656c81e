"""Which table each record is a row of, and its key there: what replaces what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

from soak.core.records import (
    Attempt,
    Finding,
    GradientCheck,
    Incident,
    IntegrityCheck,
    Rotation,
    RunInfo,
    RunRecord,
    Slot,
)

Record: TypeAlias = RunInfo | Attempt | Slot | Rotation | GradientCheck | IntegrityCheck | Incident | Finding
Key: TypeAlias = tuple[str, Any]  # the table, and the row's key in it

_SUBJECT = attrgetter("attempt", "index", "gpu")
_KEYS: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    RunInfo: ("run", attrgetter("run_id")),
    Attempt: ("attempt", attrgetter("number")),
    Slot: ("sample", _SUBJECT),
    Rotation: ("rotation", _SUBJECT),
    GradientCheck: ("gradient_check", _SUBJECT),
    IntegrityCheck: ("integrity_check", attrgetter("attempt", "rotation", "gpu")),
    Incident: ("incident", attrgetter("attempt", "seq")),
    Finding: ("finding", attrgetter("gpu", "criterion")),
}
RUN_TABLES = (
    "run",
    "attempt",
    "device",
    "sample",
    "rotation",
    "gradient_check",
    "integrity_check",
    "incident",
    "finding",
)  # what `RunRecord.rows` and `Closing.rows` count; leases are nobody's evidence


def key_of(record: Record) -> Key:
    """The row that this record is; sorted by it, the rows of a table are in the order of their time.

    TypeError for anything that is no record of a run.
    """
    try:
        table, key = _KEYS[type(record)]
    except KeyError:
        raise TypeError(f"{type(record).__name__} is no record that a store keeps") from None
    return table, key(record)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in the list of runs: what it is, and how its last attempt stands."""

    info: RunInfo
    n_attempts: int
    attempt: Attempt | None  # the last; None before the first
    findings: tuple[Finding, ...]  # as concluded live at the end; empty before


def assemble(records: Iterable[Record], rows: Mapping[str, int]) -> RunRecord:
    """The run made of these records, each table in the order of its keys; one of them is its RunInfo."""
    tables: dict[str, list[Any]] = {table: [] for table in RUN_TABLES}
    for record in sorted(records, key=key_of):
        tables[key_of(record)[0]].append(record)
    (info,) = tables["run"]
    return RunRecord(
        info=info,
        attempts=tuple(tables["attempt"]),
        slots=tuple(tables["sample"]),
        rotations=tuple(tables["rotation"]),
        gradient_checks=tuple(tables["gradient_check"]),
        integrity_checks=tuple(tables["integrity_check"]),
        incidents=tuple(tables["incident"]),
        findings=tuple(tables["finding"]),
        rows=dict(rows),
    )
