"""The one loop, with a clock, cards and a load of our own, second by second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soak.core.errors import CannotRun
from soak.core.ports import Checked, Happening, LoadEvent, Progress, Ready
from soak.core.protocol import Protocol, Shape
from soak.core.records import Poll, Reading, State, Verdict
from soak.core.verdict import judge
from soak.run import DUTIES, Plan, Run
from soak.store.memory import MemoryStore

BOOT_AT_T0_MS = 5_000_000


@dataclass
class Clock:
    now_ms: int = BOOT_AT_T0_MS

    def boot_ms(self) -> int:
        return self.now_ms

    def utc_ms(self) -> int:
        return self.now_ms + 1_700_000_000_000


@dataclass
class Load:
    """Says what it is told to say, and keeps its orders."""

    events: list[LoadEvent] = field(default_factory=list)
    orders: list[tuple[str, int]] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    at_stop: Callable[[], Sequence[LoadEvent]] = tuple

    def rotate(self, shape: Shape) -> None:
        self.orders.append(("rotate", shape.index))

    def check(self, index: int) -> None:
        self.orders.append(("check", index))

    def take(self) -> Sequence[LoadEvent]:
        taken, self.events = self.events, []
        return taken

    def stop(self, deadline_ms: int) -> None:
        self.stopped.append(deadline_ms)
        self.events += self.at_stop()


@dataclass
class Telemetry:
    items: list[Poll | Happening] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)

    def take(self) -> Sequence[Poll | Happening]:
        taken, self.items = self.items, []
        return taken

    def stop(self, deadline_ms: int) -> None:
        self.stopped.append(deadline_ms)


class Scene:
    """A run of `n` cards; `go` lets seconds pass, with heartbeats, polls, wakes and a tick in each."""

    def __init__(self, make: Any, n: int = 1, protocol: Protocol | None = None, **plan: Any) -> None:
        self.make = make
        self.protocol = protocol or make.protocol()
        self.gpus = [f"gpu{index}" for index in range(n)]
        devices = tuple(replace(make.device(), gpu=gpu, model=gpu) for gpu in self.gpus)
        info = replace(make.record([]).info, devices=devices)
        self.clock, self.load, self.telemetry = Clock(), Load(), Telemetry()
        self.store = plan.pop("store", None) or MemoryStore(self.clock)
        self.clock.now_ms = plan.pop("boot_ms", BOOT_AT_T0_MS)
        self.plan = Plan(plan.pop("info", info), self.protocol, "boot", **plan)
        self.run = Run(self.plan, self.clock, self.telemetry, self.load, self.store)
        self.n_steps = 0
        self.working = set(self.gpus)
        self.polled = set(self.gpus)
        self.checking: Any = 3_000  # how long a check takes; None: it never comes back
        self.due: list[tuple[int, str, int]] = []
        self.wakes: tuple[str, ...] = DUTIES

    @property
    def at_ms(self) -> int:
        return self.run.elapsed_ms()

    def begin(self, counters: Any = None) -> Scene:
        for gpu in self.gpus:
            counted = counters or self.make.counters(corrected=0, uncorrected=0)
            self.telemetry.items.append(replace(self.make.poll(self.clock.now_ms, ecc=counted), gpu=gpu))
            self.load.events.append(Ready(gpu, self.clock.now_ms, "kernel", "why", 400.0))
        assert self.run.wait_for_cards() == []
        self.take_orders()
        return self

    def take_orders(self) -> None:
        for order, index in self.load.orders[:]:
            if order == "check" and self.checking is not None:
                done_ms = self.clock.now_ms + self.checking
                self.due += [(done_ms, gpu, index) for gpu in self.gpus if gpu in self.working]
        self.done_orders = getattr(self, "done_orders", []) + self.load.orders
        self.load.orders = []

    def beat(self, gpu: str, rotation: int | None = None, **changes: Any) -> Progress:
        now_ms = self.clock.now_ms
        index = self.protocol.rotation_index(self.at_ms) if rotation is None else rotation
        n = self.n_steps
        plain = Progress(
            gpu, now_ms, index, n, n, now_ms - 100, 400.0, golden=f"{index}" * 8, n_due=n, n_compared=n
        )  # fmt: skip
        return replace(plain, **changes)

    def poll(self, gpu: str, **reading: Any) -> Poll:
        counters = self.make.counters(corrected=0, uncorrected=0)
        poll: Poll = self.make.poll(self.clock.now_ms, ecc=counters, **reading)
        return replace(poll, gpu=gpu)

    def second(self, **reading: Any) -> None:
        """What a second brings, not yet taken by a tick."""
        self.clock.now_ms += 1_000
        self.n_steps += 2
        self.load.events += [self.beat(gpu) for gpu in self.gpus if gpu in self.working]
        self.telemetry.items += [self.poll(gpu, **reading) for gpu in self.gpus if gpu in self.polled]
        for done_ms, gpu, index in self.due[:]:
            if done_ms <= self.clock.now_ms:
                self.due.remove((done_ms, gpu, index))
                check = replace(self.make.check(index, attempt=0), gpu=gpu)
                self.load.events.append(Checked(gpu, self.clock.now_ms, check))

    def tick(self) -> None:
        for duty in self.wakes:
            self.run.wake(duty)
        self.run.tick()
        self.take_orders()

    def go(self, seconds: int, **reading: Any) -> Scene:
        for _ in range(seconds):
            if self.run.is_over:
                break
            self.second(**reading)
            self.tick()
        return self

    def stored(self) -> Any:
        self.store.flush(0)
        return self.store.record()

    def incidents(self) -> list[str]:
        return [incident.kind for incident in self.stored().incidents]

    def finish(self) -> Any:
        return self.run.finish(*self.run.outcome)

    def states(self, gpu: str = "gpu0") -> dict[str, State]:
        (card,) = [card for card in self.run.snapshot().cards if card.device.gpu == gpu]
        return {finding.criterion: finding.state for finding in card.findings}


@pytest.fixture
def scene(make: Any) -> Scene:
    return Scene(make)


def assert_stored_as_judged(scene: Scene, judged: Any) -> None:
    again = judge(scene.stored(), scene.protocol)
    assert again.verdict is judged.verdict
    assert [card.findings for card in again.cards] == [card.findings for card in judged.cards]


# -- a whole run


@pytest.mark.parametrize("n", [1, 2])
def test_a_healthy_run_passes(make: Any, n: int) -> None:
    scene = Scene(make, n).begin().go(700)
    assert scene.run.outcome == ("completed", "")
    assert scene.at_ms == 600_000
    judged = scene.finish()
    assert judged.words == "PASS"
    assert_stored_as_judged(scene, judged)
    record = scene.stored()
    assert (record.rows["sample"], record.rows["rotation"], record.rows["gradient_check"]) == (
        10 * n,
        6 * n,
        3 * n,
    )
    assert record.attempts[0].end == "completed"
    assert record.incidents == ()
    assert [order for order in scene.done_orders if order[0] == "rotate"] == [
        ("rotate", index) for index in range(6)
    ]


def test_a_run_of_ten_seconds_has_what_a_long_one_has(make: Any) -> None:
    """Shorter than its slot, its rotation and its check interval."""
    protocol = make.protocol(duration_ms=10_000, warmup_ms=0)
    scene = Scene(make, protocol=protocol).begin().go(20)
    judged = scene.finish()
    assert judged.words == "PASS"
    assert_stored_as_judged(scene, judged)


def test_cadences_that_do_not_divide_the_length(make: Any) -> None:
    protocol = make.protocol(duration_ms=130_000, sample_ms=41_000, rotate_ms=37_000, check_ms=50_000)
    scene = Scene(make, protocol=protocol, n=2).begin().go(200)
    judged = scene.finish()
    assert judged.words == "PASS"
    assert_stored_as_judged(scene, judged)
    assert scene.stored().rows["sample"] == 2 * 4
    assert [row.end_ms for row in scene.stored().slots if row.gpu == "gpu0"][-1] == 130_000


def test_a_rest_of_two_seconds_is_part_of_the_last_rotation(make: Any) -> None:
    scene = Scene(make, protocol=make.protocol(duration_ms=602_000)).begin().go(700)
    judged = scene.finish()
    assert judged.words == "PASS"
    assert [order for order in scene.done_orders if order[0] == "rotate"] == [
        ("rotate", index) for index in range(6)
    ]
    assert scene.incidents() == []


def test_before_t0_nothing_is_written(scene: Scene) -> None:
    assert scene.run.wait_for_cards() == ["the first step of gpu0"]
    assert scene.run.snapshot().state == "starting"
    judged = scene.run.finish("interrupted", "SIGTERM")
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert (len(scene.load.stopped), len(scene.telemetry.stopped), scene.store.rows_waiting) == (1, 1, 0)
    with pytest.raises(ValueError, match="unpack"):
        scene.store.record()  # not even the run


def test_a_card_that_fails_before_t0_refuses_the_start(scene: Scene) -> None:
    scene.load.events.append(Happening("compile_error", 0, "gpu0", "no back end"))
    with pytest.raises(CannotRun, match="no back end"):
        scene.run.wait_for_cards()


def test_what_is_not_of_this_run_is_passed_over(scene: Scene) -> None:
    scene.begin()
    scene.telemetry.items.append(replace(scene.poll("gpu0"), gpu="other"))
    scene.load.events.append(replace(scene.beat("gpu0"), gpu="other"))
    scene.load.events.append(Checked("other", scene.clock.now_ms, scene.make.check(0)))
    scene.load.events.append(Ready("gpu0", scene.clock.now_ms, "kernel", "a restarted worker", 400.0))
    scene.go(1)
    assert scene.incidents() == []


# -- duties


def test_a_duty_waits_for_its_own_time(make: Any) -> None:
    """A wake that is early is kept; due times are the run's."""
    scene = Scene(make).begin()
    scene.wakes = ()
    scene.go(98)
    scene.run.wake("rotate")
    scene.go(1)
    assert ("rotate", 1) not in scene.done_orders
    scene.go(1)
    assert ("rotate", 1) in scene.done_orders
    assert "scheduler_missed" not in [k for k in scene.incidents() if "rotate" in k]


