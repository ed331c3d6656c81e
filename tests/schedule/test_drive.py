"""A run in real time: to its end, to a signal, with checks, clocks and stores that misbehave."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from soak.core.errors import CannotRun
from soak.core.ports import Happening
from soak.core.records import State, Verdict
from soak.core.verdict import judge
from soak.run import HEARTBEAT_MS, STOP_WITHIN_MS
from soak.schedule import TICK_S, Waker, handle_signals
from soak.store.writer import Pace


def states(judged: Any) -> dict[str, State]:
    return {finding.criterion: finding.state for finding in judged.cards[0].findings if finding.required}


def test_a_run_ends_when_its_time_is_over(machine: Any) -> None:
    one = machine()
    began = time.monotonic()
    end, judged = one.drive()
    took_s = time.monotonic() - began
    assert (end, judged.words) == ("completed", "PASS")
    assert 2.9 < took_s < 8
    record = one.record()
    assert judge(record, one.protocol).words == "PASS"
    assert (record.rows["sample"], record.rows["rotation"], record.rows["gradient_check"]) == (6, 3, 2)
    assert record.incidents == ()
    assert (
        max(later - sooner for (sooner, _), (later, _) in zip(one.ticks, one.ticks[1:], strict=False)) < 2_000
    )


def test_duties_are_done_when_they_are_due(machine: Any) -> None:
    one = machine()
    one.drive()
    t0_ms = one.run.boot_at_t0_ms
    for duty, every_ms in (("rotate", 1_000), ("check", 1_500)):
        late_ms = [at_ms - t0_ms - n * every_ms for at_ms, what, n in one.load.orders if what == duty]
        assert len(late_ms) == 3_000 // every_ms
        assert all(0 <= ms < 900 for ms in late_ms), late_ms


def test_a_kill_loses_fifteen_seconds_at_most() -> None:
    """A heartbeat, the tick that notices that it is due, and the writer's patience with rows that change."""
    assert HEARTBEAT_MS + TICK_S * 1_000 + Pace().open_rows_ms <= 15_000


def test_a_stop_takes_less_than_five_seconds_by_its_deadlines() -> None:
    assert sum(STOP_WITHIN_MS.values()) < 4_500


def test_sigterm_ends_it_within_five_seconds(machine: Any, signals: Any, later: Any) -> None:
    """Load and sampler use up all the time that they are given."""
    one = machine(duration_ms=60_000)
    one.load.stop_s = one.telemetry.stop_s = 99.0
    signals(one.inbox)
    later(1.2)
    began = time.monotonic()
    end, judged = one.drive()
    took_s = time.monotonic() - began - 1.2
    assert (end, judged.verdict) == ("interrupted", Verdict.INCONCLUSIVE)
    assert took_s < 5
    (attempt,) = one.record().attempts
    assert (attempt.end, attempt.reason) == ("interrupted", "SIGTERM")
    assert attempt.closing is not None
    assert 700 < attempt.elapsed_ms < 2_500
    assert one.kinds() == ["interrupted"]
    assert judge(one.record(), one.protocol).verdict is Verdict.INCONCLUSIVE


def test_sigterm_while_somebody_locks_the_store(machine: Any, signals: Any, later: Any) -> None:
    one = machine(duration_ms=60_000)
    one.load.stop_s = 99.0
    signals(one.inbox)
    later(1.2)
    began = time.monotonic()
    with closing(sqlite3.connect(one.path, isolation_level=None)) as other:
        one.on_tick = lambda _: None if other.in_transaction else other.execute("BEGIN IMMEDIATE")
        end, judged = one.drive()
        took_s = time.monotonic() - began - 1.2
        other.rollback()
    assert (end, judged.verdict) == ("interrupted", Verdict.INCONCLUSIVE)
    assert took_s < 5


def test_sigterm_before_t0(machine: Any, signals: Any, later: Any) -> None:
    one = machine()
    one.load.is_ready = False
    signals(one.inbox)
    later(0.5)
    end, judged = one.drive()
    assert (end, judged.verdict) == ("interrupted", Verdict.INCONCLUSIVE)
    assert one.database.runs() == []  # nothing was begun


