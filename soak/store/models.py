"""The tables. Natural keys; times as whole milliseconds; what people ask for in SQL as plain columns.

`*_utc_ms` is milliseconds since 1970 UTC; any other `*_ms` is elapsed time since the attempt's t0. Whole
maps are kept as JSON text (`soak.store.codec`). A *derived* column repeats a value of such a map; nothing is
read back from it. Rows hang on their run alone: the rows of an attempt may arrive in any order.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from sqlalchemy import BigInteger, Boolean, Dialect, Float, ForeignKey, MetaData, Text, TypeDecorator
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Words(TypeDecorator[str]):
    """Text of any origin; what a database cannot hold (lone surrogates, NUL) is written as an escape."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")


class _AsGiven(Float[float]):
    """Hands over what it is given, text too."""

    def bind_processor(self, dialect: Dialect) -> None:  # noqa: ARG002 (SQLAlchemy's signature)
        return None


class Number(TypeDecorator[float]):
    """A float that may be NaN. SQLite would turn NaN into NULL; there it is kept as the text 'nan'."""

    impl = _AsGiven
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> Any:
        if value is not None and dialect.name == "sqlite" and math.isnan(value):
            return "nan"
        return value

    def process_result_value(self, value: Any, _dialect: Dialect) -> float | None:
        return None if value is None else float(value)


class Big(TypeDecorator[int]):
    """A whole number that may need more than 64 bits, as decimal digits."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: int | None, _dialect: Dialect) -> str | None:
        return None if value is None else str(value)

    def process_result_value(self, value: Any, _dialect: Dialect) -> int | None:
        return None if value is None else int(value)


class Base(DeclarativeBase):
    """Every whole number has 64 bits, whatever the database's own INTEGER is."""

    type_annotation_map = {int: BigInteger, float: Number, str: Words, bool: Boolean}  # noqa: RUF012 - SQLAlchemy's
    metadata = MetaData(
        naming_convention={"pk": "pk_%(table_name)s", "fk": "fk_%(table_name)s_%(column_0_name)s"}
    )


Json = Annotated[str, mapped_column(Text)]
_RunKey = Annotated[str, mapped_column(Words, ForeignKey("run.run_id", ondelete="CASCADE"), primary_key=True)]
_Key = Annotated[int, mapped_column(BigInteger, primary_key=True, autoincrement=False)]
_Name = Annotated[str, mapped_column(Words, primary_key=True)]


class RunRow(Base):
    """A `RunInfo`, without its devices."""

    __tablename__ = "run"

    run_id: Mapped[_Name]
    created_utc_ms: Mapped[int]
    host_id: Mapped[str]
    profile: Mapped[str]
    profile_reason: Mapped[str]
    seed: Mapped[int]
    kernel: Mapped[str]
    simulated: Mapped[bool]
    config: Mapped[Json]
    waived: Mapped[Json]
    labels: Mapped[Json]
    versions: Mapped[Json]


class AttemptRow(Base):
    """An `Attempt`. `dropped`: rows of it that never reached the store; `closing` repeats it at the end."""

    __tablename__ = "attempt"

    run_id: Mapped[_RunKey]
    attempt: Mapped[_Key]
    started_utc_ms: Mapped[int]
    boot_id: Mapped[str]
    stretches: Mapped[Json]
    elapsed_ms: Mapped[int]
    ended_utc_ms: Mapped[int | None]
    outcome: Mapped[str]
    reason: Mapped[str]
    closing: Mapped[Json | None]
    dropped: Mapped[int] = mapped_column(server_default="0")


class DeviceRow(Base):
    """A `Device` of a run; `position` is its place among them."""

    __tablename__ = "device"

    run_id: Mapped[_RunKey]
    gpu: Mapped[_Name]
    position: Mapped[int]
    vendor: Mapped[str]
    runtime_index: Mapped[int]
    model: Mapped[str | None]
    arch: Mapped[str | None]
    uuid: Mapped[str | None]
    driver: Mapped[str | None]
    vbios: Mapped[str | None]
    memory_total_bytes: Mapped[int | None]
    temperature_sensor: Mapped[str | None]
    slowdown_c: Mapped[float | None]
    power_cap_w: Mapped[float | None]
    supported: Mapped[Json]
    ecc: Mapped[Json]
    ecc_baseline: Mapped[Json]
    notes: Mapped[Json]
    kernel: Mapped[str]
    kernel_reason: Mapped[str]
    load: Mapped[Json]


