"""APScheduler wakes the duties of a run; this adapter turns its wakes and mishaps into messages.

Due times are the run's own and monotonic. APScheduler counts by the wall clock: when that is set, or drifts
from the boot clock, every job is rescheduled from the monotonic due times.
"""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.memory import MemoryJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from soak.clock import SystemClock
from soak.core.clockwatch import ClockWatch
from soak.core.ports import Happening
from soak.core.protocol import Protocol
from soak.core.verdict import Judgement
from soak.run import DUTIES, Run

TICK_S = 1.0
LOOKS_MAX, LOOK_WITHIN_MS = 5, 20
DRIFT_MS = 100  # wall against boot clock since the jobs were laid out; then they are laid out anew

_KINDS = {
    EVENT_JOB_ERROR: "scheduler_error",
    EVENT_JOB_MISSED: "scheduler_missed",
    EVENT_JOB_MAX_INSTANCES: "scheduler_overrun",
}


@dataclass(slots=True)
class Inbox:
    """What wakes the main loop: duties, happenings, signals. Threads and signal handlers may fill it."""

    _queue: queue.SimpleQueue[str | Happening | int] = field(default_factory=queue.SimpleQueue)

    def put(self, item: str | Happening | int) -> None:
        self._queue.put(item)

    def wait(self, timeout_s: float) -> list[str | Happening | int]:
        """Everything that is there, at least one item or the timeout."""
        items: list[str | Happening | int] = []
        try:
            items.append(self._queue.get(timeout=timeout_s))
            while True:
                items.append(self._queue.get_nowait())
        except queue.Empty:
            return items


@dataclass(frozen=True, slots=True)
class Look:
    """All clocks at one instant."""

    boot_ms: int
    utc_ms: int
    awake_ms: int


def look_at(clock: SystemClock) -> Look:
    """Reads the clocks so close together that a pause of this process is no step of a clock; after some tries
    that were interrupted, as they are."""
    for _ in range(LOOKS_MAX):
        boot_ms = clock.boot_ms()
        look = Look(boot_ms, clock.utc_ms(), clock.awake_ms())
        if clock.boot_ms() - boot_ms <= LOOK_WITHIN_MS:
            break
    return look


class Onward(IntervalTrigger):  # type: ignore[misc]  # apscheduler has no types
    """An interval that goes on from now when the wall clock jumps ahead.

    The library's own lists every time that was missed, one by one: years of them where a machine starts
    without the time and is told it later, the scheduler's lock held meanwhile.
    """

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        due: datetime | None = super().get_next_fire_time(previous, now)
        if due is None or due > now or previous is None:
            return due
        missed: int = (now - due) // self.interval
        onward: datetime = due + (missed + 1) * self.interval
        return onward


class Waker:
    """The jobs of one run: rotation, check and sample at intervals, the end once."""

    def __init__(self, protocol: Protocol, clock: SystemClock, inbox: Inbox) -> None:
        self._protocol, self._clock, self._inbox = protocol, clock, inbox
        self._boot_at_t0_ms = 0
        self._offset_ms = 0
        self._asleep_ms = 0
        self._scheduler = BackgroundScheduler(
            timezone=UTC,
            jobstores={"default": MemoryJobStore()},
            executors={"default": ThreadPoolExecutor(2)},  # a job only puts a word into the inbox
            job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
        )
        self._scheduler.add_listener(
            self._mishap, EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES
        )

    def start(self, boot_at_t0_ms: int) -> None:
        """Lays out the jobs and starts the scheduler's thread."""
        self._boot_at_t0_ms = boot_at_t0_ms
        self._lay_out(look_at(self._clock))
        self._scheduler.start()

    def follow(self, now: Look) -> None:
        """Call every second: lays the jobs out anew where the wall clock left the boot clock, or after a
        suspend, through which the scheduler's thread slept on."""
        moved_ms = (now.utc_ms - now.boot_ms - self._offset_ms, now.boot_ms - now.awake_ms - self._asleep_ms)
        if max(abs(ms) for ms in moved_ms) > DRIFT_MS:
            self._lay_out(now)
            for duty in DUTIES:  # one may have fallen due just now; a wake that is early does no harm
                self._inbox.put(duty)

    def _lay_out(self, now: Look) -> None:
        protocol, boot_ms = self._protocol, now.boot_ms
        self._offset_ms, self._asleep_ms = now.utc_ms - boot_ms, boot_ms - now.awake_ms
        elapsed_ms = boot_ms - self._boot_at_t0_ms
        for duty, every_ms in (
            ("rotate", protocol.rotate_ms), ("check", protocol.check_ms), ("sample", protocol.sample_ms),
        ):  # fmt: skip
            next_ms = (max(elapsed_ms, 0) // every_ms + 1) * every_ms
            start = self._wall(next_ms)
            trigger = Onward(seconds=every_ms / 1000, start_date=start, timezone=UTC)
            self._add(duty, trigger)
        if elapsed_ms < protocol.duration_ms:
            self._add("end", DateTrigger(self._wall(protocol.duration_ms), timezone=UTC))

    def _add(self, duty: str, trigger: Any) -> None:
        self._scheduler.add_job(self._inbox.put, trigger, args=(duty,), id=duty, replace_existing=True)

    def _wall(self, at_ms: int) -> datetime:
        """The wall-clock instant of an elapsed time, by the offset that holds now."""
        return datetime.fromtimestamp((self._boot_at_t0_ms + at_ms + self._offset_ms) / 1000, UTC)

    def _mishap(self, event: JobEvent) -> None:
        detail = f"job {event.job_id}: {getattr(event, 'exception', None) or 'not run'}"
        self._inbox.put(Happening(_KINDS[event.code], self._clock.boot_ms(), None, detail))

    def stop(self) -> None:
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)


