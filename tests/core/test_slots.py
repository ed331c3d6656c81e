"""Polls to slots: every elapsed millisecond is exactly one of unobserved, bad, suspect, in spec."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from soak.core.records import Quantity, Reading, Slot
from soak.core.slots import SlotFold, Work, required_quantities, throttle_ms

OK = {"corrected": 0, "uncorrected": 0}
UNREADABLE = Reading.unreadable("EIO")


def busy(at_ms: int, **changes: Any) -> Work:
    """A load whose last step is a second old."""
    return replace(Work(last_step_ms=at_ms - 1_000, expected_step_ms=400.0), **changes)


class Watched:
    """A fold that is fed at given seconds; the error counters are read with every poll unless told not."""

    def __init__(self, make: Any, **fold: Any) -> None:
        self.make = make
        self.protocol = fold.pop("protocol", make.protocol())
        self.device = fold.pop("device", make.device())
        self.fold = SlotFold(self.protocol, self.device, 1, 0, **fold)

    def see(self, *seconds: float, work: Work | None = None, ecc: Any = OK, **poll: Any) -> None:
        for second in seconds:
            at_ms = int(second * 1_000)
            counters = None if ecc is None else self.make.counters(**ecc)
            self.fold.add(self.make.poll(at_ms, ecc=counters, **poll), at_ms, work or busy(at_ms))

    def slots(self, elapsed_s: float, **options: Any) -> list[Slot]:
        return [*self.fold.closed(int(elapsed_s * 1_000), **options), *self.fold.open_slots()]

    def first(self) -> Slot:
        return self.slots(0)[0]


def split(slot: Slot) -> tuple[int, int, int]:
    """In spec, bad, suspect, in seconds."""
    assert slot.observed_ms == slot.in_spec_ms + slot.bad_ms + slot.suspect_ms
    return slot.in_spec_ms // 1_000, slot.bad_ms // 1_000, slot.suspect_ms // 1_000


@pytest.fixture
def watched(make: Any) -> Watched:
    return Watched(make)


def test_a_poll_stands_for_the_time_since_the_one_before(watched: Watched) -> None:
    watched.see(1, 2, 3.5)
    assert watched.first().observed_ms == 3_500
    assert watched.first().n_polls == 3


def test_at_most_for_two_intervals(watched: Watched) -> None:
    watched.see(1, 10)
    assert watched.first().observed_ms == 1_000 + 2_000


def test_the_first_poll_stands_for_the_time_since_t0(watched: Watched) -> None:
    watched.see(0.4)
    assert watched.first().observed_ms == 400


def test_polls_from_before_t0_count_for_nothing(watched: Watched) -> None:
    watched.see(-1, 0)
    assert watched.slots(0) == []


def test_time_is_split_at_the_border_and_values_belong_where_they_were_read(watched: Watched) -> None:
    watched.see(*range(1, 60), 60.5)
    before, after = watched.slots(60.5)
    assert (before.index, before.observed_ms, before.n_polls, before.closed) == (0, 60_000, 59, True)
    assert (after.index, after.observed_ms, after.n_polls, after.closed) == (1, 500, 1, False)


def test_a_poll_on_the_border_closes_its_slot(watched: Watched) -> None:
    watched.see(*range(1, 61))
    (slot,) = watched.slots(60)
    assert (slot.index, slot.n_polls, slot.observed_ms, slot.closed) == (0, 60, 60_000, True)


def test_a_slot_waits_two_polls_for_its_last_one(watched: Watched) -> None:
    watched.see(*range(1, 60))
    assert [slot.closed for slot in watched.slots(61.9)] == [False]
    assert [slot.closed for slot in watched.slots(62)] == [True]


def test_a_poll_too_late_for_its_slot_is_unobserved_time(watched: Watched) -> None:
    watched.see(*range(1, 59))
    (closed,) = watched.fold.closed(62_000)
    watched.see(59, 60, 61)
    assert closed.observed_ms == 58_000
    assert [(s.index, s.observed_ms, s.n_polls) for s in watched.fold.open_slots()] == [(1, 1_000, 1)]


def test_late_and_doubled_polls_change_nothing(watched: Watched) -> None:
    watched.see(1, 2, 3)
    before = watched.first()
    watched.see(3, 2, 1, utilisation=0.0)
    assert watched.first() == before


def test_an_empty_slot_is_a_row(watched: Watched) -> None:
    watched.see(1, 2)
    slots = watched.fold.closed(190_000)
    assert [(s.index, s.observed_ms, s.n_polls, s.closed) for s in slots] == [
        (0, 2_000, 2, True),
        (1, 0, 0, True),
        (2, 0, 0, True),
    ]


def test_each_closed_slot_is_handed_out_once(watched: Watched) -> None:
    watched.see(*range(1, 61))
    assert len(watched.fold.closed(60_000)) == 1
    assert watched.fold.closed(60_000) == []


def test_the_end_of_the_run_closes_the_last_slot_and_takes_no_more(make: Any) -> None:
    watched = Watched(make, protocol=make.protocol(duration_ms=90_000))
    watched.see(*range(1, 90), 90.7, 91, 92)
    first, last = watched.slots(90, at_end=True)
    assert (last.index, last.start_ms, last.end_ms, last.closed) == (1, 60_000, 90_000, True)
    assert (last.observed_ms, last.n_polls) == (30_000, 30)  # the first poll after the end completes it
    assert first.observed_ms == 60_000


def test_an_interruption_leaves_the_slot_open(watched: Watched) -> None:
    watched.see(*range(1, 71))
    assert [slot.closed for slot in watched.slots(70, at_end=True)] == [True, False]


# -- bad, suspect, in spec, unobserved


@pytest.mark.parametrize(
    ("poll", "expected"),
    [
        ({"utilisation": 95.0}, (1, 0, 0)),
        ({"utilisation": 100.0}, (1, 0, 0)),
        ({"utilisation": 94.99}, (0, 1, 0)),
        ({"utilisation": 0.0}, (0, 1, 0)),
        ({"utilisation": UNREADABLE}, (0, 0, 0)),
        ({"utilisation": Reading.unsupported("no")}, (0, 0, 0)),
        ({"utilisation": None}, (0, 0, 0)),
        ({"temperature": UNREADABLE}, (0, 0, 0)),
        ({"temperature": None}, (0, 0, 0)),
        # impossible values, should they come so far (A02)
        ({"utilisation": 1980.0}, (0, 0, 0)),
        ({"utilisation": -1.0}, (0, 0, 0)),
        ({"utilisation": float("nan")}, (0, 0, 0)),
        ({"utilisation": float("inf")}, (0, 0, 0)),
    ],
)
def test_a_second_by_its_readings(watched: Watched, poll: dict[str, Any], expected: Any) -> None:
    watched.see(1, **poll)
    slots = watched.slots(0)
    assert (split(slots[0]) if slots else (0, 0, 0)) == expected


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Work(last_step_ms=10_000, expected_step_ms=400.0), "in_spec"),
        (Work(last_step_ms=8_000, expected_step_ms=400.0), "in_spec"),  # exactly two polls
        (Work(last_step_ms=7_999, expected_step_ms=400.0), "suspect"),
        (Work(last_step_ms=7_000, expected_step_ms=1_000.0), "in_spec"),  # exactly three steps
        (Work(last_step_ms=6_999, expected_step_ms=1_000.0), "suspect"),
        (Work(last_step_ms=None), "suspect"),  # never
        (Work(last_step_ms=10_000, rate_ratio=0.5), "in_spec"),
        (Work(last_step_ms=10_000, rate_ratio=0.49), "suspect"),
        (Work(last_step_ms=10_000, rate_ratio=0.0, exempt=True), "in_spec"),  # our own check
        (Work(last_step_ms=0, rate_ratio=0.0, exempt=True), "suspect"),  # exempt from the rate alone
        (Work(last_step_ms=10_000, rate_ratio=None), "in_spec"),
    ],
)
def test_a_busy_second_needs_work_behind_it(watched: Watched, work: Work, expected: str) -> None:
    """Utilisation says that something runs, not that work gets done (A06)."""
    watched.see(10, work=work)
    slot = watched.first()
    assert {"in_spec": slot.in_spec_ms, "suspect": slot.suspect_ms}[expected] == 2_000 == slot.observed_ms


def test_bad_outweighs_suspect(watched: Watched) -> None:
    watched.see(1, utilisation=10.0, work=Work())
    assert split(watched.first()) == (0, 1, 0)


def test_without_the_work_rate_rule_a_slow_second_counts(make: Any) -> None:
    watched = Watched(make, protocol=make.protocol(work_rate_rule=False))
    watched.see(1, work=Work(1_000, 400.0, rate_ratio=0.1))
    assert split(watched.first()) == (1, 0, 0)


def test_first_bad_says_when(watched: Watched) -> None:
    watched.see(1, 2)
    watched.see(3, utilisation=40.0)
    watched.see(4, 5, utilisation=30.0)
    assert watched.first().first_bad_ms == 2_000


def test_what_was_missing_is_named(watched: Watched) -> None:
    watched.see(1, temperature=UNREADABLE)
    assert watched.first().missing == {Quantity.TEMPERATURE_EDGE_C: "unreadable: EIO"}
    assert Quantity.TEMPERATURE_EDGE_C not in watched.first().stats


def test_throttled_time_is_observed_time(watched: Watched) -> None:
    watched.see(1, thermal_throttle=0.0)
    watched.see(2, 3, thermal_throttle=1.0)
    watched.see(4, thermal_throttle=1.0, utilisation=None)
    assert watched.first().throttled_ms == 2_000
    assert dict(throttle_ms(watched.first(), 1_000)) == {"thermal": 2_000}


def test_what_is_required_of_a_second(make: Any) -> None:
    edge, busy_pct = Quantity.TEMPERATURE_EDGE_C, Quantity.UTILISATION_PCT
    protocol, device = make.protocol(), make.device()
    assert required_quantities(protocol, device) == {edge, busy_pct}
    blind = make.device(supported={edge: Reading.unsupported("no"), busy_pct: Reading.unsupported("no")})
    assert required_quantities(protocol, blind) == {busy_pct}  # what never was is not asked again
    dim = make.device(supported={edge: UNREADABLE})
    assert required_quantities(protocol, dim) == {edge, busy_pct}
    cpu = make.protocol(limits={"required": frozenset({"utilisation"})})
    assert required_quantities(cpu, device) == {busy_pct}


# -- error counters


def test_seconds_without_a_fresh_reading_of_the_counters_are_unobserved(watched: Watched) -> None:
    """Every 10 s, with two polls of grace."""
    watched.see(*range(1, 11))
    watched.see(*range(11, 31), ecc=None)
    assert watched.first().observed_ms == 22_000  # the reading at 10 s stands for 12 s
    watched.see(31)
    assert watched.first().observed_ms == 22_000 + 1_000


def test_counters_that_are_not_required_are_not_waited_for(make: Any) -> None:
    required = frozenset({"utilisation"})
    watched = Watched(make, protocol=make.protocol(limits={"required": required}))
    watched.see(*range(1, 41), ecc=None)
    assert watched.first().observed_ms == 40_000


def test_a_card_without_counters_is_observed_without_them(make: Any) -> None:
    watched = Watched(make, device=make.device(ecc=Reading.unsupported("no RAS"), ecc_baseline={}))
    watched.see(*range(1, 41), ecc=None)
    assert watched.first().observed_ms == 40_000
    assert watched.first().ecc is None


def test_a_reading_that_lacks_a_counter_is_none(watched: Watched) -> None:
    """A counter that stops answering is a telemetry fault, not zero errors (A04)."""
    watched.see(1)
    watched.see(*range(2, 31), ecc={"corrected": 0})
    assert watched.first().observed_ms == 13_000
    watched.see(31, ecc={"corrected": 0, "uncorrected": UNREADABLE})
    assert watched.first().observed_ms == 13_000


def test_a_slot_has_the_errors_since_t0(make: Any) -> None:
    """What the counters said before t0 is no error of this run (A20)."""
    device = make.device(ecc_baseline=make.counters(corrected=57, uncorrected=2))
    watched = Watched(make, device=device)
    watched.see(1, ecc={"corrected": 57, "uncorrected": 2})
    assert watched.first().ecc == {"corrected": 0, "uncorrected": 0}
    watched.see(2, ecc={"corrected": 58, "uncorrected": 2})
    assert watched.first().ecc == {"corrected": 1, "uncorrected": 0}
    assert watched.first().ecc_raw == {"ras/umc/corrected": 58, "ras/umc/uncorrected": 2}


def test_a_reset_while_nobody_was_reading_is_in_doubt(watched: Watched) -> None:
    watched.see(1, ecc={"corrected": 3, "uncorrected": 0})
    watched.see(40, ecc={"corrected": 1, "uncorrected": 0})
    assert "went back from 3 to 1" in watched.first().ecc_doubt
    assert watched.fold.went_back == ["ras/umc/corrected"]


def test_the_time_between_two_stretches_is_a_gap_for_the_counters(make: Any) -> None:
    """Elapsed time stands still between them, and nobody was reading."""
    from soak.core.ecc import EccLedger

    ledger = EccLedger({"ras/umc/corrected": 4, "ras/umc/uncorrected": 0}, before={"corrected": 0})
    watched = Watched(make, start_ms=70_000, ledger=ledger)
    watched.see(71, ecc={"corrected": 0, "uncorrected": 0})
    assert "went back from 4 to 0" in watched.first().ecc_doubt


# -- a slot taken up by `continue`


def test_a_slot_taken_up_keeps_its_evidence(make: Any) -> None:
    watched = Watched(make)
    watched.see(*range(1, 11), temperature=70.0)
    watched.see(11, utilisation=10.0, temperature=90.0)
    (stored,) = watched.fold.open_slots()
    again = Watched(make, start_ms=15_000, resume=stored)
    again.see(*range(16, 61), temperature=72.0)
    (slot,) = again.slots(60)
    assert (split(slot), slot.n_polls, slot.closed) == ((55, 1, 0), 56, True)
    stats = slot.stats[Quantity.TEMPERATURE_EDGE_C]
    assert (stats.n, stats.min, stats.max, stats.last) == (56, 70.0, 90.0, 72.0)
    assert stats.mean == pytest.approx((10 * 70 + 90 + 45 * 72) / 56)
    assert slot.first_bad_ms == 10_000


# -- any polls at all

instants: Any = st.lists(st.integers(-3_000, 660_000), max_size=60)


@st.composite
def sightings(draw: Any) -> list[tuple[int, float | None, int | None, int | None, bool]]:
    """At what time, utilisation, temperature, last step's age, counters read."""
    return [
        (
            at_ms,
            draw(st.sampled_from([99.0, 40.0, None])),
            draw(st.sampled_from([72, 80, None])),
            draw(st.sampled_from([500, 2_500, None])),
            draw(st.booleans()),
        )
        for at_ms in draw(instants)
    ]


