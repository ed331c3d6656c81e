"""APScheduler as it is, at short intervals: its wakes, its mishaps, and clocks that are set."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from soak.core.ports import Happening
from soak.core.protocol import Limits, Protocol
from soak.schedule import Inbox, Look, Onward, Waker, look_at

QUICK = Protocol(2_000, 300, 500, 200, 100, 0, 512, 4096, 7, Limits(frozenset()))


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def clock(machine: Any) -> Any:
    return machine().clock


@pytest.fixture
def waker(clock: Any, inbox: Inbox) -> Iterator[Waker]:
    waker = Waker(QUICK, clock, inbox)
    yield waker
    waker.stop()


def collected(inbox: Inbox, seconds: float) -> list[Any]:
    items, until = [], time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        items += inbox.wait(left)
    return items


def next_runs(waker: Waker) -> dict[str, datetime]:
    return {job.id: job.next_run_time for job in waker._scheduler.get_jobs()}


def test_every_duty_is_woken_at_its_times(waker: Waker, clock: Any, inbox: Inbox) -> None:
    waker.start(clock.boot_ms())
    words = Counter(collected(inbox, 2.15))
    assert set(words) == {"rotate", "check", "sample", "end"}
    assert words["end"] == 1
    for duty, every_ms in (("rotate", 300), ("check", 500), ("sample", 200)):
        assert abs(words[duty] - 2_100 // every_ms) <= 1, words


def test_due_times_are_those_of_the_run_and_not_of_the_start(waker: Waker, clock: Any) -> None:
    """Taken up 1.23 s after its t0: the next rotation is due at 1.5 s."""
    t0_ms = clock.boot_ms() - 1_230
    waker.start(t0_ms)
    offset_ms = clock.utc_ms() - clock.boot_ms()
    at_ms = {
        duty: round(when.timestamp() * 1_000) - offset_ms - t0_ms for duty, when in next_runs(waker).items()
    }
    for duty, due_ms in (("rotate", 1_500), ("check", 1_500), ("sample", 1_400), ("end", 2_000)):
        assert abs(at_ms[duty] - due_ms) <= 2, at_ms


def test_after_the_end_there_is_no_end_to_wait_for(waker: Waker, clock: Any) -> None:
    waker.start(clock.boot_ms() - 5_000)
    assert "end" not in next_runs(waker)


def test_misfires_coalescing_and_instances_are_set_on_purpose(waker: Waker, clock: Any) -> None:
    """The library's defaults drop what is a second late (A10)."""
    waker.start(clock.boot_ms())
    for job in waker._scheduler.get_jobs():
        assert (job.misfire_grace_time, job.coalesce, job.max_instances) == (None, True, 1)
        assert job.trigger.timezone is UTC if hasattr(job.trigger, "timezone") else True


def test_a_scheduler_that_was_held_up_wakes_once_and_drops_nothing(
    waker: Waker, clock: Any, inbox: Inbox
) -> None:
    waker.start(clock.boot_ms())
    waker._scheduler.pause()
    collected(inbox, 1.1)
    waker._scheduler.resume()
    words = Counter(collected(inbox, 0.15))
    assert words["rotate"] in (1, 2)
    assert not any(isinstance(word, Happening) for word in words)


def test_mishaps_become_happenings(waker: Waker, clock: Any, inbox: Inbox) -> None:
    waker.start(clock.boot_ms())
    scheduler = waker._scheduler

    def fails() -> None:
        raise RuntimeError("it broke")

    release = threading.Event()
    soon = datetime.now(UTC) + timedelta(milliseconds=50)
    scheduler.add_job(fails, "date", run_date=soon, id="broken")
    scheduler.add_job(release.wait, "interval", seconds=0.1, id="slow")
    scheduler.add_job(
        fails, "date", run_date=soon - timedelta(seconds=30), id="stale", misfire_grace_time=1
    )  # fmt: skip
    happened = {h.kind: h for h in collected(inbox, 0.8) if isinstance(h, Happening)}
    release.set()
    assert set(happened) == {"scheduler_error", "scheduler_overrun", "scheduler_missed"}
    assert happened["scheduler_error"].detail == "job broken: it broke"
    assert happened["scheduler_overrun"].detail == "job slow: not run"
    assert happened["scheduler_missed"].detail == "job stale: not run"
    assert abs(happened["scheduler_error"].boot_ms - clock.boot_ms()) < 5_000


@pytest.fixture
def stepped(set_scheduler: Any, clock: Any) -> Any:
    """Sets the wall clock that the run sees, and the one by which APScheduler counts."""
    set_scheduler(clock)

    def step(by_ms: int) -> None:
        clock.utc_by_ms += by_ms

    return step


