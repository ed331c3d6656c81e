"""temperature: settled in the band, or at a distance from the card's own slow-down limit."""

from __future__ import annotations

from typing import Any

import pytest

from soak.core.records import Cause, Finding, Quantity, Reading, Slot, State, Stretch

MINUTE_MS = 60_000
THROTTLE = Quantity.THERMAL_THROTTLE


class Hundred:
    """100 slots of a minute, the first of them warm-up: 99 are due."""

    def __init__(self, make: Any, kind: str = "band", **changes: Any) -> None:
        self.make = make
        self.protocol = make.protocol(
            duration_ms=100 * MINUTE_MS, limits={"temperature_kind": kind}, **changes
        )  # fmt: skip
        self.temperatures: dict[int, float | None] = dict.fromkeys(range(100), 72.0)
        self.changes: dict[int, dict[str, Any]] = {}

    def rows(self, n: int = 100) -> list[Slot]:
        return [
            self.make.slot(i, self.protocol, temperature_c=self.temperatures[i], **self.changes.get(i, {}))
            for i in range(n)
        ]

    def judged(self, minutes: float = 100, rows: list[Slot] | None = None, **options: Any) -> Finding:
        ended = options.pop("ended", minutes == 100)
        judge = self.make.judge(protocol=self.protocol, **options)
        for row in self.rows(int(minutes)) if rows is None else rows:
            judge.fold(row)
        elapsed_ms = int(minutes * MINUTE_MS)
        standing = self.make.ended(elapsed_ms) if ended else self.make.standing(elapsed_ms)
        found: Finding = self.make.by_name(judge.findings(standing))["temperature"]
        return found


@pytest.fixture
def run(make: Any) -> Hundred:
    return Hundred(make)


def test_settled_passes(run: Hundred) -> None:
    found = run.judged()
    assert (found.state, found.value, found.threshold) == (State.PASS, 72.0, 72.0)
    assert found.reason == "99 of 99 judged slots 72 ± 3 °C; 99 were due"


@pytest.mark.parametrize(
    ("mean_c", "state"),
    [
        (75.0, State.PASS),
        (69.0, State.PASS),
        (75.01, State.PASS),  # one of 99 is within the 2 %
        (78.0, State.PASS),
        (66.0, State.PASS),
        (78.01, State.FAIL),  # but none may be beyond ± 6
        (65.99, State.FAIL),
        (float("nan"), State.PASS),  # a bad slot, like 75.01
    ],
)
def test_one_slot(run: Hundred, mean_c: float, state: State) -> None:
    run.temperatures[50] = mean_c
    found = run.judged()
    assert found.state is state
    assert found.cause is (Cause.ENVIRONMENT if state is State.FAIL else None)
    assert found.at_ms == (50 * MINUTE_MS if state is State.FAIL else None)


@pytest.mark.parametrize(("n_bad", "state"), [(1, State.PASS), (2, State.FAIL)])
def test_two_percent_of_the_judged(run: Hundred, n_bad: int, state: State) -> None:
    """Of 99: one is 1.01 %, two are 2.02 %."""
    for index in range(50, 50 + n_bad):
        run.temperatures[index] = 76.0
    assert run.judged().state is state


def test_exactly_two_percent_pass(make: Any) -> None:
    run = Hundred(make, warmup_ms=0)
    run.temperatures.update({4: 76.0, 5: 68.0})
    assert run.judged().state is State.PASS
    run.temperatures[6] = 76.0
    assert run.judged().state is State.FAIL


def test_fail_is_final_and_needs_more_than_two_percent_of_what_may_still_be_judged(run: Hundred) -> None:
    for index in range(1, 100):
        run.temperatures[index] = 76.0
    assert run.judged(2).state is State.UNKNOWN  # 1 of 1 bad, 98 to come: it may still be 1 %
    states = [run.judged(minutes).state for minutes in range(3, 101)]
    assert set(states) == {State.FAIL}  # 2 of 99


