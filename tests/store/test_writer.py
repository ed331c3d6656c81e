"""The writer against a real file: full, locked, moved, killed; and that it loses nothing it need not lose."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any

import pytest

from soak.clock import SystemClock
from soak.core.records import Closing
from soak.store.backlog import Backlog
from soak.store.db import Database
from soak.store.writer import Pace, Writer

Child = Callable[..., "Popen[str]"]
QUICK = Pace(commit_ms=20, open_rows_ms=50, retry_first_ms=20, retry_most_ms=100)


@pytest.fixture
def writer(database: Database, clock: Any, make: SimpleNamespace) -> Writer:
    """One without a thread, its run and attempt stored."""
    writer = Writer(database, make.RUN_ID, clock, threaded=False, pace=Pace())
    writer.write(make.info(), make.attempt())
    assert writer.flush(0)
    return writer


def n_stored(database: Database, table: str = "sample") -> int:
    assert database.path is not None
    with closing(sqlite3.connect(f"file:{database.path}?mode=ro", uri=True)) as connection:
        (n,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(n)


def next_line(process: Popen[str]) -> tuple[int, int]:
    """The figure that the child wrote, and when."""
    assert process.stdout is not None
    figure, at_ms = process.stdout.readline().split()
    return int(figure), int(at_ms)


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)


# --- pace


def test_rows_go_in_one_commit_a_second_and_open_ones_wait_longer(
    writer: Writer, database: Database, clock: Any, make: SimpleNamespace
) -> None:
    for _ in range(40):  # ten seconds in which the open slot is written four times a second
        writer.write(make.slot(0, closed=False), make.rotation(), make.attempt(elapsed_ms=clock.now_ms))
        assert n_stored(database) == (clock.now_ms >= 1_005_000)
        clock.now_ms += 250
    assert writer.flush(0)
    writer.write(make.slot(0, closed=True), make.slot(1))
    clock.now_ms += 999
    writer.write()
    assert n_stored(database) == 1
    clock.now_ms += 1
    writer.write()
    assert n_stored(database) == 2


def test_a_run_of_two_days_and_eight_cards_is_written_in_few_seconds(
    database: Database, clock: Any, make: SimpleNamespace
) -> None:
    cards = [f"0000:{n:02x}:00.0" for n in range(8)]
    writer = Writer(database, make.RUN_ID, clock, threaded=False)
    writer.write(make.info(), make.attempt())
    began = time.process_time()
    for index in range(576):
        clock.now_ms += 300_000
        for card in cards:
            writer.write(
                make.slot(index, card), make.rotation(index // 2, card), make.integrity(index // 2, card)
            )
            if index % 12 == 0:
                writer.write(make.gradient(index // 12, card))
        writer.write(make.attempt(elapsed_ms=clock.now_ms))
    closed = writer.close_attempt(make.attempt(end="completed"), 0)
    assert time.process_time() - began < 5.0
    assert closed is not None
    assert closed.closing is not None
    assert closed.closing.rows["sample"] == 4_608
    assert database.load(make.RUN_ID).rows == closed.closing.rows


def test_the_same_calls_give_the_same_file(tmp_path: Path, make: SimpleNamespace, clock: Any) -> None:
    dumps = []
    for name in ("a", "b"):
        with Database.open(f"sqlite:///{tmp_path}/{name}.db", durable=False) as database:
            database.upgrade()
            writer = Writer(database, make.RUN_ID, clock, threaded=False)
            writer.write(make.info(), make.attempt())
            for index in range(50):
                clock.now_ms += 60_000
                writer.write(make.slot(index), make.incident(index))
            writer.close_attempt(make.attempt(end="completed"), 0)
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            dumps.append(list(connection.iterdump()))
    assert dumps[0] == dumps[1]


# --- a full disk


def test_a_full_disk_loses_nothing_and_space_is_used_again(
    writer: Writer, database: Database, clock: Any, make: SimpleNamespace
) -> None:
    writer.limit_space(0)
    rows = [make.slot(index) for index in range(200)]
    for row in rows:
        clock.now_ms += 1_000
        writer.write(row)
    (error,) = writer.take()
    assert (error.kind, error.data["reason"]) == ("store_error", "database or disk is full")
    assert not writer.flush(0)
    assert writer.close_attempt(make.attempt(end="completed"), 0) is None
    assert database.runs() != [], "what is stored can be read all the time"
    assert writer.rows_waiting > 150
    writer.limit_space(None)
    clock.now_ms += 15_000
    writer.write()
    (recovered,) = writer.take()
    assert (recovered.kind, recovered.data["rows_dropped"]) == ("store_recovered", 0)
    assert recovered.data["away_ms"] > 100_000
    assert database.load(make.RUN_ID).slots == tuple(rows)
    closed = writer.close_attempt(make.attempt(end="completed"), 0)
    assert closed is not None
    assert closed.closing == Closing(database.load(make.RUN_ID).rows, 0)


def test_a_store_that_is_away_is_tried_less_and_less_often(
    writer: Writer, clock: Any, make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    commit = writer._commit

    def counted(*arguments: Any) -> Any:
        tries.append(clock.now_ms)
        return commit(*arguments)

    monkeypatch.setattr(writer, "_commit", counted)
    writer.limit_space(0)
    while clock.now_ms < 1_120_000:
        clock.now_ms += 100
        writer.write(make.slot(clock.now_ms // 100))
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    failing = gaps[gaps.index(1_000) :] if 1_000 in gaps else gaps
    assert [gap for gap in failing if gap > 1_000][:6] == [2_000, 4_000, 8_000, 15_000, 15_000, 15_000]


def test_what_a_process_dropped_is_known_to_the_next(
    database: Database, clock: Any, make: SimpleNamespace
) -> None:
    """`continue` stays in its attempt: rows dropped before the interruption are still missing."""
    tiny = Pace(limit_rows=5)
    first = Writer(database, make.RUN_ID, clock, threaded=False, pace=tiny)
    first.write(make.info(), make.attempt(), *[make.slot(index) for index in range(9)])
    assert first.flush(0)
    assert n_stored(database) == 3
    second = Writer(database, make.RUN_ID, clock, threaded=False, pace=tiny)
    second.write(make.attempt(elapsed_ms=1), *[make.slot(index) for index in range(20, 27)])
    closed = second.close_attempt(make.attempt(end="completed"), 0)
    assert closed is not None
    assert closed.closing is not None
    assert closed.closing.dropped == 6 + 3
    third = Writer(database, make.RUN_ID, clock, threaded=False)
    other = third.close_attempt(make.attempt(2, end="completed"), 0)
    assert other is not None
    assert other.closing is not None
    assert other.closing.dropped == 0, "another attempt lost nothing"


# --- a row that never fits


def test_a_row_that_never_fits_does_not_hold_up_the_others(
    writer: Writer, database: Database, make: SimpleNamespace
) -> None:
    rows = [make.slot(index) for index in range(40)]
    rows[17] = replace(rows[17], n_polls=1 << 70)
    rows[18] = replace(rows[18], missing={1: object()})
    writer.write(*rows)
    assert writer.flush(0)
    told = writer.take()
    assert [h.kind for h in told] == ["rows_dropped", "rows_dropped"]
    assert "cannot hold sample (1, 17, '0000:33:00.0'): Python int too large" in told[0].detail
    assert "object is no JSON value" in told[1].detail
    closed = writer.close_attempt(make.attempt(end="completed"), 0)
    assert closed is not None
    assert closed.closing == Closing(database.load(make.RUN_ID).rows, 2)
    assert n_stored(database) == 38


def test_a_row_that_never_fits_does_not_hold_up_a_server(
    postgresql_url: str, clock: Any, make: SimpleNamespace
) -> None:
    with Database.open(postgresql_url) as database:
        database.upgrade()
        writer = Writer(database, make.RUN_ID, clock, threaded=False)
        writer.write(make.info(), make.attempt(), make.slot(0, n_polls=1 << 70), make.slot(1))
        assert writer.flush(0)
        assert [h.kind for h in writer.take()] == ["rows_dropped"]
        assert [s.index for s in database.load(make.RUN_ID).slots] == [1]


# --- threads and processes


def test_a_lock_of_seconds_loses_no_row_and_is_no_incident(
    database: Database, child: Child, make: SimpleNamespace
) -> None:
    writer = Writer(database, make.RUN_ID, SystemClock(), pace=QUICK)
    writer.write(make.info(), make.attempt())
    assert writer.flush(5_000)
    locker = child("lock", database.path, 3)
    assert locker.stdout is not None
    assert locker.stdout.readline() == "locked\n"
    longest_s = 0.0
    for index in range(100):
        began = time.monotonic()
        writer.write(make.slot(index))
        longest_s = max(longest_s, time.monotonic() - began)
        time.sleep(0.01)
    assert longest_s < 0.5, "the run waited for the lock"
    assert not writer.flush(100)
    assert writer.flush(20_000)
    assert writer.take() == []
    assert writer.close(5_000)
    assert len(database.load(make.RUN_ID).slots) == 100


def test_a_lock_that_outlives_the_patience_is_an_incident_and_loses_no_row(
    tmp_path: Path, child: Child, make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("soak.store.sqlite.BUSY_TIMEOUT_S", 0.3)
    with Database.open(f"sqlite:///{tmp_path}/soak.db") as database:
        database.upgrade()
        writer = Writer(database, make.RUN_ID, SystemClock(), pace=QUICK)
        writer.write(make.info(), make.attempt())
        assert writer.flush(5_000)
        locker = child("lock", database.path, 2)
        assert locker.stdout is not None
        assert locker.stdout.readline() == "locked\n"
        for index in range(20):
            writer.write(make.slot(index))
        told: list[Any] = []
        wait_for(lambda: told.extend(writer.take()) or len(told) == 2)
        assert [h.kind for h in told] == ["store_error", "store_recovered"]
        assert told[0].data["reason"] == "database is locked"
        assert writer.close(5_000)
        assert len(database.load(make.RUN_ID).slots) == 20


def test_a_reader_in_the_middle_of_a_report_does_not_hold_up_the_writer(
    database: Database, make: SimpleNamespace
) -> None:
    writer = Writer(database, make.RUN_ID, SystemClock(), pace=QUICK)
    writer.write(make.info(), make.attempt())
    assert writer.flush(5_000)
    assert database.path is not None
    with closing(sqlite3.connect(f"file:{database.path}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM sample").fetchone() == (0,)
        for index in range(50):
            writer.write(make.slot(index))
        assert writer.flush(2_000)
        assert reader.execute("SELECT count(*) FROM sample").fetchone() == (0,)
        reader.execute("COMMIT")
        assert reader.execute("SELECT count(*) FROM sample").fetchone() == (50,)
    assert writer.take() == []
    assert writer.close(5_000)


def test_a_file_that_was_removed_is_not_written_on_in_secret(
    database: Database, writer: Writer, make: SimpleNamespace
) -> None:
    assert database.path is not None
    database.path.unlink()
    writer.write(make.slot(0))
    assert not writer.flush(0)
    (told,) = writer.take()
    assert told.kind == "store_error"
    assert "was removed or replaced" in told.detail
    assert writer.close_attempt(make.attempt(end="completed"), 0) is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_of_a_bug_is_told(
    database: Database, make: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(database, make.RUN_ID, SystemClock(), pace=QUICK)

    def bug(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(writer, "_commit", bug)
    writer.write(make.info())
    told: list[Any] = []
    wait_for(lambda: told.extend(writer.take()) or bool(told))
    assert [h.kind for h in told] == ["store_error"]
    assert not writer.flush(5_000)
    assert writer.close_attempt(make.attempt(), 5_000) is None


def test_many_threads_may_write_while_rows_are_stored(database: Database, make: SimpleNamespace) -> None:
    writer = Writer(database, make.RUN_ID, SystemClock(), pace=replace(QUICK, batch_rows=7))
    writer.write(make.info(), make.attempt())

    def work(card: str) -> None:
        for index in range(100):
            writer.write(make.slot(index % 20, card, n_polls=index))

    threads = [threading.Thread(target=work, args=(f"card-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.flush(20_000)
    assert writer.take() == []
    assert writer.close(5_000)
    stored = database.load(make.RUN_ID).slots
    assert len(stored) == 80
    assert {slot.n_polls for slot in stored} == set(range(80, 100)), "the last of each key is kept"


def test_a_closing_that_was_given_up_is_not_written_later(
    database: Database, child: Child, make: SimpleNamespace
) -> None:
    """Rows may follow, and the closing would count too few."""
    writer = Writer(database, make.RUN_ID, SystemClock(), pace=QUICK)
    writer.write(make.info(), make.attempt())
    assert writer.flush(5_000)
    locker = child("lock", database.path, 1.5)
    assert locker.stdout is not None
    assert locker.stdout.readline() == "locked\n"
    writer.write(make.slot(0))
    began = time.monotonic()
    assert writer.close_attempt(make.attempt(end="interrupted"), 200) is None
    assert time.monotonic() - began < 1.0
    assert writer.flush(20_000)
    time.sleep(0.3)
    assert database.load(make.RUN_ID).attempts == (make.attempt(),)
    assert writer.close(5_000)


def test_kill_9_keeps_everything_but_the_last_seconds(
    url: str, child: Child, make: SimpleNamespace, clock: Any
) -> None:
    """What was written 6 s before is there (the contract allows 15 s), and the file is whole."""
    with Database.open(url) as database:
        database.upgrade()
    process = child("write", url, make.RUN_ID)
    said = [next_line(process)]
    while said[-1][1] < said[0][1] + 8_000:
        said.append(next_line(process))
    killed_ms = SystemClock().boot_ms()
    process.kill()
    process.wait()
    must_be_there = max(n for n, at_ms in said if at_ms < killed_ms - 6_000)
    with Database.open(url) as database:
        with database.read() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalars().all() == ["ok"]
        run = database.load(make.RUN_ID)
        assert max(slot.n_polls for slot in run.slots) >= must_be_there
        assert run.attempts[0].end == "running"
        assert run.attempts[0].closing is None
        next_start = Writer(database, make.RUN_ID, clock, threaded=False)
        next_start.write(replace(run.attempts[0], end="interrupted", ended_utc_ms=5))
        assert next_start.flush(0)
        assert database.load(make.RUN_ID).attempts[0].end == "interrupted"


# --- the backlog alone


def test_what_comes_back_does_not_replace_what_is_newer(make: SimpleNamespace) -> None:
    backlog = Backlog(100)
    backlog.put(make.slot(0, n_polls=1))
    backlog.put(make.slot(1, n_polls=1))
    assert [slot.n_polls for slot in backlog.take(10)] == [1, 1]
    backlog.put(make.slot(1, n_polls=2))
    backlog.put(make.slot(2, n_polls=1))
    assert len(backlog) == 4
    backlog.failed()
    assert [(s.index, s.n_polls) for s in backlog.take(10)] == [(0, 1), (1, 2), (2, 1)]


def test_what_a_run_hangs_on_is_taken_first(make: SimpleNamespace) -> None:
    backlog = Backlog(100)
    for record in (make.slot(), make.incident(), make.attempt(), make.info()):
        backlog.put(record)
    assert backlog.take(2) == [make.attempt(), make.info()]