@pytest.mark.parametrize("by_ms", [-7_200_000, -5_000, 5_000, 93_600_000])
def test_a_step_of_the_wall_clock_moves_no_wake(
    waker: Waker, clock: Any, inbox: Inbox, stepped: Any, by_ms: int
) -> None:
    """A11: back it would be silence for the length of the step, forward a burst."""
    waker.start(clock.boot_ms())
    collected(inbox, 0.3)
    stepped(by_ms)
    waker.follow(look_at(clock))
    words = Counter(collected(inbox, 1.3))
    for duty, every_ms in (("rotate", 300), ("check", 500), ("sample", 200)):
        # one more by the laying-out itself: a wake that is early does no harm
        assert 1_200 // every_ms - 1 <= words[duty] <= 1_300 // every_ms + 2, words


def test_a_machine_that_learns_the_year_is_not_held_up(
    waker: Waker, clock: Any, inbox: Inbox, stepped: Any
) -> None:
    """Started in 1970, say, and told the time later: ten thousand million wakes were missed."""
    waker.start(clock.boot_ms())
    collected(inbox, 0.3)
    stepped(60 * 365 * 86_400_000)
    collected(inbox, 0.5)  # the scheduler finds out first
    began = time.monotonic()
    waker.follow(look_at(clock))
    assert time.monotonic() - began < 2
    words = Counter(collected(inbox, 1.3))
    assert words["sample"] >= 4, words


def test_a_wake_on_time_is_followed_by_the_next() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    trigger = Onward(seconds=300, start_date=start, timezone=UTC)
    step = timedelta(seconds=300)
    late = timedelta(seconds=3)
    assert trigger.get_next_fire_time(None, start - step) == start
    assert trigger.get_next_fire_time(start, start + late) == start + step
    assert trigger.get_next_fire_time(start, start + 3 * step) == start + 4 * step
    assert trigger.get_next_fire_time(start, start + 3 * step + late) == start + 4 * step


def test_alone_the_scheduler_stays_silent_after_a_step_back(
    waker: Waker, clock: Any, inbox: Inbox, stepped: Any
) -> None:
    """What `follow` is for; should this fail one day, it can go."""
    waker.start(clock.boot_ms())
    collected(inbox, 0.3)
    stepped(-7_200_000)
    collected(inbox, 0.5)
    assert collected(inbox, 0.8) == []


def test_jobs_are_laid_out_anew_only_for_a_reason(waker: Waker, clock: Any) -> None:
    waker.start(clock.boot_ms())
    before = [id(job) for job in waker._scheduler.get_jobs()]
    waker.follow(look_at(clock))
    assert [id(job) for job in waker._scheduler.get_jobs()] == before
    clock.utc_by_ms += 99
    waker.follow(look_at(clock))
    assert [id(job) for job in waker._scheduler.get_jobs()] == before
    clock.utc_by_ms += 20
    waker.follow(look_at(clock))
    assert [id(job) for job in waker._scheduler.get_jobs()] != before


def test_after_a_suspend_jobs_are_laid_out_anew(waker: Waker, clock: Any, inbox: Inbox) -> None:
    """The scheduler's thread slept on, by a clock that stood still; wall and boot clock agree meanwhile."""
    waker.start(clock.boot_ms())
    before = next_runs(waker)
    clock.slept_ms += 600_000
    waker.follow(look_at(clock))
    assert set(collected(inbox, 0.05)) >= {"rotate", "check", "sample", "end"}
    after = next_runs(waker)
    for duty in ("rotate", "check", "sample"):
        assert abs((after[duty] - before[duty]).total_seconds() - 600) < 1


def test_clocks_are_read_together_or_again() -> None:
    """A pause of the process between two readings is no step of a clock."""

    class Paused:
        """Each reading but the first pair takes a second, `n` times."""

        def __init__(self, n: int) -> None:
            self.now_ms, self.n = 0, n

        def boot_ms(self) -> int:
            return self.now_ms

        def utc_ms(self) -> int:
            if self.n:
                self.n -= 1
                self.now_ms += 1_000
            return self.now_ms + 7

        def awake_ms(self) -> int:
            return self.now_ms

    for n in (0, 1, 4):
        assert look_at(Paused(n)) == Look(n * 1_000, n * 1_000 + 7, n * 1_000)  # type: ignore[arg-type]  # a stand-in
    look = look_at(Paused(1_000))  # type: ignore[arg-type]  # a stand-in
    assert look.utc_ms - look.boot_ms == 1_007  # a machine that is never left alone; there is no better


def test_the_inbox_gives_everything_that_is_there() -> None:
    inbox = Inbox()
    assert inbox.wait(0) == []
    for item in ("rotate", 15, Happening("clock_step", 1)):
        inbox.put(item)
    assert inbox.wait(1) == ["rotate", 15, Happening("clock_step", 1)]
    began = time.monotonic()
    assert inbox.wait(0.2) == []
    assert 0.15 < time.monotonic() - began < 2


def test_stopping_ends_the_threads(clock: Any, inbox: Inbox) -> None:
    before = threading.active_count()
    waker = Waker(QUICK, clock, inbox)
    waker.start(clock.boot_ms())
    collected(inbox, 0.4)
    waker.stop()
    waker.stop()
    until = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert threading.active_count() <= before


def test_a_waker_that_was_never_started_can_be_stopped(clock: Any, inbox: Inbox) -> None:
    Waker(replace(QUICK), clock, inbox).stop()
