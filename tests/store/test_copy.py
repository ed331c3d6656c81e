"""Copies between SQLite and a real PostgreSQL server: every row, or none."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from soak.core.errors import CannotRun, ConfigError
from soak.core.records import RunRecord
from soak.store.copy import copy_runs
from soak.store.db import Database, sqlite_url
from soak.store.writer import Writer


def fill(database: Database, make: SimpleNamespace, run_id: str, n_slots: int) -> RunRecord:
    """A run with a row in every table, odd values among them."""
    clock = SimpleNamespace(boot_ms=lambda: 0, utc_ms=lambda: 0)
    writer = Writer(database, run_id, clock, threaded=False)
    writer.write(make.info(run_id, labels={"rack": "7\x00é"}))
    writer.write(make.attempt())
    for index in range(n_slots):
        writer.write(make.slot(index))
    for record in (
        make.rotation(),
        make.integrity(),
        make.gradient(worst=math.nan),
        make.incident(data={"xor": 1 << 80}),
        make.finding(value=math.nan),
    ):
        writer.write(record)
    writer.close(5_000)
    return database.load(run_id)


def assert_equal(one: RunRecord, other: RunRecord) -> None:
    assert repr(one) == repr(other)  # a NaN is not equal to itself


def test_from_sqlite_to_postgresql_and_back(
    database: Database, postgresql_url: str, tmp_path: Path, make: SimpleNamespace
) -> None:
    originals = {run_id: fill(database, make, run_id, n) for run_id, n in (("run-a", 2_500), ("run-b", 1))}
    with (
        Database.open(postgresql_url) as server,
        Database.open(sqlite_url(tmp_path / "back.db"), durable=False) as back,
    ):
        copied = copy_runs(database, server)
        assert set(copied.run_ids) == {"run-a", "run-b"}
        assert copied.rows["sample"] == 2_501
        assert copy_runs(server, back).rows == copied.rows
        for run_id, original in originals.items():
            assert_equal(server.load(run_id), original)
            assert_equal(back.load(run_id), original)


def test_a_target_that_holds_the_run_is_left_as_it_was(
    database: Database, tmp_path: Path, make: SimpleNamespace
) -> None:
    fill(database, make, "run-a", 1)
    fill(database, make, "run-b", 1)
    with Database.open(sqlite_url(tmp_path / "other.db"), durable=False) as target:
        target.upgrade()
        before = fill(target, make, "run-b", 3)
        with pytest.raises(ConfigError, match=r"holds run-b already"):
            copy_runs(database, target)
        assert [run.info.run_id for run in target.runs()] == ["run-b"]
        assert_equal(target.load("run-b"), before)
    with pytest.raises(ConfigError, match="already"):
        copy_runs(database, database)


def test_a_source_that_is_no_database_of_ours_is_refused(tmp_path: Path, database: Database) -> None:
    with (
        Database.open(sqlite_url(tmp_path / "empty.db"), durable=False) as empty,
        pytest.raises(CannotRun, match="is empty"),
    ):
        copy_runs(empty, database)
