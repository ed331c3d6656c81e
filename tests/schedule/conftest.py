"""A machine in real time whose clocks can be set, a load and sensors without processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from soak.clock import SystemClock
from soak.core.ports import Checked, Happening, LoadEvent, Progress, Ready
from soak.core.protocol import Limits, Protocol, Shape
from soak.core.records import (
    Device,
    GradientCheck,
    Poll,
    Quantity,
    Reading,
    RunInfo,
    RunRecord,
    TensorError,
)
from soak.run import Plan, Run
from soak.schedule import Inbox, drive, handle_signals
from soak.store.db import Database, sqlite_url
from soak.store.writer import Pace, Writer

GPU = "0000:33:00.0"
REQUIRED = ("utilisation", "ecc", "gradient", "integrity", "faults", "coverage", "continuity")


@dataclass
class SetClock(SystemClock):
    """The machine's clocks; the wall clock and the suspend can be moved."""

    utc_by_ms: int = 0
    slept_ms: int = 0

    def boot_ms(self) -> int:
        return super().boot_ms() + self.slept_ms

    def utc_ms(self) -> int:
        return super().utc_ms() + self.utc_by_ms + self.slept_ms


@dataclass
class FakeLoad:
    """A step every 20 ms; a check takes `check_ms`; `stop_s` passes while it is stopped."""

    clock: SetClock
    check_ms: int = 150
    stop_s: float = 0.0
    is_ready: bool = True
    orders: list[tuple[int, str, int]] = field(default_factory=list)
    events: list[LoadEvent] = field(default_factory=list)
    due: list[tuple[int, int]] = field(default_factory=list)
    rotation: int = 0
    begun_ms: int = 0

    def rotate(self, shape: Shape) -> None:
        now_ms = self.clock.boot_ms()
        self.events += [self.beat()] if self.begun_ms else []
        self.orders.append((now_ms, "rotate", shape.index))
        self.rotation, self.begun_ms = shape.index, now_ms

    def check(self, index: int) -> None:
        self.orders.append((self.clock.boot_ms(), "check", index))
        self.due.append((self.clock.boot_ms() + self.check_ms, index))

    def beat(self) -> Progress:
        now_ms = self.clock.boot_ms()
        n = (now_ms - self.begun_ms) // 20 + 1
        return Progress(
            GPU, now_ms, self.rotation, n, n, now_ms - 10, 20.0, golden=f"{self.rotation:016x}",
            n_due=n, n_compared=n,
        )  # fmt: skip

    def take(self) -> Sequence[LoadEvent]:
        taken, self.events = self.events, []
        now_ms = self.clock.boot_ms()
        if self.is_ready:
            self.is_ready = False
            return [Ready(GPU, now_ms, "kernel", "the only one", 20.0)]
        if not self.begun_ms:
            return taken
        for done_ms, index in [due for due in self.due if due[0] <= now_ms]:
            self.due.remove((done_ms, index))
            taken.append(Checked(GPU, now_ms, self.checked(index)))
        return [*taken, self.beat()]

    def checked(self, index: int) -> GradientCheck:
        errors = tuple(TensorError(name, 8, 0, 1e-4, 1e-4, 1.0) for name in ("o", "dq", "dk", "dv"))
        return GradientCheck(0, GPU, index, 0, 0, self.rotation, 512, True, 1, ((0, 0),), errors)

    def stop(self, deadline_ms: int) -> None:
        time.sleep(min(self.stop_s, deadline_ms / 1_000))


@dataclass
class FakeTelemetry:
    """A poll every 100 ms, taken whenever somebody comes."""

    clock: SetClock
    stop_s: float = 0.0
    polled_ms: int = 0

    def take(self) -> Sequence[Poll | Happening]:
        now_ms = self.clock.boot_ms()
        self.polled_ms = self.polled_ms or now_ms - 100
        polls = [self.poll(at_ms) for at_ms in range(self.polled_ms + 100, now_ms + 1, 100)]
        self.polled_ms += 100 * len(polls)
        return polls[-1_000:]

    def poll(self, at_ms: int) -> Poll:
        readings = {Quantity.UTILISATION_PCT: Reading.ok(99.0)}
        return Poll(GPU, at_ms, readings, {"ras/umc/corrected": Reading.ok(0.0)})

    def stop(self, deadline_ms: int) -> None:
        time.sleep(min(self.stop_s, deadline_ms / 1_000))


class Machine:
    """A run of one card, in a file, driven in real time."""

    def __init__(self, folder: Path, duration_ms: int = 3_000, **protocol: Any) -> None:
        plain = Protocol(
            duration_ms, 1_000, 1_500, 500, 100, 0, 512, 4096, 7, Limits(frozenset(REQUIRED)),
            ecc_every_ms=100,
        )  # fmt: skip
        self.protocol = replace(plain, **protocol)
        device = Device(GPU, "simulated", ecc=Reading.ok(1.0))
        self.info = RunInfo("run-1", 0, "host", "p", "asked for", 7, "kernel", True, (device,), {})
        self.clock, self.inbox = SetClock(), Inbox()
        self.load, self.telemetry = FakeLoad(self.clock), FakeTelemetry(self.clock)
        self.path = folder / "soak.db"
        self.database = Database.open(sqlite_url(self.path))
        self.database.upgrade()
        self.writer = Writer(self.database, "run-1", self.clock, pace=Pace(100, 200, 50, 200))
        self.ticks: list[tuple[int, int]] = []  # boot time, elapsed time
        self.on_tick: Callable[[Run], None] = lambda _: None
        self.confirm: Callable[[int], bool] = lambda _: True
        self.run: Run | None = None

    def drive(self, **plan: Any) -> tuple[str, Any]:
        self.run = Run(
            Plan(self.info, self.protocol, "boot", **plan), self.clock, self.telemetry, self.load, self.writer
        )  # fmt: skip

        def ticked(run: Run, _: str) -> None:
            self.ticks.append((self.clock.boot_ms(), run.elapsed_ms()))
            self.on_tick(run)

        return drive(self.run, self.protocol, self.clock, self.inbox, ticked, self.confirm)

    def record(self) -> RunRecord:
        return self.database.load("run-1")

    def kinds(self) -> list[str]:
        return [incident.kind for incident in self.record().incidents]

    def close(self) -> None:
        self.writer.close(2_000)
        self.database.close()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    made: list[Machine] = []

    def make(**options: Any) -> Machine:
        made.append(Machine(tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def set_scheduler(monkeypatch: pytest.MonkeyPatch) -> Callable[[SetClock], None]:
    """Lets APScheduler count by a wall clock that can be set."""

    def by(clock: SetClock) -> None:
        class Stepped(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return datetime.now(tz) + timedelta(milliseconds=clock.utc_by_ms + clock.slept_ms)

        monkeypatch.setattr("apscheduler.schedulers.base.datetime", Stepped)

    return by


@pytest.fixture
def signals(machine: Any) -> Iterator[Callable[[Inbox], None]]:  # noqa: ARG001 - undone before the machine
    """Signals go into an inbox until the test ends."""
    undo: list[Callable[[], None]] = []
    yield lambda inbox: undo.append(handle_signals(inbox))
    for each in undo:
        each()


@pytest.fixture
def later() -> Iterator[Callable[[float, int], None]]:
    """Sends this process a signal, in so many seconds."""
    timers: list[threading.Timer] = []

    def send(seconds: float, number: int = signal.SIGTERM) -> None:
        timers.append(threading.Timer(seconds, os.kill, (os.getpid(), number)))
        timers[-1].start()

    yield send
    for timer in timers:
        timer.cancel()
        timer.join()
