"""Copies between SQLite and a real PostgreSQL server: every row, or none."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from soak.core.errors import CannotRun, ConfigError
from soak.core.records import RunRecord
from soak.store.copy import copy_runs, copy_target
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


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """The kernel refuses what would make a file of this process larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def copy_that_finds_no_room(source: Database, target: Path) -> None:
    with (
        files_of_at_most(400_000),
        pytest.raises(CannotRun, match="cannot be used"),
        copy_target(sqlite_url(target)) as copy,
    ):
        copy_runs(source, copy)


def test_a_copy_that_finds_no_room_leaves_no_file_that_it_made(
    database: Database, tmp_path: Path, make: SimpleNamespace
) -> None:
    fill(database, make, "run-a", 2_500)
    folder = tmp_path / "full"
    copy_that_finds_no_room(database, folder / "x.db")
    assert list(folder.iterdir()) == []


def test_a_copy_that_finds_no_room_gives_back_that_of_undone_rows(
    database: Database, tmp_path: Path, make: SimpleNamespace
) -> None:
    fill(database, make, "run-a", 2_500)
    path = tmp_path / "full" / "x.db"
    with Database.open(sqlite_url(path)) as daemon:  # while it is open, the end of the copy removes no log
        daemon.upgrade()
        fill(daemon, make, "run-b", 1)
        copy_that_finds_no_room(database, path)
        assert path.with_name("x.db-wal").stat().st_size == 0
        assert [run.info.run_id for run in daemon.runs()] == ["run-b"]


@pytest.fixture
def small_disk(disk_of: Callable[[str], Path]) -> Path:
    return disk_of("600k")


@pytest.mark.parametrize("was_there", [False, True])
def test_a_full_disk_is_not_full_of_undone_rows(
    was_there: bool, database: Database, small_disk: Path, make: SimpleNamespace
) -> None:
    fill(database, make, "run-a", 2_500)
    path = small_disk / "x.db"
    if was_there:
        path.touch()
    with pytest.raises(CannotRun, match="disk is full"), copy_target(sqlite_url(path)) as copy:
        copy_runs(database, copy)
    left = {file.name for file in small_disk.iterdir()}
    assert left == ({"x.db", "x.db.migrating"} if was_there else set())


def test_a_file_that_has_got_another_s_runs_meanwhile_stays(tmp_path: Path, make: SimpleNamespace) -> None:
    url = sqlite_url(tmp_path / "x.db")
    with pytest.raises(CannotRun, match="no room"), copy_target(url) as copy:  # noqa: PT012 - the failure comes after others wrote
        copy.upgrade()
        fill(copy, make, "run-b", 1)
        raise CannotRun("no room")
    with Database.open(url, readonly=True) as left:
        assert [run.info.run_id for run in left.runs()] == ["run-b"]