def test_a_duty_without_its_wake_is_done_late_and_told(make: Any) -> None:
    scene = Scene(make).begin()
    scene.wakes = ("check", "sample", "end")
    scene.go(101)
    assert ("rotate", 1) not in scene.done_orders
    scene.go(2)
    assert ("rotate", 1) in scene.done_orders
    assert scene.incidents() == ["scheduler_missed"]
    assert scene.stored().incidents[0].detail == "rotate was due at 100.0 s and was not woken for"
    assert scene.run.snapshot().n_missed["rotate"] == 1


def test_without_a_scheduler_the_run_still_passes(make: Any) -> None:
    scene = Scene(make)
    scene.wakes = ()
    scene.begin().go(700)
    judged = scene.finish()
    assert judged.words == "PASS"
    assert scene.incidents() == ["scheduler_missed"] * (5 + 2 + 9)


def test_rotations_that_were_slept_through_are_not_made_up(make: Any) -> None:
    """350 s of nothing: the rotation that is due now, and the last due check."""
    scene = Scene(make).begin().go(50)
    scene.clock.now_ms += 350_000
    scene.go(200)
    orders = [order for order in scene.done_orders if order != ("check", 0)]
    assert orders == [("rotate", 0), ("rotate", 4), ("check", 2), ("rotate", 5)]
    judged = scene.finish()
    assert judged.verdict is Verdict.INCONCLUSIVE
    states = {f.criterion: f.state for f in judged.cards[0].findings}
    assert {name for name, state in states.items() if state is State.UNKNOWN} == {
        "utilisation", "temperature", "gradient", "integrity", "coverage",
    }  # fmt: skip
    assert_stored_as_judged(scene, judged)


