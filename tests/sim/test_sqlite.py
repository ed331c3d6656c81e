"""Simulated runs over a real SQLite file, through the writer of a real run; disks that are really full."""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from soak.core.records import RunRecord, Verdict
from soak.core.resume import OnInterrupt
from soak.core.verdict import Judgement, judge
from soak.simulate import SCENARIOS, Stage, VirtualClock, simulate
from soak.store.db import Database, sqlite_url
from soak.store.writer import Writer


@dataclass
class Limit:
    """SQLite's own: as `soak simulate` fills the disk."""

    writer: Writer

    def fill(self) -> None:
        self.writer.limit_space(0)

    def free(self) -> None:
        self.writer.limit_space(None)


@dataclass
class Filler:
    """A file that takes the last byte of a small file system, and gives it back."""

    path: Path

    def fill(self) -> None:
        with self.path.open("wb", buffering=0) as file:
            for size in (65_536, 4_096, 1):
                try:
                    while file.write(b"\0" * size):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        self.path.unlink()


@dataclass
class Quota:
    """The kernel refuses every write of this process beyond the first page of a file."""

    before: tuple[int, int] = (0, 0)

    def fill(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, self.before[1]))

    def free(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


class Filed:
    """A simulated run in a file."""

    def __init__(self, theatre: Any, path: Path) -> None:
        self.theatre, self.path = theatre, path

    def play(self, name: str, n_gpus: int, protocol: Any, disk: Any = None, **options: Any) -> Judgement:
        scenario = SCENARIOS[name]
        info = self.theatre.info(scenario, n_gpus)
        with Database.open(sqlite_url(self.path), durable=False) as database:
            database.upgrade()
            clock = VirtualClock(utc_ms=info.created_utc_ms)
            writer = Writer(database, info.run_id, clock, threaded=False)
            stage = Stage(clock, writer, disk or Limit(writer), lambda: database.load(info.run_id))
            return simulate(scenario, info, protocol, stage, **options)

    def record(self) -> RunRecord:
        with Database.open(sqlite_url(self.path), readonly=True) as database:
            return database.load("simulated-1")

    def is_sound(self) -> bool:
        with closing(sqlite3.connect(self.path)) as connection:
            (said,) = connection.execute("PRAGMA integrity_check").fetchone()
        return bool(said == "ok")


@pytest.fixture
def filed(theatre: Any, tmp_path: Path) -> Filed:
    return Filed(theatre, tmp_path / "simulated.db")


@pytest.fixture
def two_hours(theatre: Any) -> Any:
    return theatre.config(duration="2h", warmup="5m").protocol()


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_file_tells_what_memory_tells(theatre: Any, filed: Filed, two_hours: Any, name: str) -> None:
    live = filed.play(name, 2, two_hours)
    stored = judge(filed.record(), two_hours)
    assert live.verdict is stored.verdict is SCENARIOS[name].verdict
    if name == "disk-full-for-good":
        return
    assert [card.findings for card in stored.cards] == [card.findings for card in live.cards]
    in_memory = theatre.play(name, 2, protocol=two_hours).record
    record = filed.record()
    assert record.slots == in_memory.slots
    assert record.rotations == in_memory.rotations
    assert record.gradient_checks == in_memory.gradient_checks
    assert record.rows == record.attempts[-1].closing.rows  # type: ignore[union-attr]  # it is there


@pytest.mark.parametrize("on_interrupt", list(OnInterrupt))
def test_a_restart_is_decided_from_the_file(filed: Filed, two_hours: Any, on_interrupt: OnInterrupt) -> None:
    live = filed.play("restart", 1, two_hours, on_interrupt=on_interrupt)
    stored = judge(filed.record(), two_hours)
    expected = Verdict.PASS if on_interrupt is OnInterrupt.RESTART_CLOCK else Verdict.INCONCLUSIVE
    assert live.verdict is stored.verdict is expected
    ends = [attempt.end for attempt in filed.record().attempts]
    assert (
        ends
        == {"restart-clock": ["interrupted", "completed"], "continue": ["completed"], "stop": ["closed"]}[
            on_interrupt
        ]
    )


def test_48_hours_in_a_file(filed: Filed, theatre: Any) -> None:
    protocol = theatre.config().protocol()
    assert filed.play("healthy", 1, protocol).words == "PASS"
    assert judge(filed.record(), protocol).words == "PASS"
    assert filed.record().rows["sample"] == 576


@pytest.mark.slow
def test_48_hours_of_eight_cards_in_a_file(filed: Filed, theatre: Any) -> None:
    protocol = theatre.config().protocol()
    assert filed.play("healthy", 8, protocol).words == "PASS"
    assert judge(filed.record(), protocol).words == "PASS"
    assert filed.record().rows["sample"] == 8 * 576


def test_the_same_seed_gives_the_same_file(theatre: Any, tmp_path: Path, two_hours: Any) -> None:
    dumps = []
    for name in ("one.db", "two.db"):
        Filed(theatre, tmp_path / name).play("ecc-at-32h", 2, two_hours)
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            dumps.append(list(connection.iterdump()))
    assert dumps[0] == dumps[1]


@pytest.fixture
def small_disk(disk_of: Callable[[str], Path]) -> Path:
    return disk_of("4m")


def test_a_disk_that_is_really_full_costs_nothing_once_there_is_space(
    theatre: Any, small_disk: Path, two_hours: Any
) -> None:
    filed = Filed(theatre, small_disk / "soak.db")
    live = filed.play("disk-full", 2, two_hours, Filler(small_disk / "filler"))
    assert live.words == "PASS"
    record = filed.record()
    assert judge(record, two_hours).words == "PASS"
    (error, recovered) = record.incidents
    assert error.data["reason"] == "database or disk is full"
    assert recovered.data["rows_dropped"] == 0
    assert recovered.data["away_ms"] >= 590_000
    assert filed.is_sound()


def test_a_disk_that_stays_full_ends_inconclusive(theatre: Any, small_disk: Path, two_hours: Any) -> None:
    filed = Filed(theatre, small_disk / "soak.db")
    filler = Filler(small_disk / "filler")
    assert filed.play("disk-full-for-good", 1, two_hours, filler).verdict is Verdict.INCONCLUSIVE
    filler.free()
    assert judge(filed.record(), two_hours).verdict is Verdict.INCONCLUSIVE
    assert filed.record().attempts[-1].end == "running"  # as a killed one's: the next start marks it
    assert filed.is_sound()


def test_writes_that_the_kernel_refuses_are_made_up(filed: Filed, two_hours: Any) -> None:
    quota = Quota()
    try:
        live = filed.play("disk-full", 1, two_hours, quota)
    finally:
        if quota.before != (0, 0):
            quota.free()
    assert live.words == "PASS"
    record = filed.record()
    assert [incident.kind for incident in record.incidents] == ["store_error", "store_recovered"]
    assert judge(record, two_hours).words == "PASS"
    assert filed.is_sound()


def measured_mb(play: Callable[[Callable[[Any], None]], Any]) -> list[float]:
    """Python's memory at every virtual hour, in MB."""
    import gc
    import tracemalloc

    levels: list[float] = []

    def look(run: Any) -> None:
        if run.elapsed_ms() >= len(levels) * 3_600_000:
            gc.collect()
            levels.append(tracemalloc.get_traced_memory()[0] / 1e6)

    tracemalloc.start()
    try:
        play(look)
    finally:
        tracemalloc.stop()
    return levels


@pytest.mark.parametrize(
    ("name", "n_gpus", "hours"),
    [("healthy", 1, 6), pytest.param("healthy", 2, 48, marks=pytest.mark.slow)],
)
def test_memory_is_flat_after_the_first_hour(
    filed: Filed, theatre: Any, name: str, n_gpus: int, hours: int
) -> None:
    protocol = theatre.config(duration=f"{hours}h").protocol()
    levels = measured_mb(lambda look: filed.play(name, n_gpus, protocol, on_tick=look))
    assert len(levels) == hours + 1
    after = levels[1:]
    assert max(after) - min(after) < 5, after