def test_the_hot_ones_of_an_interrupted_run_are_measured_by_its_plan(run: Hundred) -> None:
    run.temperatures[5] = 76.0
    assert run.judged(10, ended=True).state is State.UNKNOWN
    run.temperatures[6] = 76.0
    assert run.judged(10, ended=True).state is State.FAIL


def test_warm_up_is_not_judged(run: Hundred) -> None:
    run.temperatures[0] = 20.0
    assert run.judged().state is State.PASS
    assert run.judged(1).reason == "no slot after the warm-up of 60 s yet"
    assert run.judged(1).state is State.UNKNOWN


def test_each_stretch_has_its_own_warm_up(run: Hundred) -> None:
    """Taken up after 30.5 min: slots 30 and 31 are cold again."""
    stretches = (Stretch(0, 0), Stretch(30 * MINUTE_MS + 30_000, 0))
    run.temperatures.update({0: 20.0, 30: 40.0, 31: 60.0})
    assert run.judged(stretches=stretches).state is State.PASS
    run.temperatures[32] = 60.0
    assert run.judged(stretches=stretches).state is State.FAIL


@pytest.mark.parametrize(("n_polls", "judged"), [(60, True), (54, True), (53, False), (0, False)])
def test_a_slot_is_judged_by_nine_tenths_of_its_polls(run: Hundred, n_polls: int, judged: bool) -> None:
    run.temperatures[50] = 79.0
    run.changes[50] = {"n_polls": n_polls}
    assert (run.judged().state is State.FAIL) == judged


def test_an_open_slot_is_not_judged(run: Hundred) -> None:
    run.temperatures[50] = 79.0
    run.changes[50] = {"closed": False}
    assert run.judged().state is not State.FAIL


@pytest.mark.parametrize(("n_without", "state"), [(0, State.PASS), (1, State.UNKNOWN)])
def test_99_percent_of_the_due_slots_are_judged(run: Hundred, n_without: int, state: State) -> None:
    """Of 99 due: 98 are 98.99 %."""
    for index in range(50, 50 + n_without):
        run.temperatures[index] = None
    assert run.judged().state is state


def test_exactly_99_percent_judged_pass(make: Any) -> None:
    run = Hundred(make, warmup_ms=0)
    run.temperatures[50] = None
    assert run.judged().state is State.PASS
    run.temperatures[51] = None
    assert run.judged().state is State.UNKNOWN


def test_rows_that_are_missing_are_due(run: Hundred) -> None:
    rows = run.rows()
    assert run.judged(rows=rows[:1]).state is State.UNKNOWN
    assert run.judged(rows=[]).state is State.UNKNOWN
    assert run.judged(rows=rows[:50] + rows[52:]).state is State.UNKNOWN


def test_nothing_flickers_while_a_slot_waits_for_its_last_poll(run: Hundred) -> None:
    """The 10th slot is over, and closes a little later: `pass` so far stays."""
    rows = run.rows(10)
    for seconds in (599, 600, 601, 602, 603):
        found = run.judged(minutes=seconds / 60, rows=rows[:9])
        assert found.state is State.PASS, seconds
    assert run.judged(minutes=605 / 60, rows=rows[:9]).state is State.UNKNOWN
    assert run.judged(minutes=605 / 60, rows=rows).state is State.PASS