# -- checks


def test_a_check_that_outlives_its_interval_is_late_not_missed(make: Any) -> None:
    scene = Scene(make)
    scene.checking = 210_000
    scene.begin().go(700)
    assert scene.incidents() == ["check_late", "check_late"]
    assert scene.stored().incidents[0].detail == "check 1 is due while check 0 is still at work"
    judged = scene.finish()
    assert judged.words == "PASS"
    assert [(c.index, c.at_ms) for c in scene.stored().gradient_checks] == [
        (0, 210_000),
        (1, 410_000),
        (2, 610_000),
    ]


def test_the_last_check_is_waited_for_a_minute(make: Any) -> None:
    protocol = make.protocol(duration_ms=205_000)
    for checking, words in ((64_000, "PASS"), (70_000, "INCONCLUSIVE")):
        scene = Scene(make, protocol=protocol)
        scene.checking = checking
        scene.begin().go(300)
        over_ms = scene.clock.now_ms - BOOT_AT_T0_MS - 205_000
        assert scene.finish().words == words
        assert over_ms == (59_000 if words == "PASS" else 61_000)


def test_a_check_that_a_restarted_worker_lost_is_not_waited_for(make: Any) -> None:
    """A later one was made: the earlier one is lost, unknown, and holds nothing up."""
    scene = Scene(make)
    scene.checking = None
    scene.begin().go(199)
    scene.checking = 3_000
    scene.go(500)
    assert scene.incidents() == ["check_late"]
    assert scene.clock.now_ms - BOOT_AT_T0_MS == 600_000
    judged = scene.finish()
    (finding,) = [f for f in judged.cards[0].findings if f.state is State.UNKNOWN]
    assert (finding.criterion, finding.reason) == ("gradient", "2 of 3 due checks were made")


