"""The contract of `core.ports.Store`: over SQLite (with and without a thread), PostgreSQL, and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from soak.clock import SystemClock
from soak.core.ports import Happening, Store
from soak.core.records import (
    Attempt,
    Closing,
    Device,
    Finding,
    GradientCheck,
    Incident,
    IntegrityCheck,
    Rotation,
    RunInfo,
    RunRecord,
    Slot,
    State,
    Stretch,
    TensorError,
)
from soak.store.db import Database, sqlite_url
from soak.store.memory import MemoryStore
from soak.store.writer import Pace, Writer

RUN_ID = "run-1"
SOON_MS = 5_000
PACE = Pace(commit_ms=20, open_rows_ms=40, retry_first_ms=20, retry_most_ms=100)
INFO = RunInfo(
    RUN_ID, 0, "host", "cpu", "asked for", 7, "torch", False, (Device("cpu", "cpu"),), {"a": [1, None]}
)
ATTEMPT = Attempt(1, 0, "boot", (Stretch(0, 0),))
CHECK = GradientCheck(
    1, "cpu", 0, 0, 9, 0, 64, True, 3, ((0, 1),), (TensorError("dq", 4, 0, 1e-4, 1e-4, 1.0),)
)
WHOLE = RunRecord(
    info=INFO,
    attempts=(ATTEMPT,),
    slots=tuple(Slot(1, "cpu", index, 0, 1, 2, closed=True) for index in range(3)),
    rotations=(Rotation(1, "cpu", 0, 0, 64, True, 3, n_steps=2),),
    gradient_checks=(CHECK,),
    integrity_checks=(IntegrityCheck(1, "cpu", 0, 2, 2, 0, 5),),
    incidents=(Incident(1, 0, 0, 0, "clock_step"), Incident(1, 1, 4, 0, "sensor_gap", "cpu")),
    findings=(Finding("cpu", "coverage", True, State.PASS), Finding("cpu", "ecc", False, State.UNKNOWN)),
    rows={
        "run": 1,
        "attempt": 1,
        "device": 1,
        "sample": 3,
        "rotation": 1,
        "gradient_check": 1,
        "integrity_check": 1,
        "incident": 2,
        "finding": 2,
    },
)


def records(run: RunRecord) -> list[Any]:
    """Its records, the newest slot first: the order of arrival is not the order of reading."""
    return [
        run.info,
        *run.attempts,
        *reversed(run.slots),
        *run.rotations,
        *run.gradient_checks,
        *run.integrity_checks,
        *reversed(run.incidents),
        *reversed(run.findings),
    ]


class Stage(Protocol):
    """A store, what it holds as a reader sees it, and a way to take it away and to bring it back."""

    @property
    def store(self) -> Store: ...
    def read(self) -> RunRecord: ...
    def take_away(self) -> None: ...
    def bring_back(self) -> None: ...


@dataclass
class InMemory:
    store: MemoryStore

    def read(self) -> RunRecord:
        return self.store.record()

    def take_away(self) -> None:
        self.store.away = "the disk is full"

    def bring_back(self) -> None:
        self.store.away = ""


@dataclass
class InFile:
    """Taken away: the file is moved."""

    store: Writer
    database: Database
    path: Path

    def read(self) -> RunRecord:
        with Database.open(sqlite_url(self.path), readonly=True) as reader:
            return reader.load(RUN_ID)

    def take_away(self) -> None:
        self.path.rename(self.path.with_suffix(".moved"))

    def bring_back(self) -> None:
        self.path.with_suffix(".moved").rename(self.path)


@dataclass
class InServer:
    """Taken away: the server ends every connection and takes no new one."""

    store: Writer
    url: str

    def read(self) -> RunRecord:
        with Database.open(self.url, readonly=True) as reader:
            return reader.load(RUN_ID)

    def take_away(self) -> None:
        self._administer(
            "ALTER DATABASE {name} ALLOW_CONNECTIONS false",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
        )

    def bring_back(self) -> None:
        self._administer("ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    def _administer(self, *commands: str) -> None:
        import psycopg

        server, _, name = self.url.rpartition("/")
        with psycopg.connect(f"{server}/postgres", autocommit=True) as admin:
            for command in commands:
                admin.execute(command.format(name=name).encode())


Opened = Callable[..., Stage]


@pytest.fixture(params=["memory", "file", "file without a thread", "server"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Makes a stage; `limit_rows` is how many rows may wait."""
    with ExitStack() as stack:

        def open_stage(limit_rows: int = 10_000) -> Stage:
            clock = SystemClock()
            pace = replace(PACE, limit_rows=limit_rows)
            if request.param == "memory":
                return InMemory(MemoryStore(clock, limit_rows=limit_rows))
            path = tmp_path / "soak.db"
            url = sqlite_url(path)
            if request.param == "server":
                url = request.getfixturevalue("postgresql_url")
            database = stack.enter_context(Database.open(url, durable=False))
            database.upgrade()
            writer = Writer(database, RUN_ID, clock, threaded="without" not in request.param, pace=pace)
            stack.callback(writer.close, SOON_MS)
            return InServer(writer, url) if request.param == "server" else InFile(writer, database, path)

        yield open_stage


def happened(store: Store, kind: str) -> list[Happening]:
    """Every happening until the first of this kind, itself the last; at most five seconds."""
    found: list[Happening] = []
    until = time.monotonic() + SOON_MS / 1000
    while time.monotonic() < until:
        for happening in store.take():
            found.append(happening)
            if happening.kind == kind:
                return found
        store.write()  # a store without a thread works when it is called
        time.sleep(0.01)
    raise AssertionError(f"{kind} was not told, only {found}")