def handle_signals(inbox: Inbox) -> Callable[[], None]:
    """Signals that end a run put their number into the inbox, nothing else; the undo.

    SIGHUP (the terminal is gone) is one of them, unless whoever started this has it ignored (`nohup`).
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        inbox.put(number)  # SimpleQueue.put is reentrant: made for signal handlers

    ends = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        ends.append(signal.SIGHUP)
    before = {number: signal.signal(number, on_signal) for number in ends}

    def undo() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return undo


def drive(
    run: Run,
    protocol: Protocol,
    clock: SystemClock,
    inbox: Inbox,
    on_tick: Callable[[Run, str], None],
    confirm: Callable[[int], bool] = lambda _: True,
) -> tuple[str, Judgement]:
    """Drives a run in real time, to its end or to a signal; how it ended, and the judgement.

    `on_tick(run, message)` is called about once a second. `confirm(signal)`: whether this signal stops the
    run (on a terminal the first Ctrl-C does not).
    """
    waker = Waker(protocol, clock, inbox)
    now = look_at(clock)
    watch = ClockWatch(now.boot_ms, now.utc_ms, now.awake_ms)
    stopped_by: int | None = None
    try:
        stopped_by = _until_t0(run, inbox, on_tick, confirm)
        if stopped_by is None:
            waker.start(run.boot_at_t0_ms)
        while stopped_by is None and not run.is_over:
            for item in inbox.wait(TICK_S):
                stopped_by = _take(run, item, confirm) or stopped_by
            now = look_at(clock)
            for happening in watch.look(now.boot_ms, now.utc_ms, now.awake_ms):
                run.note(happening)
            waker.follow(now)
            run.tick()
            on_tick(run, "")
    finally:
        waker.stop()
    if stopped_by is not None and not run.is_over:
        return "interrupted", run.finish("interrupted", signal.Signals(stopped_by).name)
    end, reason = run.outcome
    return end, run.finish(end, reason, hurry=lambda: _is_stopped(inbox, confirm))


def _until_t0(
    run: Run, inbox: Inbox, on_tick: Callable[[Run, str], None], confirm: Callable[[int], bool]
) -> int | None:
    while waiting := run.wait_for_cards():
        on_tick(run, f"waiting for {', '.join(waiting)}")
        for item in inbox.wait(0.1):
            if isinstance(item, int) and confirm(item):
                return item
    return None


def _is_stopped(inbox: Inbox, confirm: Callable[[int], bool]) -> bool:
    """Whether somebody stops a run that is writing its end."""
    return any(isinstance(item, int) and confirm(item) for item in inbox.wait(0))


def _take(run: Run, item: str | Happening | int, confirm: Callable[[int], bool]) -> int | None:
    if isinstance(item, str):
        run.wake(item)
    elif isinstance(item, Happening):
        run.note(item)
    elif confirm(item):
        return item
    return None