@given(seen=sightings(), close_every=st.integers(1, 5))
def test_no_millisecond_is_two_things(make: Any, seen: list[Any], close_every: int) -> None:
    """In any order, at any time: a slot's kinds are disjoint and never longer than the slot; each slot comes
    once, in order, and lasts."""
    watched = Watched(make)
    closed: list[Slot] = []
    elapsed_ms = 0
    for count, (at_ms, utilisation, temperature, age_ms, counters) in enumerate(seen):
        work = Work(None if age_ms is None else at_ms - age_ms, 400.0)
        ecc = OK if counters else None
        watched.see(at_ms / 1_000, utilisation=utilisation, temperature=temperature, work=work, ecc=ecc)
        elapsed_ms = max(elapsed_ms, min(at_ms, 600_000))
        if count % close_every == 0:
            closed += watched.fold.closed(elapsed_ms)
    closed += watched.fold.closed(600_000, at_end=True)
    assert [slot.index for slot in closed] == list(range(10))
    assert watched.fold.open_slots() == []
    for slot in closed:
        assert 0 <= slot.in_spec_ms + slot.bad_ms + slot.suspect_ms == slot.observed_ms
        assert slot.observed_ms <= slot.end_ms - slot.start_ms
        assert slot.throttled_ms <= slot.observed_ms
    last_ms = max((at_ms for at_ms, *_ in seen), default=0)
    assert sum(slot.observed_ms for slot in closed) <= max(min(last_ms, 600_000), 0)