def test_a_late_failing_check_fails_the_run(make: Any) -> None:
    scene = Scene(make)
    scene.begin().go(599)
    bad = scene.make.check(2, dq={"max_abs": 1.0}, attempt=0)
    scene.load.events.append(Checked("gpu0", scene.clock.now_ms, replace(bad, gpu="gpu0")))
    scene.go(5)
    assert scene.finish().verdict is Verdict.FAIL


# -- cards that go


def test_one_lost_card_does_not_end_the_others_run(make: Any) -> None:
    scene = Scene(make, 2).begin().go(250)
    scene.telemetry.items.append(Happening("device_lost", scene.clock.now_ms, "gpu0", "gone"))
    scene.working, scene.polled = {"gpu1"}, {"gpu1"}
    scene.go(500)
    assert scene.run.outcome == ("completed", "")
    judged = scene.finish()
    assert [card.verdict for card in judged.cards] == [Verdict.FAIL, Verdict.PASS]
    assert scene.incidents() == ["device_lost"]  # its checks are not called late
    assert_stored_as_judged(scene, judged)
    lost = [slot for slot in scene.stored().slots if slot.gpu == "gpu0"]
    assert [slot.n_polls for slot in lost] == [60, 60, 60, 60, 10, 0, 0, 0, 0, 0]


def test_without_a_card_that_works_the_run_ends(make: Any) -> None:
    scene = Scene(make, 2).begin().go(100)
    for gpu in scene.gpus:
        assert not scene.run.is_over
        scene.load.events.append(Happening("restarts_exhausted", scene.clock.now_ms, gpu, "three times"))
        scene.go(10)
    assert scene.run.is_over
    assert scene.run.outcome == ("failed", "no card can work any more")
    judged = scene.finish()
    assert judged.verdict is Verdict.INCONCLUSIVE  # nobody says that it was the card
    assert_stored_as_judged(scene, judged)


@pytest.mark.parametrize("stop", [True, False])
def test_stop_on_fail(make: Any, stop: bool) -> None:
    scene = Scene(make, 2, stop_on_fail=stop).begin().go(100)
    scene.load.events.append(Happening("device_error", scene.clock.now_ms, "gpu1", "bad"))
    scene.go(1)
    assert scene.run.is_over is stop
    assert ("stopped_on_fail" in scene.incidents()) is stop
    if stop:
        assert scene.run.outcome == ("failed", "stopped by the first final fail, as asked")
        judged = scene.finish()
        assert judged.verdict is Verdict.FAIL
        assert_stored_as_judged(scene, judged)


