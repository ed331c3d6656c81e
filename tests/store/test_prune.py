"""Old runs go with all their rows; what is held stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from soak.core.records import Attempt
from soak.store.db import Database
from soak.store.host import Holder, this_process
from soak.store.keys import RunSummary
from soak.store.lease import Lease
from soak.store.prune import DAY_MS, Keep, last_at_work_utc_ms, old_runs, remove, vacuum
from soak.store.writer import Writer

NOW_MS = 1_800_000_000_000


def summary(make: SimpleNamespace, run_id: str, age_days: int, attempt: Attempt | None = None) -> RunSummary:
    info = make.info(run_id, created_utc_ms=NOW_MS - age_days * DAY_MS)
    return RunSummary(info, int(attempt is not None), attempt, ())


def ids(runs: list[RunSummary]) -> list[str]:
    return [run.info.run_id for run in runs]


def test_what_is_kept_by_number_and_by_age(make: SimpleNamespace) -> None:
    runs = [
        summary(make, run_id, age) for run_id, age in (("new", 1), ("month", 30), ("old", 31), ("eld", 400))
    ]
    assert ids(old_runs(runs, Keep.parse("2"), NOW_MS)) == ["old", "eld"]
    assert ids(old_runs(runs, Keep.parse("0"), NOW_MS)) == ["new", "month", "old", "eld"]
    assert old_runs(runs, Keep.parse("9"), NOW_MS) == []
    assert ids(old_runs(runs, Keep.parse("30d"), NOW_MS)) == ["old", "eld"]


def test_a_run_is_as_old_as_the_end_of_its_last_attempt(make: SimpleNamespace) -> None:
    ended = make.attempt(started_utc_ms=NOW_MS - 40 * DAY_MS, ended_utc_ms=NOW_MS - 20 * DAY_MS)
    killed = make.attempt(started_utc_ms=NOW_MS - 40 * DAY_MS)
    runs = [summary(make, "ended", 50, ended), summary(make, "killed", 50, killed)]
    assert ids(old_runs(runs, Keep.parse("30d"), NOW_MS)) == ["killed"]
    assert last_at_work_utc_ms(summary(make, "never begun", 50)) == NOW_MS - 50 * DAY_MS


@pytest.mark.parametrize("text", ["", "d", "-1", "30 d", "1.5", "30m", "all", "1234567"])
def test_what_is_neither_runs_nor_days_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^{text}$"):
        Keep.parse(text)


def filled(database: Database, make: SimpleNamespace, clock: Any, *run_ids: str, n_slots: int = 1) -> None:
    for run_id in run_ids:
        writer = Writer(database, run_id, clock, threaded=False)
        for record in (make.info(run_id), make.attempt(), *(make.slot(i) for i in range(n_slots))):
            writer.write(record)
        writer.close(5_000)


def lease_of(database: Database, clock: Any, **changes: Any) -> Lease:
    return Lease(database, Holder(**{**me(), **changes}), clock)


def me() -> dict[str, Any]:
    holder = this_process("h" * 32)
    return {name: getattr(holder, name) for name in Holder.__slots__}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_run_goes_with_all_its_rows_and_one_that_is_held_stays(
    kind: str, url: str, make: SimpleNamespace, clock: Any, request: pytest.FixtureRequest
) -> None:
    where = url if kind == "sqlite" else request.getfixturevalue("postgresql_url")
    with Database.open(where) as database:
        database.upgrade()
        filled(database, make, clock, "run-a", "run-b", "run-c", n_slots=3)
        daemon = lease_of(database, clock, host_id="another host", pid=1)
        daemon.acquire("run-b", [])
        removed, n_rows = remove(database, lease_of(database, clock), ["run-a", "run-b"])
        assert removed == ["run-a"]
        assert n_rows == 1 + 1 + 2 + 3  # run, attempt, devices, slots
        assert {run.info.run_id for run in database.runs()} == {"run-b", "run-c"}
        assert len(database.load("run-b").slots) == 3
        daemon.release()
        assert remove(database, lease_of(database, clock), ["run-b"])[0] == ["run-b"]


def test_the_room_goes_back_to_the_disk(database: Database, make: SimpleNamespace, clock: Any) -> None:
    filled(database, make, clock, "run-a", n_slots=2_000)
    filled(database, make, clock, "run-b")
    assert database.path is not None
    assert vacuum(database) == ""
    before = database.path.stat().st_size
    remove(database, lease_of(database, clock), ["run-a"])
    assert vacuum(database) == ""
    assert database.path.stat().st_size < before / 2
    assert database.quick_check() == ()
    assert [run.info.run_id for run in database.runs()] == ["run-b"]


def test_a_file_in_use_keeps_its_size_and_says_why(
    database: Database, make: SimpleNamespace, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(database, make, clock, "run-a")
    monkeypatch.setattr("soak.store.sqlite.BUSY_TIMEOUT_S", 0.1)
    with Database.open(f"sqlite:///{database.path}") as other, database.write():
        assert "locked" in vacuum(other)


def test_a_file_that_is_being_read_keeps_its_size_and_says_why(
    database: Database, make: SimpleNamespace, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(database, make, clock, "run-a")
    monkeypatch.setattr("soak.store.sqlite.BUSY_TIMEOUT_S", 0.1)
    with Database.open(f"sqlite:///{database.path}") as other, database.read() as reader:
        assert reader.exec_driver_sql("SELECT count(*) FROM run").scalar() == 1
        assert vacuum(other) == "another program is at work in it"
    assert vacuum(database) == ""