def test_a_fail_does_not_flicker_either(run: Hundred) -> None:
    """2 bad of 99 fail; a slot that is over but not closed is not lost to the count."""
    run.temperatures.update({1: 76.0, 2: 76.0})
    run.temperatures[3] = None  # unjudged: 98 are left, 2.04 %
    assert run.judged(4).state is State.FAIL
    for minutes, n in [(5.0, 4), (5.01, 4), (5.05, 5), (99.9, 99), (99.999, 99)]:
        assert run.judged(minutes, rows=run.rows(n)).state is State.FAIL
    run.temperatures[2] = 72.0
    for minutes, n in [(5.0, 4), (5.01, 4), (5.05, 5), (99.9, 99), (100, 99), (100, 100)]:
        assert run.judged(minutes, rows=run.rows(n), ended=False).state is not State.FAIL


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ({"temperature_sensor": None}, "this card has no temperature sensor to judge"),
        (
            {"supported": {Quantity.TEMPERATURE_EDGE_C: Reading.unsupported("no hwmon")}},
            "temperature_edge_c: no hwmon",
        ),
    ],
)
def test_a_card_without_the_sensor_is_unknown(run: Hundred, device: Any, reason: str) -> None:
    rows = [row for row in run.rows() if not row.stats.clear()]  # type: ignore[attr-defined]  # a dict here
    found = run.judged(rows=rows, device=run.make.device(**device))
    assert (found.state, found.reason) == (State.UNKNOWN, reason)


# -- a distance from the card's own limit (generic, cpu)


class Margin(Hundred):
    def __init__(self, make: Any) -> None:
        super().__init__(make, kind="margin")
        for index in range(100):
            self.changes[index] = {"stats": {THROTTLE: make.stats(0.0, 60)}}


@pytest.fixture
def margin(make: Any) -> Margin:
    return Margin(make)


@pytest.mark.parametrize(
    ("hottest_c", "n", "state"),
    [(95.0, 99, State.PASS), (95.1, 1, State.PASS), (95.1, 2, State.FAIL), (110.0, 1, State.PASS)],
)
def test_the_margin_is_kept_by_98_percent(margin: Margin, hottest_c: float, n: int, state: State) -> None:
    for index in range(1, 1 + n):
        margin.temperatures[index] = hottest_c
    found = margin.judged()
    assert (found.state, found.threshold) == (state, 95.0)


def test_the_hottest_poll_is_judged_not_the_mean(margin: Margin, make: Any) -> None:
    hot = make.stats(60.0, 60)
    for index in (10, 11):
        stats = {
            THROTTLE: make.stats(0.0, 60),
            Quantity.TEMPERATURE_EDGE_C: type(hot)(60, 50, 60, 99, 50, 70, 60),
        }
        margin.changes[index] = {"stats": stats}
    assert margin.judged().state is State.FAIL


def test_a_card_that_names_no_limit_is_unknown(margin: Margin, make: Any) -> None:
    found = margin.judged(device=make.device(slowdown_c=None))
    assert found.state is State.UNKNOWN
    assert "at which temperature it slows down" in found.reason


# 0.1 % of 100 min are 6 s.
@pytest.mark.parametrize(("throttled_ms", "state"), [(6_000, State.PASS), (6_001, State.FAIL)])
def test_throttling_is_allowed_for_a_thousandth(margin: Margin, throttled_ms: int, state: State) -> None:
    margin.changes[40]["throttled_ms"] = throttled_ms
    assert margin.judged().state is state


def test_throttling_so_far_is_of_the_elapsed_time(margin: Margin) -> None:
    margin.changes[2]["throttled_ms"] = 3_000
    assert margin.judged(10).state is State.UNKNOWN  # more than two polls and 0.1 % of 10 min
    assert margin.judged(60).state is State.PASS


def test_throttling_that_nobody_can_see_does_not_pass(margin: Margin, make: Any) -> None:
    """The criterion has two halves; a reading that does not exist proves neither."""
    for index in range(100):
        margin.changes[index] = {}
    assert margin.judged().state is State.UNKNOWN
    device = make.device(supported={THROTTLE: Reading.unsupported("no throttle bits")})
    assert margin.judged(device=device).reason == "thermal throttling cannot be seen: no throttle bits"


def test_the_band_asks_for_no_throttling(run: Hundred) -> None:
    run.changes[40] = {"throttled_ms": 50_000}
    assert run.judged().state is State.PASS
