"""The first schema: runs, their rows, and leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _runs()
    _samples()
    _load()
    _events()
    _leases()


def downgrade() -> None:
    raise NotImplementedError("a database is never lowered: go back to the copy made before the upgrade")


def _runs() -> None:
    op.create_table(
        "run",
        _text("run_id"),
        _whole("created_utc_ms"),
        _text("host_id"),
        _text("profile"),
        _text("profile_reason"),
        _whole("seed"),
        _text("kernel"),
        _flag("simulated"),
        _text("config"),
        _text("waived"),
        _text("labels"),
        _text("versions"),
        sa.PrimaryKeyConstraint("run_id", name="pk_run"),
    )
    _table_of_run(
        "attempt",
        ("attempt",),
        _whole("attempt"),
        _whole("started_utc_ms"),
        _text("boot_id"),
        _text("stretches"),
        _whole("elapsed_ms"),
        _whole("ended_utc_ms", nullable=True),
        _text("outcome"),
        _text("reason"),
        _text("closing", nullable=True),
        sa.Column("dropped", sa.BigInteger(), nullable=False, server_default="0"),
    )
    _table_of_run(
        "device",
        ("gpu",),
        _text("gpu"),
        _whole("position"),
        _text("vendor"),
        _whole("runtime_index"),
        _text("model", nullable=True),
        _text("arch", nullable=True),
        _text("uuid", nullable=True),
        _text("driver", nullable=True),
        _text("vbios", nullable=True),
        _whole("memory_total_bytes", nullable=True),
        _text("temperature_sensor", nullable=True),
        _number("slowdown_c"),
        _number("power_cap_w"),
        _text("supported"),
        _text("ecc"),
        _text("ecc_baseline"),
        _text("notes"),
        _text("kernel"),
        _text("kernel_reason"),
        _text("load"),
    )


def _samples() -> None:
    _table_of_run(
        "sample",
        ("attempt", "gpu", "slot"),
        _whole("attempt"),
        _text("gpu"),
        _whole("slot"),
        _whole("start_ms"),
        _whole("end_ms"),
        _whole("utc_ms"),
        _flag("closed"),
        _whole("n_polls"),
        _whole("observed_ms"),
        _whole("in_spec_ms"),
        _whole("suspect_ms"),
        _whole("bad_ms"),
        _whole("throttled_ms"),
        _whole("first_bad_ms", nullable=True),
        _text("ecc_doubt"),
        _text("stats"),
        _text("missing"),
        _text("ecc", nullable=True),
        _text("ecc_raw"),
        _number("utilisation_min_pct"),
        _number("utilisation_mean_pct"),
        _number("utilisation_p05_pct"),
        _number("temperature_edge_mean_c"),
        _number("temperature_junction_mean_c"),
        _number("temperature_memory_mean_c"),
        _number("temperature_core_mean_c"),
        _number("power_mean_w"),
        _number("clock_core_mean_hz"),
        _number("clock_memory_mean_hz"),
        _whole("memory_total_bytes", nullable=True),
        _whole("memory_free_bytes", nullable=True),
        _whole("ecc_corrected", nullable=True),
        _whole("ecc_deferred", nullable=True),
        _whole("ecc_uncorrected", nullable=True),
    )


def _load() -> None:
    _table_of_run(
        "rotation",
        ("attempt", "gpu", "rotation"),
        _whole("attempt"),
        _text("gpu"),
        _whole("rotation"),
        _whole("start_ms"),
        _whole("seq_len"),
        _flag("causal"),
        _whole("seed"),
        _text("kernel"),
        _text("golden"),
        _whole("n_steps"),
        _text("flops"),
    )
    _table_of_run(
        "gradient_check",
        ("attempt", "gpu", "number"),
        _whole("attempt"),
        _text("gpu"),
        _whole("number"),
        _whole("due_ms"),
        _whole("at_ms"),
        _whole("rotation"),
        _whole("seq_len"),
        _flag("causal"),
        _whole("seed"),
        _text("slices"),
        _text("errors"),
        _text("input_std"),
        _text("dtype"),
        _whole("duration_ms"),
        _flag("golden_proved", nullable=True),
        _number("dq_max_abs"),
        _number("dk_max_abs"),
        _number("dv_max_abs"),
        _whole("n_nonfinite", nullable=True),
    )
    _table_of_run(
        "integrity_check",
        ("attempt", "gpu", "rotation"),
        _whole("attempt"),
        _text("gpu"),
        _whole("rotation"),
        _whole("n_due"),
        _whole("n"),
        _whole("mismatches"),
        _whole("at_ms"),
    )


def _events() -> None:
    _table_of_run(
        "incident",
        ("attempt", "seq"),
        _whole("attempt"),
        _whole("seq"),
        _whole("at_ms"),
        _whole("utc_ms"),
        _text("kind"),
        _text("gpu", nullable=True),
        _text("detail"),
        _text("data"),
    )
    _table_of_run(
        "finding",
        ("gpu", "criterion"),
        _text("gpu"),
        _text("criterion"),
        _flag("required"),
        _text("state"),
        _number("value"),
        _number("threshold"),
        _text("unit"),
        _text("reason"),
        _text("cause", nullable=True),
        _flag("waived"),
        _whole("at_ms", nullable=True),
    )


def _leases() -> None:
    op.create_table(
        "lease",
        _text("name"),
        _text("host_id"),
        _text("boot_id"),
        _whole("pid_namespace"),
        _whole("pid"),
        _whole("pid_start"),
        _whole("renewed_boot_ms"),
        _whole("renewed_utc_ms"),
        sa.PrimaryKeyConstraint("name", name="pk_lease"),
    )


def _table_of_run(name: str, key: tuple[str, ...], *columns: sa.Column[object]) -> None:
    """A table whose rows belong to a run and go with it; unique by the run and `key`."""
    op.create_table(
        name,
        _text("run_id"),
        *columns,
        sa.PrimaryKeyConstraint("run_id", *key, name=f"pk_{name}"),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=f"fk_{name}_run_id", ondelete="CASCADE"),
    )


def _text(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _whole(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable, autoincrement=False)


def _flag(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.Boolean(), nullable=nullable)


def _number(name: str) -> sa.Column[object]:
    return sa.Column(name, sa.Float(), nullable=True)