# -- the end


def test_an_interruption_is_recorded(scene: Scene) -> None:
    scene.begin().go(250)
    judged = scene.run.finish("interrupted", "SIGTERM")
    assert judged.verdict is Verdict.INCONCLUSIVE
    (attempt,) = scene.stored().attempts
    assert (attempt.end, attempt.reason, attempt.elapsed_ms) == ("interrupted", "SIGTERM", 250_000)
    assert attempt.closing is not None
    assert scene.incidents() == ["interrupted"]
    assert_stored_as_judged(scene, judged)
    assert scene.load.stopped[0] + scene.telemetry.stopped[0] <= 3_000  # 1.5 s are left for the store
    assert scene.run.snapshot().state == "interrupted"


@pytest.mark.parametrize("seconds", [0, 1, 60, 61])
def test_an_interruption_at_any_time_is_inconclusive_and_whole(make: Any, seconds: int) -> None:
    scene = Scene(make).begin().go(seconds)
    judged = scene.run.finish("interrupted", "SIGTERM")
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert_stored_as_judged(scene, judged)


def test_what_happens_while_the_load_is_stopped_is_not_observed(scene: Scene) -> None:
    """Idle seconds of a stop are neither bad nor part of the elapsed time."""
    scene.begin().go(250)

    def idle() -> Sequence[LoadEvent]:
        for _ in range(3):
            scene.clock.now_ms += 1_000
            scene.telemetry.items.append(scene.poll("gpu0", utilisation=0.0))
        return ()

    scene.load.at_stop = idle
    scene.run.finish("interrupted", "SIGTERM")
    record = scene.stored()
    assert sum(slot.bad_ms for slot in record.slots) == 0
    assert sum(slot.observed_ms for slot in record.slots) == 250_000 == record.attempts[0].elapsed_ms


def test_the_last_words_of_a_worker_are_heard(scene: Scene) -> None:
    """A mismatch that it finds while it is being stopped is one."""
    scene.begin().go(600)
    scene.load.at_stop = lambda: [Happening("mismatch", scene.clock.now_ms, "gpu0", "1 bit")]
    assert scene.finish().verdict is Verdict.FAIL


def test_the_run_waits_two_polls_for_its_last_one(make: Any) -> None:
    scene = Scene(make).begin().go(599)
    scene.polled = set()
    scene.go(1)
    assert not scene.run.is_over
    scene.go(10)
    assert scene.clock.now_ms - BOOT_AT_T0_MS == 603_000
    assert scene.finish().words == "PASS"  # one second of 600 is unobserved


def test_a_store_that_comes_back_in_time_costs_nothing(make: Any) -> None:
    """Somebody else's transaction at the very end of 48 h (A12)."""
    scene = Scene(make).begin().go(600)
    scene.store.away, n_asked = "database is locked", 0

    def hurry() -> bool:
        nonlocal n_asked
        n_asked += 1
        if n_asked == 20:
            scene.store.away = ""
        return False

    judged = scene.run.finish(*scene.run.outcome, hurry)
    assert judged.words == "PASS"
    assert_stored_as_judged(scene, judged)


@pytest.mark.parametrize("hurried", [True, False])
def test_a_store_that_stays_away_ends_inconclusive(make: Any, hurried: bool) -> None:
    scene = Scene(make).begin().go(600)
    scene.store.away = "disk full"
    asked: list[bool] = []

    def hurry() -> bool:
        asked.append(hurried)
        return hurried

    judged = scene.run.finish(*scene.run.outcome, hurry)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert len(asked) == (1 if hurried else 40)
    (coverage,) = [f for f in judged.cards[0].findings if f.criterion == "coverage"]
    assert coverage.reason.endswith("the closing record could not be written")
    assert scene.run.snapshot().verdict is Verdict.INCONCLUSIVE