@st.composite
def stretches(draw: Any) -> Any:
    """(n, gap before the first in ms, what is read and what the load did)."""
    return draw(
        st.lists(
            st.tuples(
                st.integers(1, 90),
                st.sampled_from([-5_000, -1_000, 0, 1, 999, 1_000, 2_500, 30_000]),
                st.fixed_dictionaries(
                    {
                        "utilisation": st.sampled_from([99.0, 94.0, 100.0]),
                        "temperature": st.sampled_from([72.1, 69.9]),
                        "corrected": st.sampled_from([None, 0, 1]),
                        "step_ago_ms": st.sampled_from([None, -100_000, 0, 1_500, 20_000, 50_000]),
                        "throttle": st.sampled_from([0.0, 1.0]),
                    }
                ),
            ),
            max_size=12,
        )
    )


QUIET = {"utilisation": 99.0, "temperature": 72.1, "corrected": 0, "step_ago_ms": 0, "throttle": 0.0}


@given(plan=stretches())
@example(plan=[(50, 580_001, QUIET)])  # beyond the end: only the first poll counts
@example(plan=[(90, 0, {**QUIET, "corrected": None})])  # the counters' last reading grows old on the way
@example(plan=[(90, 0, {**QUIET, "step_ago_ms": 50_000})])  # the load stands still on the way
@example(plan=[(30, 0, QUIET), (60, -20_000, QUIET)])  # half of it is old news
def test_a_stretch_of_n_polls_is_n_polls(make: Any, plan: list[Any]) -> None:
    """The simulator's stretches give the very slots that single polls give."""
    at_once, one_by_one = Watched(make), Watched(make)
    slots: tuple[list[Slot], list[Slot]] = ([], [])
    end_ms = 0
    for n, gap_ms, seen in plan:
        first_ms = end_ms + 1_000 + gap_ms
        end_ms = first_ms + (n - 1) * 1_000
        counters = None
        if seen["corrected"] is not None:
            counters = make.counters(corrected=seen["corrected"], uncorrected=0)
        ago_ms = seen["step_ago_ms"]
        work = Work(None if ago_ms is None else end_ms - ago_ms, 400.0)

        def poll(at_ms: int, n: int, seen: Any = seen, counters: Any = counters) -> Any:
            values = seen["utilisation"], seen["temperature"]
            return make.poll(at_ms, *values, counters, n, thermal_throttle=seen["throttle"])

        at_once.fold.add(poll(end_ms, n), end_ms, work)
        for at_ms in range(first_ms, end_ms + 1, 1_000):
            one_by_one.fold.add(poll(at_ms, 1), at_ms, work)
        for watched, kept in zip((at_once, one_by_one), slots, strict=True):
            kept += watched.fold.closed(min(end_ms, 600_000))
    for watched, kept in zip((at_once, one_by_one), slots, strict=True):
        kept += watched.fold.closed(600_000, at_end=True)
        kept += watched.fold.open_slots()
    assert slots[0] == slots[1]
    assert at_once.fold.went_back == one_by_one.fold.went_back


@given(order=st.permutations([70.1, 70.2, 70.3, 71.9, 72.4, 75.0, 75.0]))
def test_figures_do_not_depend_on_the_order_of_values(make: Any, order: list[float]) -> None:
    watched = Watched(make)
    for second, value in enumerate(order, 1):
        watched.see(second, temperature=value)
    stats = watched.first().stats[Quantity.TEMPERATURE_EDGE_C]
    assert replace(stats, last=0.0) == replace(
        stats, last=0.0, n=7, min=70.1, max=75.0, p05=70.1, p95=75.0, mean=504.9 / 7
    )  # fmt: skip
    assert stats.last == order[-1]


def test_percentiles_are_values_that_were_read(make: Any) -> None:
    watched = Watched(make, protocol=make.protocol(sample_ms=100_000))
    for second in range(1, 101):
        watched.see(second, temperature=float(second))
    (slot,) = watched.slots(100)
    stats = slot.stats[Quantity.TEMPERATURE_EDGE_C]
    assert (stats.p05, stats.p95, stats.mean) == (5.0, 95.0, 50.5)