class SampleRow(Base):
    """A `Slot`: one card over one sampling interval."""

    __tablename__ = "sample"

    run_id: Mapped[_RunKey]
    attempt: Mapped[_Key]
    gpu: Mapped[_Name]
    slot: Mapped[_Key]
    start_ms: Mapped[int]
    end_ms: Mapped[int]
    utc_ms: Mapped[int]
    closed: Mapped[bool]
    n_polls: Mapped[int]
    observed_ms: Mapped[int]
    in_spec_ms: Mapped[int]
    suspect_ms: Mapped[int]
    bad_ms: Mapped[int]
    throttled_ms: Mapped[int]
    first_bad_ms: Mapped[int | None]
    ecc_doubt: Mapped[str]
    stats: Mapped[Json]
    missing: Mapped[Json]
    ecc: Mapped[Json | None]
    ecc_raw: Mapped[Json]
    # derived
    utilisation_min_pct: Mapped[float | None]
    utilisation_mean_pct: Mapped[float | None]
    utilisation_p05_pct: Mapped[float | None]
    temperature_edge_mean_c: Mapped[float | None]
    temperature_junction_mean_c: Mapped[float | None]
    temperature_memory_mean_c: Mapped[float | None]
    temperature_core_mean_c: Mapped[float | None]
    power_mean_w: Mapped[float | None]
    clock_core_mean_hz: Mapped[float | None]
    clock_memory_mean_hz: Mapped[float | None]
    memory_total_bytes: Mapped[int | None]
    memory_free_bytes: Mapped[int | None]  # at the end of the slot
    ecc_corrected: Mapped[int | None]  # errors since t0
    ecc_deferred: Mapped[int | None]
    ecc_uncorrected: Mapped[int | None]


class RotationRow(Base):
    """A `Rotation` of one card."""

    __tablename__ = "rotation"

    run_id: Mapped[_RunKey]
    attempt: Mapped[_Key]
    gpu: Mapped[_Name]
    rotation: Mapped[_Key]
    start_ms: Mapped[int]
    seq_len: Mapped[int]
    causal: Mapped[bool]
    seed: Mapped[int]
    kernel: Mapped[str]
    golden: Mapped[str]
    n_steps: Mapped[int]
    flops: Mapped[int] = mapped_column(Big)  # a day of one rotation exceeds 64 bits


class GradientCheckRow(Base):
    """A `GradientCheck` of one card; check `number` is due at number * interval."""

    __tablename__ = "gradient_check"

    run_id: Mapped[_RunKey]
    attempt: Mapped[_Key]
    gpu: Mapped[_Name]
    number: Mapped[_Key]
    due_ms: Mapped[int]
    at_ms: Mapped[int]
    rotation: Mapped[int]
    seq_len: Mapped[int]
    causal: Mapped[bool]
    seed: Mapped[int]
    slices: Mapped[Json]
    errors: Mapped[Json]
    input_std: Mapped[Json]
    dtype: Mapped[str]
    duration_ms: Mapped[int]
    golden_proved: Mapped[bool | None]
    # derived
    dq_max_abs: Mapped[float | None]
    dk_max_abs: Mapped[float | None]
    dv_max_abs: Mapped[float | None]
    n_nonfinite: Mapped[int | None]


class IntegrityCheckRow(Base):
    """An `IntegrityCheck`: the comparisons of one rotation on one card."""

    __tablename__ = "integrity_check"

    run_id: Mapped[_RunKey]
    attempt: Mapped[_Key]
    gpu: Mapped[_Name]
    rotation: Mapped[_Key]
    n_due: Mapped[int]
    n: Mapped[int]
    mismatches: Mapped[int]
    at_ms: Mapped[int]


class IncidentRow(Base):
    """An `Incident`; `gpu` NULL: the run as a whole."""

    __tablename__ = "incident"

    run_id: Mapped[_RunKey]
    attempt: Mapped[_Key]
    seq: Mapped[_Key]
    at_ms: Mapped[int]
    utc_ms: Mapped[int]
    kind: Mapped[str]
    gpu: Mapped[str | None]
    detail: Mapped[str]
    data: Mapped[Json]


class FindingRow(Base):
    """A `Finding`, as concluded live at the end."""

    __tablename__ = "finding"

    run_id: Mapped[_RunKey]
    gpu: Mapped[_Name]
    criterion: Mapped[_Name]
    required: Mapped[bool]
    state: Mapped[str]
    value: Mapped[float | None]
    threshold: Mapped[float | None]
    unit: Mapped[str]
    reason: Mapped[str]
    cause: Mapped[str | None]
    waived: Mapped[bool]
    at_ms: Mapped[int | None]


class LeaseRow(Base):
    """Who holds a run or a card (`soak.store.lease`). No part of a run: it is neither counted nor copied."""

    __tablename__ = "lease"

    name: Mapped[_Name]  # run:<id>, card:<host id>/<gpu>
    host_id: Mapped[str]
    boot_id: Mapped[str]
    pid_namespace: Mapped[int]
    pid: Mapped[int]
    pid_start: Mapped[int]
    renewed_boot_ms: Mapped[int]  # CLOCK_BOOTTIME of that boot
    renewed_utc_ms: Mapped[int]