def test_the_first_signal_may_be_a_question(machine: Any, signals: Any, later: Any) -> None:
    """On a terminal the first Ctrl-C says what would be lost."""
    one = machine(duration_ms=60_000)
    asked: list[int] = []

    def confirm(number: int) -> bool:
        asked.append(number)
        return len(asked) > 1

    one.confirm = confirm
    signals(one.inbox)
    later(0.8, signal.SIGINT)
    later(1.6, signal.SIGINT)
    end, _ = one.drive()
    assert (end, asked) == ("interrupted", [signal.SIGINT] * 2)
    assert one.record().attempts[0].elapsed_ms > 1_000


def test_signals_are_given_back(machine: Any) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    undo = handle_signals(machine().inbox)
    assert signal.getsignal(signal.SIGTERM) is not before[0]
    undo()
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_slow_check_delays_no_sample(machine: Any) -> None:
    """A10: a check takes two seconds while a sample is due every half."""
    one = machine(duration_ms=4_000, check_ms=4_000)
    one.load.check_ms = 2_000
    closed_ms: dict[int, int] = {}

    def look(run: Any) -> None:
        for slot in one.record().slots if run.state != "starting" and one.database.runs() else ():
            if slot.closed:
                closed_ms.setdefault(slot.index, run.elapsed_ms())

    one.on_tick = look
    end, judged = one.drive()
    assert (end, judged.words) == ("completed", "PASS")
    late_ms = [at_ms - (index + 1) * 500 for index, at_ms in closed_ms.items()]
    assert len(late_ms) >= 6
    assert max(late_ms) < 2_000, late_ms
    (check,) = one.record().gradient_checks
    assert check.at_ms >= 2_000


def test_a_tick_that_is_held_up_loses_no_poll(machine: Any) -> None:
    one = machine(duration_ms=4_000)
    held = False

    def hold(run: Any) -> None:
        nonlocal held
        if run.elapsed_ms() > 800 and not held:
            held = True
            time.sleep(1.2)

    one.on_tick = hold
    _, judged = one.drive()
    assert states(judged)["coverage"] is State.PASS
    assert one.record().rows["sample"] == 8
    assert all(slot.n_polls >= 4 for slot in one.record().slots)


