"""Errors since t0 from counters that wrap, are reset, vanish or were never zero; and what that proves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.ecc import EccLedger, readable
from soak.core.records import Cause, Reading, State

CE, UE = "ras/umc/corrected", "ras/umc/uncorrected"
UNREADABLE, UNSUPPORTED = Reading.unreadable("Query currently inaccessible"), Reading.unsupported("no RAS")


def test_only_increases_count() -> None:
    ledger = EccLedger({CE: 57, UE: 2})
    assert ledger.read({CE: 57, UE: 2}, after_gap=False) == []
    assert ledger.totals() == {"corrected": 0, "uncorrected": 0}
    ledger.read({CE: 60, UE: 2}, after_gap=False)
    assert ledger.totals() == {"corrected": 3, "uncorrected": 0}


def test_increases_are_summed_over_resets() -> None:
    """A driver reload, a wrap: what the counter says afterwards has been counted since."""
    ledger = EccLedger({CE: 10})
    for value in (12, 1, 4, 0, 2):
        ledger.read({CE: value}, after_gap=False)
    assert ledger.totals() == {"corrected": 2 + 1 + 3 + 0 + 2}
    assert ledger.doubt == ""


def test_a_wrap_counts_what_came_after() -> None:
    ledger = EccLedger({CE: 2**32 - 1})
    assert ledger.read({CE: 1}, after_gap=False) == [CE]
    assert ledger.totals() == {"corrected": 1}


def test_a_reset_inside_a_gap_is_in_doubt_for_good() -> None:
    ledger = EccLedger({CE: 5})
    assert ledger.read({CE: 0}, after_gap=True) == [CE]
    assert ledger.doubt == f"{CE} went back from 5 to 0 while nobody was reading"
    ledger.read({CE: 0}, after_gap=False)
    assert ledger.doubt


def test_a_gap_without_a_reset_is_no_doubt() -> None:
    ledger = EccLedger({CE: 5})
    ledger.read({CE: 5}, after_gap=True)
    assert ledger.doubt == ""


def test_a_counter_that_was_not_there_at_t0_is_in_doubt_if_it_counts() -> None:
    """What it says may be from before the run: neither an error of this run nor none."""
    ledger = EccLedger({CE: 0})
    ledger.read({CE: 0, "ras/umc/deferred": 4}, after_gap=False)
    assert ledger.totals() == {"corrected": 0, "deferred": 0}
    assert "appeared with 4" in ledger.doubt
    ledger.read({CE: 0, "ras/umc/deferred": 5}, after_gap=False)
    assert ledger.totals()["deferred"] == 1


def test_a_new_counter_at_zero_begins_there() -> None:
    ledger = EccLedger({CE: 0})
    ledger.read({CE: 0, "ras/gfx/corrected": 0}, after_gap=False)
    ledger.read({CE: 0, "ras/gfx/corrected": 2}, after_gap=False)
    assert (ledger.totals(), ledger.doubt) == ({"corrected": 2}, "")


def test_blocks_add_up_and_views_show_the_same_errors() -> None:
    ledger = EccLedger({})
    zero = {f"{view}/{block}/corrected": 0 for view in ("volatile", "aggregate") for block in ("a", "b")}
    ledger.read(zero, after_gap=False)
    risen = {"volatile/a/corrected": 1, "volatile/b/corrected": 2, "aggregate/a/corrected": 3}
    ledger.read({**zero, **risen}, after_gap=False)
    assert ledger.totals() == {"corrected": 3}


def test_errors_of_an_earlier_stretch_are_added() -> None:
    ledger = EccLedger({CE: 9}, before={"corrected": 2, "deferred": 1})
    assert ledger.totals() == {"corrected": 2, "deferred": 1}
    ledger.read({CE: 10}, after_gap=True)
    assert ledger.totals() == {"corrected": 3, "deferred": 1}


def test_a_reading_lacks_nothing_or_is_none() -> None:
    assert readable({}) is None
    assert readable({CE: UNSUPPORTED}) is None
    assert readable({CE: Reading.ok(1.0), UE: UNREADABLE}) is None
    assert readable({CE: Reading.ok(1.0), UE: UNSUPPORTED}) == {CE: 1}
    assert EccLedger({CE: 0, UE: 0}).covers({CE: 1}) is False
    assert EccLedger({CE: 0}).covers({CE: 1, UE: 0}) is True


@given(values=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=20))
def test_totals_never_fall(values: list[tuple[int, bool]]) -> None:
    ledger, last = EccLedger({CE: 3}), 0
    for value, after_gap in values:
        ledger.read({CE: value}, after_gap=after_gap)
        assert ledger.totals()["corrected"] >= last
        last = ledger.totals()["corrected"]


# -- the criterion


def judged(make: Any, slots: list[Any], standing: Any, **card: Any) -> Any:
    judge = make.judge(**card)
    for slot in slots:
        judge.fold(slot)
    return make.by_name(judge.findings(standing))["ecc"]


def slots(make: Any, n: int = 10, **last: Any) -> list[Any]:
    return [*(make.slot(index) for index in range(n - 1)), make.slot(n - 1, **last)]


def test_zero_errors_by_a_reading_in_the_last_slot_pass(make: Any) -> None:
    found = judged(make, slots(make), make.ended())
    assert (found.state, found.value, found.threshold, found.cause) == (State.PASS, 0.0, 0.0, None)


@pytest.mark.parametrize("kind", ["corrected", "deferred", "uncorrected"])
def test_any_error_fails(make: Any, kind: str) -> None:
    rows = slots(make)
    rows[4] = make.slot(4, ecc={"corrected": 0, kind: 1})
    found = judged(make, rows, make.standing(300_000))
    assert (found.state, found.cause, found.at_ms, found.value) == (State.FAIL, Cause.HARDWARE, 240_000, 1.0)
    assert found.reason == f"1 {kind}"


def test_an_error_fails_whatever_else_is_in_doubt(make: Any) -> None:
    rows = [make.slot(0, ecc={"corrected": 2}, ecc_doubt="went back")]
    assert judged(make, rows, make.ended()).state is State.FAIL


@pytest.mark.parametrize(
    ("last", "card", "reason"),
    [
        ({"ecc": None}, {}, "no reading of the error counters in the last slot"),
        ({"ecc_doubt": "x went back"}, {}, "x went back"),
    ],
)
def test_unknown_says_why(make: Any, last: Any, card: Any, reason: str) -> None:
    found = judged(make, slots(make, **last), make.ended(), **card)
    assert (found.state, found.reason) == (State.UNKNOWN, reason)


def test_no_slots_at_all_are_unknown(make: Any) -> None:
    assert judged(make, [], make.ended()).state is State.UNKNOWN
    assert judged(make, [], make.standing(0)).reason == "the error counters were not read yet"


def test_no_ecc_is_unknown_and_can_be_waived(make: Any) -> None:
    bare = make.device(ecc=UNSUPPORTED, ecc_baseline={})
    rows = [make.slot(index, ecc=None) for index in range(10)]
    found = judged(make, rows, make.ended(), device=bare)
    assert (found.state, found.waived, found.reason) == (State.UNKNOWN, False, "no ECC on this card: no RAS")
    assert judged(make, rows, make.ended(), device=bare, waived=frozenset({"ecc"})).waived


def test_a_waiver_covers_ecc_unsupported_at_t0_and_nothing_else(make: Any) -> None:
    """Counters that stop answering during the run are a telemetry fault (A04)."""
    waived = frozenset({"ecc"})
    lost = slots(make, ecc=None)
    assert judged(make, lost, make.ended(), waived=waived).waived is False
    unreadable = make.device(ecc=UNREADABLE, ecc_baseline={})
    assert judged(make, [], make.ended(), device=unreadable, waived=waived).waived is False
    bare = make.device(ecc=UNSUPPORTED, ecc_baseline={})
    failed = [make.slot(0, ecc={"corrected": 1})]
    found = judged(make, failed, make.ended(), device=bare, waived=waived)
    assert (found.state, found.waived) == (State.FAIL, False)


def test_while_the_run_goes_on_a_slot_that_has_just_begun_may_lack_a_reading(make: Any) -> None:
    rows = [make.slot(0), make.slot(1, ecc=None, closed=False)]
    assert judged(make, rows, make.standing(60_000)).state is State.PASS
    assert judged(make, rows, make.standing(72_000)).state is State.PASS  # 10 s and two polls
    assert judged(make, rows, make.standing(72_001)).state is State.UNKNOWN
    assert judged(make, rows, make.ended(72_000)).state is State.UNKNOWN


def test_a_last_slot_too_short_for_a_reading_takes_the_one_before(make: Any) -> None:
    """Counters are read every 10 s: a last slot of 5 s need not hold a reading of its own."""
    protocol = make.protocol(duration_ms=605_000)
    rows = [*(make.slot(index, protocol) for index in range(10)), make.slot(10, protocol, ecc=None)]
    assert judged(make, rows, make.ended(605_000), protocol=protocol).state is State.PASS
    rows[9] = replace(rows[9], ecc=None)
    assert judged(make, rows, make.ended(605_000), protocol=protocol).state is State.UNKNOWN


def test_slots_shorter_than_the_cadence_of_the_counters_can_pass(make: Any) -> None:
    protocol = make.protocol(duration_ms=30_000, sample_ms=5_000)
    rows = [make.slot(i, protocol, **({} if i % 2 else {"ecc": None})) for i in range(6)]
    assert judged(make, rows, make.ended(30_000), protocol=protocol).state is State.PASS
    rows = [make.slot(i, protocol, **({} if i < 3 else {"ecc": None})) for i in range(6)]
    assert judged(make, rows, make.ended(30_000), protocol=protocol).state is State.UNKNOWN
