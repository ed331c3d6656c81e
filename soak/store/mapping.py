"""Records to rows and back, without loss. A field is a column of the same name unless said otherwise here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Table, select
from sqlalchemy.engine import Connection

from soak.core.records import (
    Attempt,
    Device,
    Finding,
    GradientCheck,
    Incident,
    IntegrityCheck,
    Quantity,
    Rotation,
    RunInfo,
    Slot,
)
from soak.store.codec import from_json, to_json
from soak.store.models import (
    AttemptRow,
    Base,
    DeviceRow,
    FindingRow,
    GradientCheckRow,
    IncidentRow,
    IntegrityCheckRow,
    RotationRow,
    RunRow,
    SampleRow,
)

R = TypeVar("R")


@dataclass(frozen=True)
class RowMap(Generic[R]):
    """How one type of record lies in its table.

    `columns`: field -> column where the names differ. `json`: fields kept as JSON text. `derived`: columns
    made for people's queries, never read back.
    """

    record: type[R]
    model: type[Base]
    columns: Mapping[str, str] = field(default_factory=dict)
    json: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    derived: Callable[[R], Mapping[str, Any]] | None = None

    @property
    def table(self) -> Table:
        table = self.model.__table__
        assert isinstance(table, Table)
        return table

    def fields(self) -> list[tuple[str, str, bool]]:
        """(field, column, whether it is JSON) of every field that is kept."""
        return [
            (f.name, self.columns.get(f.name, f.name), f.name in self.json)
            for f in dataclasses.fields(self.record)  # type: ignore[arg-type]  # always a dataclass
            if f.name not in self.left_out
        ]

    def to_rows(self, run_id: str, records: Sequence[R]) -> list[dict[str, Any]]:
        """One dict of column values a record."""
        plan = self.fields()
        rows = []
        for record in records:
            row: dict[str, Any] = {"run_id": run_id}
            for name, column, as_json in plan:
                value = getattr(record, name)
                row[column] = to_json(value) if as_json and value is not None else value
            if self.derived is not None:
                row.update(self.derived(record))
            rows.append(row)
        return rows

    def read(self, connection: Connection, *where: ColumnElement[bool], **extra: Any) -> list[R]:
        """The records of the rows that match, in the key's order; `extra` gives the fields left out."""
        plan = self.fields()
        query = select(*(self.table.c[column] for _, column, _ in plan)).where(*where)
        found = []
        for row in connection.execute(query.order_by(*self.table.primary_key.columns)):
            values: dict[str, Any] = dict(extra)
            for (name, _, as_json), value in zip(plan, row, strict=True):
                values[name] = from_json(value) if as_json and value is not None else value
            found.append(msgspec.convert(values, self.record))
        return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _fitting(value: int | None) -> int | None:
    """A whole number that a column can hold; what is beyond is kept in the JSON alone."""
    return value if value is not None and abs(value) < 1 << 63 else None


def _sample_columns(slot: Slot) -> dict[str, Any]:
    stats, ecc = slot.stats, slot.ecc or {}

    def of(quantity: Quantity, figure: str = "mean") -> float | None:
        return _finite(getattr(stats[quantity], figure)) if quantity in stats else None

    def bytes_of(quantity: Quantity) -> int | None:
        last = of(quantity, "last")
        return None if last is None else _fitting(int(last))

    return {
        "utilisation_min_pct": of(Quantity.UTILISATION_PCT, "min"),
        "utilisation_mean_pct": of(Quantity.UTILISATION_PCT),
        "utilisation_p05_pct": of(Quantity.UTILISATION_PCT, "p05"),
        "temperature_edge_mean_c": of(Quantity.TEMPERATURE_EDGE_C),
        "temperature_junction_mean_c": of(Quantity.TEMPERATURE_JUNCTION_C),
        "temperature_memory_mean_c": of(Quantity.TEMPERATURE_MEMORY_C),
        "temperature_core_mean_c": of(Quantity.TEMPERATURE_CORE_C),
        "power_mean_w": of(Quantity.POWER_W),
        "clock_core_mean_hz": of(Quantity.CLOCK_CORE_HZ),
        "clock_memory_mean_hz": of(Quantity.CLOCK_MEMORY_HZ),
        "memory_total_bytes": bytes_of(Quantity.MEMORY_TOTAL_BYTES),
        "memory_free_bytes": bytes_of(Quantity.MEMORY_FREE_BYTES),
        "ecc_corrected": _fitting(ecc.get("corrected")),
        "ecc_deferred": _fitting(ecc.get("deferred")),
        "ecc_uncorrected": _fitting(ecc.get("uncorrected")),
    }


def _gradient_columns(check: GradientCheck) -> dict[str, Any]:
    worst = {error.tensor: error.max_abs for error in check.errors}
    return {
        "dq_max_abs": worst.get("dq"),
        "dk_max_abs": worst.get("dk"),
        "dv_max_abs": worst.get("dv"),
        "n_nonfinite": _fitting(sum(error.n_nonfinite for error in check.errors)),
    }


RUN = RowMap(
    RunInfo,
    RunRow,
    json=frozenset({"config", "waived", "labels", "versions"}),
    left_out=frozenset({"devices"}),
)
ATTEMPT = RowMap(
    Attempt,
    AttemptRow,
    columns={"number": "attempt", "end": "outcome"},
    json=frozenset({"stretches", "closing"}),
)
DEVICE = RowMap(
    Device,
    DeviceRow,
    columns={"index": "runtime_index"},
    json=frozenset({"supported", "ecc", "ecc_baseline", "notes", "load"}),
)
SAMPLE = RowMap(
    Slot,
    SampleRow,
    columns={"index": "slot"},
    json=frozenset({"stats", "missing", "ecc", "ecc_raw"}),
    derived=_sample_columns,
)
ROTATION = RowMap(Rotation, RotationRow, columns={"index": "rotation"})
GRADIENT_CHECK = RowMap(
    GradientCheck,
    GradientCheckRow,
    columns={"index": "number"},
    json=frozenset({"slices", "errors", "input_std"}),
    derived=_gradient_columns,
)
INTEGRITY_CHECK = RowMap(IntegrityCheck, IntegrityCheckRow)
INCIDENT = RowMap(Incident, IncidentRow, json=frozenset({"data"}))
FINDING = RowMap(Finding, FindingRow)

MAPS: tuple[RowMap[Any], ...] = (
    RUN,
    ATTEMPT,
    DEVICE,
    SAMPLE,
    ROTATION,
    GRADIENT_CHECK,
    INTEGRITY_CHECK,
    INCIDENT,
    FINDING,
)  # in the order of `keys.RUN_TABLES`: a run before what hangs on it


def device_rows(run_id: str, devices: Sequence[Device]) -> list[dict[str, Any]]:
    """A run's cards as rows, each with its place among them."""
    rows = DEVICE.to_rows(run_id, devices)
    return [row | {"position": position} for position, row in enumerate(rows)]


def read_devices(connection: Connection, run_id: str) -> tuple[Device, ...]:
    """A run's cards in the order in which the run named them."""
    table = DEVICE.table
    by_gpu = {d.gpu: d for d in DEVICE.read(connection, table.c.run_id == run_id)}
    order = select(table.c.gpu).where(table.c.run_id == run_id).order_by(table.c.position)
    return tuple(by_gpu[gpu] for gpu in connection.scalars(order))