def test_duties_are_done_without_a_scheduler(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late, and told."""
    monkeypatch.setattr(Waker, "_add", lambda *_: None)
    one = machine(duration_ms=9_000, rotate_ms=3_000, check_ms=5_000, sample_ms=1_000)
    end, judged = one.drive()
    assert (end, judged.words) == ("completed", "PASS")
    assert [n for _, what, n in one.load.orders if what == "rotate"] == [0, 1, 2]
    assert [n for _, what, n in one.load.orders if what == "check"] == [0, 1]
    assert set(one.kinds()) == {"scheduler_missed"}


def test_mishaps_of_the_scheduler_are_incidents(machine: Any) -> None:
    one = machine()
    one.inbox.put(Happening("scheduler_error", one.clock.boot_ms(), None, "job x: broken"))
    told = False

    def tell(run: Any) -> None:
        nonlocal told
        if run.elapsed_ms() > 500 and not told:
            told = True
            one.inbox.put(Happening("scheduler_error", one.clock.boot_ms(), None, "job x: broken"))

    one.on_tick = tell
    _, judged = one.drive()
    assert "scheduler_error" in one.kinds()
    assert judged.words == "PASS"


@pytest.mark.parametrize("by_ms", [-7_200_000, 93_600_000])
def test_a_step_of_the_wall_clock_is_noticed_and_moves_nothing(
    machine: Any, set_scheduler: Any, by_ms: int
) -> None:
    one = machine(duration_ms=4_000)
    set_scheduler(one.clock)
    stepped_ms = 0

    def step(run: Any) -> None:
        nonlocal stepped_ms
        if run.elapsed_ms() > 1_000 and not stepped_ms:
            stepped_ms = run.elapsed_ms()
            one.clock.utc_by_ms += by_ms

    one.on_tick = step
    began = time.monotonic()
    end, judged = one.drive()
    assert 3.9 < time.monotonic() - began < 9
    assert (end, judged.words) == ("completed", "PASS")
    (incident,) = [each for each in one.record().incidents if each.kind == "clock_step"]
    assert incident.data["step_ms"] == pytest.approx(by_ms, abs=200)
    assert incident.at_ms - stepped_ms < 1_500
    assert set(one.kinds()) <= {"clock_step", "scheduler_overrun"}  # a burst, before anybody looked


def test_a_suspend_breaks_continuity_and_counts_as_time(machine: Any, set_scheduler: Any) -> None:
    one = machine(duration_ms=6_000)
    set_scheduler(one.clock)
    slept = False

    def sleep(run: Any) -> None:
        nonlocal slept
        if run.elapsed_ms() > 1_000 and not slept:
            slept = True
            one.clock.slept_ms += 3_000
            one.telemetry.polled_ms += 3_000  # nobody read anything

    one.on_tick = sleep
    began = time.monotonic()
    end, judged = one.drive()
    assert time.monotonic() - began < 6
    assert (end, judged.verdict) == ("completed", Verdict.INCONCLUSIVE)
    assert "suspended" in one.kinds()
    assert states(judged)["continuity"] is State.UNKNOWN
    assert states(judged)["coverage"] is State.UNKNOWN
    assert one.record().attempts[0].elapsed_ms == 6_000


def test_a_start_that_cannot_come_about_is_refused(machine: Any) -> None:
    one = machine()
    one.load.is_ready = False
    one.load.begun_ms = 1
    one.load.events.append(Happening("compile_error", one.clock.boot_ms(), "gpu", "no back end for gfx906"))
    with pytest.raises(CannotRun, match="gfx906"):
        one.drive()


def test_stop_on_fail_says_so(machine: Any) -> None:
    one = machine(duration_ms=60_000)

    def fail(run: Any) -> None:
        if run.elapsed_ms() > 500:
            one.load.events.append(
                Happening("device_error", one.clock.boot_ms(), one.info.devices[0].gpu, "bad")
            )

    one.on_tick = fail
    end, judged = one.drive(stop_on_fail=True)
    assert (end, judged.verdict) == ("failed", Verdict.FAIL)
    assert one.record().attempts[0].reason == "stopped by the first final fail, as asked"
    assert judge(one.record(), one.protocol).verdict is Verdict.FAIL


def test_a_store_that_is_locked_at_the_end_is_waited_for(machine: Any) -> None:
    """A12 ii: somebody else's transaction, over the end of the run and three seconds beyond."""
    one = machine(duration_ms=2_000)
    other = sqlite3.connect(one.path, isolation_level=None, check_same_thread=False)
    timer: list[threading.Timer] = []

    def lock(run: Any) -> None:
        if run.elapsed_ms() > 1_000 and not timer:
            other.execute("BEGIN IMMEDIATE")
            timer.append(threading.Timer(4.0, other.rollback))
            timer[0].start()

    one.on_tick = lock
    end, judged = one.drive()
    timer[0].join()
    other.close()
    assert (end, judged.words) == ("completed", "PASS")
    assert judge(one.record(), one.protocol).words == "PASS"


def test_a_signal_ends_the_wait_for_a_store_that_is_away(machine: Any, signals: Any, later: Any) -> None:
    one = machine(duration_ms=1_500)
    signals(one.inbox)
    later(3.0)
    began = time.monotonic()
    with closing(sqlite3.connect(one.path, isolation_level=None)) as other:
        one.on_tick = lambda _: None if other.in_transaction else other.execute("BEGIN IMMEDIATE")
        end, judged = one.drive()
        other.rollback()
    assert (end, judged.verdict) == ("completed", Verdict.INCONCLUSIVE)
    assert time.monotonic() - began < 3.0 + 5