def test_what_was_written_is_read_in_the_order_of_time(opened: Opened) -> None:
    stage = opened()
    stage.store.write(*records(WHOLE))
    assert stage.store.flush(SOON_MS)
    assert stage.read() == WHOLE
    assert stage.store.take() == []


def test_a_record_replaces_the_one_with_its_key(opened: Opened) -> None:
    stage = opened()
    stage.store.write(*records(WHOLE))
    assert stage.store.flush(SOON_MS)
    again = [
        replace(INFO, labels={"rack": "4"}, devices=(Device("cpu", "cpu", model="x"),)),
        replace(ATTEMPT, elapsed_ms=5),
        replace(WHOLE.slots[1], n_polls=4),
        replace(WHOLE.rotations[0], golden="abc"),
        replace(CHECK, golden_proved=True),
        replace(WHOLE.integrity_checks[0], mismatches=1),
        replace(WHOLE.findings[1], state=State.FAIL),
    ]
    stage.store.write(*again)
    stage.store.write(replace(WHOLE.slots[1], n_polls=5))  # while the one before still waits
    assert stage.store.flush(SOON_MS)
    run = stage.read()
    assert run.rows == WHOLE.rows
    assert (run.info, run.attempts, run.slots[1].n_polls) == (again[0], (again[1],), 5)
    assert (run.rotations, run.gradient_checks, run.integrity_checks) == (
        (again[3],),
        (again[4],),
        (again[5],),
    )
    assert run.findings == (WHOLE.findings[0], again[6])


def test_a_card_that_a_run_no_longer_names_is_gone(opened: Opened) -> None:
    stage = opened()
    stage.store.write(replace(INFO, devices=(Device("a", "amd"), Device("b", "amd"))), ATTEMPT)
    assert stage.store.flush(SOON_MS)
    stage.store.write(replace(INFO, devices=(Device("b", "amd"),)))
    assert stage.store.flush(SOON_MS)
    run = stage.read()
    assert [d.gpu for d in run.info.devices] == ["b"]
    assert run.rows["device"] == 1


def test_what_is_no_record_is_refused(opened: Opened) -> None:
    with pytest.raises(TypeError, match="str is no record"):
        opened().store.write("slot")


def test_the_closing_counts_what_a_reader_finds(opened: Opened) -> None:
    stage = opened()
    stage.store.write(*records(WHOLE))
    ended = replace(ATTEMPT, elapsed_ms=9, ended_utc_ms=8, end="completed")
    closed = stage.store.close_attempt(ended, SOON_MS)
    assert closed == replace(ended, closing=Closing(WHOLE.rows, 0))
    run = stage.read()
    assert run.attempts == (closed,)
    assert closed.closing is not None
    assert run.rows == closed.closing.rows


def test_an_outage_is_told_once_and_nothing_is_lost(opened: Opened) -> None:
    stage = opened()
    stage.store.write(*records(WHOLE))
    assert stage.store.flush(SOON_MS)
    stage.take_away()
    began = time.monotonic()
    late = [Slot(1, "cpu", index, 0, 1, 2, closed=True) for index in range(10, 30)]
    for row in late:
        stage.store.write(row)
    assert time.monotonic() - began < 1.0, "writing waited for the store"
    assert not stage.store.flush(100)
    assert stage.store.close_attempt(replace(ATTEMPT, end="interrupted"), 100) is None
    stage.store.write(replace(late[0], n_polls=7))
    assert [h.kind for h in happened(stage.store, "store_error")] == ["store_error"]
    assert not stage.store.flush(100)
    assert stage.store.take() == []
    stage.bring_back()
    assert [h.kind for h in happened(stage.store, "store_recovered")] == ["store_recovered"]
    assert stage.store.flush(SOON_MS)
    assert stage.read().slots == (*WHOLE.slots, replace(late[0], n_polls=7), *late[1:])
    closed = stage.store.close_attempt(replace(ATTEMPT, end="completed"), SOON_MS)
    assert closed is not None
    assert closed.closing == Closing(stage.read().rows, 0)


def test_beyond_the_bound_the_oldest_ordinary_rows_go_and_are_counted(opened: Opened) -> None:
    stage = opened(limit_rows=20)
    stage.store.write(INFO, ATTEMPT)
    assert stage.store.flush(SOON_MS)
    stage.take_away()
    stage.store.write(Incident(1, 0, 0, 0, "sensor_gap"), Finding("cpu", "ecc", True, State.PASS))
    assert not stage.store.flush(50)
    for index in range(30):
        stage.store.write(Slot(1, "cpu", index, 0, 1, 2, closed=True))
    told = happened(stage.store, "rows_dropped")
    assert [h.kind for h in told] == ["store_error", "rows_dropped"]
    stage.bring_back()
    recovered = happened(stage.store, "store_recovered")[-1]
    assert recovered.data["rows_dropped"] == 12
    closed = stage.store.close_attempt(replace(ATTEMPT, end="completed"), SOON_MS)
    run = stage.read()
    assert [s.index for s in run.slots] == list(range(12, 30))
    assert (len(run.incidents), len(run.findings)) == (1, 1)
    assert closed is not None
    assert closed.closing == Closing(run.rows, 12)


def test_incidents_alone_are_bounded_too_and_the_first_ones_stay(opened: Opened) -> None:
    stage = opened(limit_rows=10)
    stage.store.write(INFO, ATTEMPT)
    assert stage.store.flush(SOON_MS)
    stage.take_away()
    for seq in range(15):
        stage.store.write(Incident(1, seq, seq, 0, "sensor_gap"))
    stage.store.write(replace(ATTEMPT, elapsed_ms=4))
    assert not stage.store.flush(50)
    stage.bring_back()
    assert stage.store.flush(SOON_MS)
    run = stage.read()
    assert [i.seq for i in run.incidents] == list(range(9))
    assert run.attempts[0].elapsed_ms == 4