def test_dropped_rows_end_inconclusive(make: Any) -> None:
    scene = Scene(make)
    scene.store = MemoryStore(scene.clock, limit_rows=5)
    scene.run = Run(scene.plan, scene.clock, scene.telemetry, scene.load, scene.store)
    scene.begin().go(50)
    scene.store.away = "disk full"
    scene.go(400)
    scene.store.away = ""
    scene.go(400)
    assert scene.finish().verdict is Verdict.INCONCLUSIVE
    assert scene.stored().attempts[0].closing.dropped > 0
    assert judge(scene.stored(), scene.protocol).verdict is Verdict.INCONCLUSIVE


# -- what is written when


def test_a_killed_daemon_loses_fifteen_seconds_at_most(make: Any) -> None:
    scene = Scene(make)
    scene.begin()
    for _ in range(125):
        scene.go(1)
        record = scene.stored()
        observed_ms = sum(slot.observed_ms for slot in record.slots)
        assert scene.at_ms - observed_ms <= 15_000
        assert scene.at_ms - record.attempts[0].elapsed_ms <= 15_000


@pytest.mark.parametrize("n", [1, 3])
def test_live_and_stored_agree_whenever_rows_were_written(make: Any, n: int) -> None:
    scene = Scene(make, n).begin()
    compared = 0
    for _ in range(620):
        scene.go(1)
        record = scene.stored()
        if scene.run.is_over or record.attempts[0].elapsed_ms != scene.at_ms:
            continue
        compared += 1
        stored = judge(record, scene.protocol)
        live = scene.run.snapshot()
        assert [card.findings for card in stored.cards] == [card.findings for card in live.cards]
        assert stored.verdict is live.verdict is not Verdict.PASS
    assert compared >= 60


def test_pass_so_far_does_not_flicker(make: Any) -> None:
    """Once everything has passed so far, no border of slot, rotation or check disturbs it."""
    scene = Scene(make, 2).begin().go(130)
    for _ in range(469):
        scene.go(1)
        states = scene.states()
        assert {name for name, state in states.items() if state is not State.PASS} == {"continuity"}, (
            scene.at_ms
        )


def test_states_are_those_of_the_contract(make: Any) -> None:
    scene = Scene(make)
    seen = [scene.run.snapshot().state]
    scene.begin()
    for _ in range(601):
        scene.go(1)
        seen.append(scene.run.snapshot().state)
    assert scene.run.is_over
    scene.finish()
    assert set(seen) == {"starting", "running"}
    assert scene.run.snapshot().state == "completed"


# -- order


def test_a_poll_is_judged_by_what_was_known_around_it(make: Any) -> None:
    """The daemon stands still for 40 s and finds 40 polls and all heartbeats at once: the card did nothing
    in 30 of them, and a step at their end does not excuse it."""
    scene = Scene(make).begin().go(20)
    step_ms = scene.clock.now_ms
    for second in range(40):
        scene.second()
        if second < 30:  # the heart beats, the steps stand
            beat: Any = scene.load.events[-1]
            scene.load.events[-1] = replace(beat, last_step_boot_ms=step_ms)
    scene.tick()
    scene.go(1)
    (slot,) = scene.stored().slots[:1]
    assert 25_000 <= slot.suspect_ms <= 30_000
    assert slot.suspect_ms + slot.in_spec_ms == slot.observed_ms


def test_a_heartbeat_that_is_a_little_late_excuses_its_seconds(make: Any) -> None:
    """A poll at once, the word of the steps behind it with the next one."""
    scene = Scene(make).begin()
    for _ in range(30):
        scene.clock.now_ms += 1_000
        scene.telemetry.items.append(scene.poll("gpu0"))
        if scene.clock.now_ms // 1_000 % 2:
            scene.n_steps += 4
            scene.load.events.append(scene.beat("gpu0"))
        scene.tick()
    scene.go(40)
    assert scene.stored().slots[0].suspect_ms == 0


