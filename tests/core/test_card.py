"""One card live: what comes in, in any order, twice, late, or after a restart; and taken up by `continue`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from soak.core.card import CardState, Start
from soak.core.ports import Progress
from soak.core.records import (
    GradientCheck,
    IntegrityCheck,
    Reading,
    Rotation,
    Slot,
    State,
    Stretch,
)

GOLDEN = "0123456789abcdef"


class Live:
    """A card whose elapsed time is its boot time."""

    def __init__(self, make: Any, start_ms: int = 0, before: Any = None, **card: Any) -> None:
        self.make = make
        self.card = make.card(**card)
        self.state = CardState(self.card, Start(1, 0, 0, start_ms), before)

    def heartbeat(self, at_ms: int, rotation: int = 0, **changes: Any) -> list[Any]:
        n = changes.pop("n", 10)
        plain = Progress(
            self.make.gpu, at_ms, rotation, n, n * 100, at_ms - 200, 400.0,
            golden=GOLDEN, n_due=n // 10, n_compared=n // 10,
        )  # fmt: skip
        return self.state.take_progress(replace(plain, **changes))

    def see(self, *seconds: int, **poll: Any) -> list[str]:
        happened = []
        for second in seconds:
            counters = poll.get("ecc", self.make.counters(corrected=0, uncorrected=0))
            found = self.state.take_poll(self.make.poll(second * 1_000, **{**poll, "ecc": counters}))
            happened += [happening.kind for happening in found]
        return happened

    def work(self, seconds: range, rotation: int, n: int) -> None:
        """A heartbeat and a poll a second, the rotation standing at n steps."""
        for second in seconds:
            self.heartbeat(second * 1_000, rotation, n=n)
            self.see(second)

    def check(self, index: int, at_ms: int, **figures: Any) -> None:
        self.state.take_check(self.make.check(index, attempt=0, due_ms=0, at_ms=0, **figures), at_ms)

    def rows(self, kind: Any, elapsed_ms: int = 0, **options: Any) -> list[Any]:
        return [row for row in self.state.rows(elapsed_ms, **options) if isinstance(row, kind)]

    def open(self, kind: Any) -> Any:
        (row,) = [row for row in self.state.open_rows() if isinstance(row, kind)]
        return row

    def finding(self, criterion: str, elapsed_ms: int) -> Any:
        found = self.state.findings(self.make.standing(elapsed_ms), self.state.open_rows())
        return self.make.by_name(found)[criterion]


@pytest.fixture
def live(make: Any) -> Live:
    return Live(make)


# -- heartbeats and rotations


def test_heartbeats_make_the_rows_of_their_rotation(live: Live) -> None:
    live.heartbeat(5_000, n=20)
    live.heartbeat(99_000, n=200)
    rotation, integrity = live.open(Rotation), live.open(IntegrityCheck)
    assert (rotation.n_steps, rotation.flops, rotation.golden, rotation.start_ms) == (200, 20_000, GOLDEN, 0)
    assert (integrity.n_due, integrity.n, integrity.mismatches) == (20, 20, 0)
    assert live.rows(Rotation) == []
    live.heartbeat(100_500, rotation=1, n=1)
    assert [(row.index, row.n_steps) for row in live.rows(Rotation)] == [(0, 200)]
    assert live.open(Rotation).index == 1


def test_a_restarted_worker_adds_to_what_was_done(live: Live) -> None:
    live.heartbeat(50_000, n=100)
    live.heartbeat(60_000, n=10)
    live.heartbeat(70_000, n=30)
    assert live.open(Rotation).n_steps == 130
    assert live.open(IntegrityCheck).n == 13


def test_another_golden_digest_on_the_same_inputs_is_a_mismatch(live: Live) -> None:
    live.heartbeat(50_000, n=100)
    assert [h.kind for h in live.heartbeat(60_000, n=10, golden="f" * 16)] == ["mismatch"]
    assert live.heartbeat(61_000, n=11, golden="f" * 16) == []  # once


def test_a_restarted_worker_without_a_digest_yet_is_no_mismatch(live: Live) -> None:
    live.heartbeat(50_000, n=100)
    assert live.heartbeat(60_000, n=0, golden="") == []
    assert live.heartbeat(61_000, n=1) == []


def test_a_heartbeat_that_was_overtaken_counts_for_nothing(live: Live) -> None:
    """Else its smaller counts would look like those of a restarted worker, and be added."""
    live.heartbeat(60_000, n=100)
    live.heartbeat(50_000, n=80)
    live.heartbeat(61_000, n=101)
    assert live.open(Rotation).n_steps == 101


def test_a_late_word_of_the_rotation_before_changes_nothing(live: Live) -> None:
    live.heartbeat(99_000, n=100)
    live.heartbeat(101_000, rotation=1, n=2)
    live.heartbeat(101_500, rotation=0, n=101)
    assert live.open(Rotation).n_steps == 2
    assert [row.n_steps for row in live.rows(Rotation, at_end=True)] == [100, 2]


def test_the_end_hands_out_the_last_rotation_once(live: Live) -> None:
    live.heartbeat(5_000)
    assert len(live.rows(Rotation, at_end=True)) == 1
    assert live.rows(Rotation, at_end=True) == []
    assert not any(isinstance(row, Rotation) for row in live.state.open_rows())


# -- polls


def test_errors_are_told_when_they_rise(live: Live, make: Any) -> None:
    assert live.see(1, 2) == []
    assert live.see(3, ecc=make.counters(corrected=1, uncorrected=0)) == ["ecc_error"]
    assert live.see(4, ecc=make.counters(corrected=1, uncorrected=0)) == []
    assert live.see(5, ecc=make.counters(corrected=0, uncorrected=0)) == ["ecc_reset"]
    assert live.finding("ecc", 5_000).state is State.FAIL


def test_after_the_end_nothing_is_seen(live: Live) -> None:
    """The load is being stopped: an idle card would be bad, and elapsed time stands still."""
    live.heartbeat(9_900)
    live.see(*range(1, 11))
    live.state.end(10_000)
    live.see(11, 12, 13, utilisation=0.0)
    slot = live.open(Slot)
    assert (slot.observed_ms, slot.bad_ms, slot.n_polls) == (10_000, 0, 10)


def test_sensor_errors_are_counted_by_quantity(live: Live, make: Any) -> None:
    live.see(1, 2, temperature=Reading.unreadable("EIO"))
    live.see(3, temperature=Reading.unsupported("no"))
    assert live.state.snapshot(make.standing(3_000), 0).n_sensor_errors == {"temperature_edge_c": 2}


def test_a_lost_card_shows_no_values_any_more(live: Live, make: Any) -> None:
    live.see(1)
    live.state.take_incident(make.incident("device_lost"))
    shot = live.state.snapshot(make.standing(2_000), 500)
    assert (shot.up, shot.poll, shot.poll_utc_ms, shot.is_out) == (False, None, 1_500, True)


@pytest.mark.parametrize(
    ("kind", "out"),
    [
        ("device_lost", True),
        ("restarts_exhausted", True),
        ("worker_unkillable", True),
        ("no_progress", False),
        ("worker_killed", False),
    ],
)
def test_which_cards_cannot_work_any_more(live: Live, make: Any, kind: str, out: bool) -> None:
    live.state.take_incident(make.incident(kind))
    assert live.state.is_out is out


# -- checks


def test_a_check_gets_its_place(live: Live) -> None:
    live.check(1, 243_000)
    (row,) = live.rows(GradientCheck)
    assert (row.attempt, row.due_ms, row.at_ms) == (1, 200_000, 243_000)


def test_a_check_made_again_is_one_check(live: Live) -> None:
    """A restarted worker may make it twice; the row that is there stays."""
    live.check(0, 5_000)
    live.check(0, 9_000, dq={"max_abs": 1e-4})
    assert [row.at_ms for row in live.rows(GradientCheck)] == [5_000]
    assert live.state.snapshot(live.make.standing(10_000), 0).n_checks == {"pass": 1, "fail": 0}


def test_a_check_that_fails_the_second_time_fails(live: Live) -> None:
    live.check(0, 5_000)
    live.check(0, 9_000, dq={"max_abs": 1.0})
    live.check(0, 12_000)
    assert [row.at_ms for row in live.rows(GradientCheck)] == [5_000, 9_000]
    assert live.finding("gradient", 10_000).state is State.FAIL


# -- taken up by `continue`


def stored(make: Any, live: Live, elapsed_ms: int, *more: Any) -> Any:
    """What a killed daemon leaves in the store."""
    rows = [*live.state.rows(elapsed_ms), *live.state.open_rows(), *more]
    record = make.record(rows, [replace(make.attempt(elapsed_ms=elapsed_ms, end="interrupted"))])
    return replace(record, rotations=tuple(row for row in rows if isinstance(row, Rotation)))


def continued(make: Any, before: Any, start_ms: int) -> Live:
    stretches = (Stretch(0, 0), Stretch(start_ms, 0))
    return Live(make, start_ms, before, stretches=stretches)


def test_everything_goes_on_where_it_was(make: Any) -> None:
    first = Live(make)
    first.work(range(1, 101), rotation=0, n=200)
    first.work(range(101, 131), rotation=1, n=50)
    first.check(0, 4_000)
    again = continued(make, stored(make, first, 130_000), 130_000)
    assert again.state.has_made(0)
    again.work(range(131, 181), rotation=1, n=20)
    rotation, integrity = again.open(Rotation), again.open(IntegrityCheck)
    assert (rotation.index, rotation.n_steps) == (1, 70)
    assert (integrity.n, integrity.n_due) == (7, 7)
    (slot,) = again.rows(Slot, 180_000)
    assert (slot.index, slot.n_polls, slot.in_spec_ms, slot.closed) == (2, 60, 60_000, True)
    for criterion in ("gradient", "integrity", "utilisation", "coverage", "ecc"):
        assert again.finding(criterion, 180_000).state is State.PASS, criterion
    assert again.finding("coverage", 180_000).value == 1.0
    assert again.finding("continuity", 180_000).state is State.UNKNOWN


def test_another_digest_after_the_restart_is_a_mismatch(make: Any) -> None:
    first = Live(make)
    first.heartbeat(50_000, n=200)
    again = continued(make, stored(make, first, 60_000), 60_000)
    assert [h.kind for h in again.heartbeat(61_000, n=2, golden="f" * 16)] == ["mismatch"]


def test_a_worker_that_begins_with_an_old_rotation_is_not_counted(make: Any) -> None:
    """It is started on rotation 0 and then told to go over: row 0 must stay as it was."""
    first = Live(make)
    first.heartbeat(99_000, n=200)
    first.heartbeat(100_500, rotation=1, n=0, golden="", n_due=0, n_compared=0)
    before = stored(make, first, 200_000)
    again = continued(make, before, 200_000)  # at the very begin of rotation 2, of which there is no row
    again.heartbeat(201_000, rotation=0, n=3)
    again.heartbeat(202_000, rotation=2, n=5)
    assert again.rows(Rotation) == []
    assert again.open(Rotation).index == 2


def test_a_slot_that_was_over_but_still_open_is_closed_and_counted(make: Any) -> None:
    """Killed just after a border: its seconds must not be lost, nor stay open for ever."""
    first = Live(make)
    first.heartbeat(59_900)
    first.see(*range(1, 60))
    rows = [replace(row, closed=False) for row in first.state.open_rows() if isinstance(row, Slot)]
    rows.append(make.slot(1, closed=False, observed_ms=500, n_polls=0, temperature_c=None))
    again = continued(make, make.record(rows, [make.attempt(elapsed_ms=60_500, end="interrupted")]), 60_500)
    assert [(row.index, row.closed, row.observed_ms) for row in again.rows(Slot)] == [(0, True, 59_000)]
    assert again.open(Slot).index == 1
    assert again.finding("coverage", 60_500).value == pytest.approx(59.5 / 60.5)


def test_the_counters_go_on_from_their_last_reading(make: Any) -> None:
    """An error between two stretches is an error of this run; one from before t0 is not."""
    device = make.device(ecc_baseline=make.counters(corrected=7, uncorrected=0))
    first = Live(make, device=device)
    first.see(*range(1, 41), ecc=make.counters(corrected=7, uncorrected=0))
    before = stored(make, first, 40_000)
    again = Live(make, 40_000, before, device=device)
    assert again.see(41, ecc=make.counters(corrected=8, uncorrected=0)) == ["ecc_error"]
    assert again.open(Slot).ecc == {"corrected": 1, "uncorrected": 0}


def test_counters_that_went_back_between_two_stretches_are_in_doubt(make: Any) -> None:
    device = make.device(ecc_baseline=make.counters(corrected=7, uncorrected=0))
    first = Live(make, device=device)
    first.see(*range(1, 41), ecc=make.counters(corrected=7, uncorrected=0))
    again = Live(make, 40_000, stored(make, first, 40_000), device=device)
    assert again.see(41, ecc=make.counters(corrected=0, uncorrected=0)) == ["ecc_reset"]
    assert again.finding("ecc", 41_000).state is State.UNKNOWN
    assert "while nobody was reading" in again.finding("ecc", 41_000).reason


def test_incidents_of_the_attempt_stay(make: Any) -> None:
    first = Live(make)
    happened = make.incident("worker_killed")
    again = continued(make, stored(make, first, 40_000, happened), 40_000)
    assert again.finding("faults", 41_000).state is State.UNKNOWN