def eventful(make: Any, shuffled: Callable[[list[Any]], list[Any]]) -> Any:
    """Twelve seconds taken in one tick: a rotation, a mismatch, a kill, an error, a check."""
    scene = Scene(make, 2).begin().go(95)
    for second in range(12):
        scene.second(utilisation=90.0 if second == 4 else 99.0)
        if second == 3:
            scene.load.events.append(Happening("mismatch", scene.clock.now_ms, "gpu1", "1 bit"))
            scene.load.events.append(Happening("worker_killed", scene.clock.now_ms, "gpu1", "by whom"))
        if second == 6:
            poll = make.poll(scene.clock.now_ms + 1, ecc=make.counters(corrected=1, uncorrected=0))
            scene.telemetry.items.append(replace(poll, gpu="gpu0"))
            check = replace(make.check(1, attempt=0), gpu="gpu0")
            scene.load.events.append(Checked("gpu0", scene.clock.now_ms, check))
    scene.load.events = shuffled(scene.load.events)
    scene.telemetry.items = shuffled(scene.telemetry.items)
    scene.tick()
    scene.go(15).run.finish("interrupted", "SIGTERM")
    return scene.stored()


@pytest.fixture(scope="module")
def in_order(make: Any) -> Any:
    return eventful(make, list)


@settings(max_examples=40)
@given(data=st.data())
def test_the_order_of_arrival_within_a_tick_does_not_matter(make: Any, in_order: Any, data: Any) -> None:
    assert len(in_order.incidents) == 5  # with the counter that went back, and the interruption
    assert eventful(make, lambda items: data.draw(st.permutations(items))) == in_order


# -- taken up again


def again(make: Any, scene: Scene, gap_ms: int = 300_000, **plan: Any) -> Scene:
    """Another process takes the run up, `gap_ms` later, over the same store."""
    before = scene.stored()
    taken = Scene(
        make, len(scene.gpus), scene.protocol, before=before, info=before.info, store=scene.store,
        boot_ms=scene.clock.now_ms + gap_ms, **plan,
    )  # fmt: skip
    scene.clock.now_ms = taken.clock.now_ms  # the store's clock
    return taken


@pytest.mark.parametrize("seconds", [0, 1, 59, 60, 61, 99, 100, 200, 203, 250, 599, 600])
def test_continue_counts_on_and_is_inconclusive(make: Any, seconds: int) -> None:
    """Interrupted anywhere: inside a slot, a rotation, a check, on a border, at the very end."""
    scene = Scene(make, 2).begin().go(seconds)
    scene.run.finish("interrupted", "SIGTERM")
    taken = again(make, scene, attempt=1, continues=True)
    taken.begin()
    assert taken.at_ms == seconds * 1_000
    taken.go(700)
    judged = taken.finish()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert_stored_as_judged(taken, judged)
    unknown = {f.criterion for f in judged.cards[0].findings if f.state is State.UNKNOWN}
    assert unknown == {"continuity"}
    record = taken.stored()
    assert (len(record.attempts), record.rows["sample"], record.rows["rotation"]) == (1, 20, 12)
    assert [len(record.attempts[0].stretches), record.attempts[0].elapsed_ms] == [2, 600_000]
    assert record.rows["gradient_check"] == 6


def test_a_check_that_was_made_is_not_ordered_again(make: Any) -> None:
    scene = Scene(make).begin().go(210)
    scene.run.finish("interrupted")
    taken = again(make, scene, continues=True).begin()
    assert taken.done_orders == [("rotate", 2)]
    scene = Scene(make).begin().go(201)
    scene.run.finish("interrupted")
    taken = again(make, scene, continues=True).begin()
    assert taken.done_orders == [("rotate", 2), ("check", 1)]


@pytest.mark.parametrize("killed_at", [5, 61, 101, 203, 250])
def test_continue_after_a_kill(make: Any, killed_at: int) -> None:
    """Nothing was closed; the store holds what was written last."""
    scene = Scene(make).begin().go(killed_at)
    elapsed_ms = scene.stored().attempts[0].elapsed_ms
    taken = again(make, scene, continues=True).begin()
    assert taken.at_ms == elapsed_ms
    for _ in range(700):
        if taken.run.is_over:
            break
        taken.go(1)
        record = taken.stored()
        if record.attempts[0].elapsed_ms == taken.at_ms:
            stored, live = judge(record, taken.protocol), taken.run.snapshot()
            assert [card.findings for card in stored.cards] == [card.findings for card in live.cards]
    judged = taken.finish()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert_stored_as_judged(taken, judged)
    assert all(slot.closed for slot in taken.stored().slots)


def test_the_baseline_of_a_continued_attempt_is_that_of_its_t0(make: Any) -> None:
    """Killed before the first reading after t0: an error since then must not become the baseline."""
    scene = Scene(make).begin()
    scene.clock.now_ms += 1_000
    scene.tick()
    taken = again(make, scene, continues=True)
    taken.begin(counters=make.counters(corrected=3, uncorrected=0))
    assert taken.run.info.devices[0].ecc_baseline["ras/umc/corrected"].value == 0
    taken.clock.now_ms += 1_000
    errors = make.counters(corrected=3, uncorrected=0)
    taken.telemetry.items.append(replace(make.poll(taken.clock.now_ms, ecc=errors), gpu="gpu0"))
    taken.tick()
    assert taken.states()["ecc"] is State.FAIL


def test_a_new_attempt_has_a_baseline_of_its_own(make: Any) -> None:
    scene = Scene(make).begin().go(30)
    scene.run.finish("interrupted")
    taken = again(make, scene, attempt=2).begin(counters=make.counters(corrected=3, uncorrected=0))
    assert taken.run.info.devices[0].ecc_baseline["ras/umc/corrected"].value == 3
    assert taken.at_ms == 0


def test_a_second_attempt_passes_after_its_full_length(make: Any) -> None:
    scene = Scene(make).begin().go(200)
    scene.run.finish("interrupted", "SIGTERM")
    resumed = Happening("resumed", scene.clock.now_ms, None, "after: interrupted SIGTERM")
    taken = again(make, scene, attempt=2, happened=(resumed,)).begin().go(700)
    judged = taken.finish()
    assert judged.words == "PASS"
    assert_stored_as_judged(taken, judged)


def test_an_unclean_reboot_lasts_live_as_in_the_report(make: Any) -> None:
    """It is found by attempt 2; attempt 3 runs its full length and is still in doubt."""
    scene = Scene(make).begin().go(100)
    reboot = Happening("unclean_reboot", scene.clock.now_ms, None, "the machine went down")
    second = again(make, scene, attempt=2, happened=(reboot,)).begin().go(100)
    second.run.finish("interrupted", "SIGTERM")
    third = again(make, second, attempt=3).begin().go(700)
    assert third.states()["faults"] is State.UNKNOWN
    judged = third.finish()
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert_stored_as_judged(third, judged)


def test_a_fail_of_an_earlier_attempt_is_shown_live_as_in_the_report(make: Any) -> None:
    """Of a criterion that is not required, else the run would be finished."""
    required = frozenset({"faults", "coverage", "continuity", "integrity", "gradient", "utilisation"})
    protocol = make.protocol(limits={"required": required})
    scene = Scene(make, protocol=protocol).begin().go(70).go(120, temperature=90.0)
    scene.run.finish("interrupted", "SIGTERM")
    taken = again(make, scene, attempt=2).begin().go(700)
    assert taken.states()["temperature"] is State.FAIL
    judged = taken.finish()
    assert judged.words == "PASS"
    assert_stored_as_judged(taken, judged)


def test_a_card_without_ecc_passes_with_a_waiver(make: Any) -> None:
    scene = Scene(make)
    bare = replace(make.device(ecc=Reading.unsupported("no RAS"), ecc_baseline={}), gpu="gpu0")
    scene.plan = replace(scene.plan, info=replace(scene.plan.info, devices=(bare,), waived=("ecc",)))
    scene.run = Run(scene.plan, scene.clock, scene.telemetry, scene.load, scene.store)
    none = {"ras/umc/corrected": Reading.unsupported("no RAS")}
    scene.begin(counters=none)
    scene.poll = lambda gpu, **reading: replace(make.poll(scene.clock.now_ms, **reading), gpu=gpu)  # type: ignore[method-assign]  # of one card
    judged = scene.go(700).finish()
    assert judged.words == "PASS, ecc waived"
