"""Small parts beside the criteria: clocks, digests of equal cards, the journal, what is out of reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from soak.core.clockwatch import ClockWatch
from soak.core.journal import RECENT, ROWS_MAX, Journal
from soak.core.ports import Happening, Progress
from soak.core.quorum import Quorum
from soak.core.reach import out_of_reach
from soak.core.records import Device, Quantity, Reading

# -- clocks


@pytest.mark.parametrize(
    ("by_ms", "told"), [(501, True), (-501, True), (500, False), (-500, False), (0, False)]
)
def test_a_step_of_the_wall_clock_is_told_once(by_ms: int, told: bool) -> None:
    watch = ClockWatch(1_000, 50_000)
    happened = watch.look(2_000, 51_000 + by_ms)
    assert [h.kind for h in happened] == ["clock_step"] * told
    assert watch.look(3_000, 52_000 + by_ms) == []
    if told:
        assert happened[0].data == {"step_ms": by_ms}
        assert ("forward" if by_ms > 0 else "back") in happened[0].detail


def test_slewing_is_no_step() -> None:
    """Half a second an hour is more than any slewing does."""
    watch = ClockWatch(0, 0)
    assert [watch.look(second * 1_000, round(second * 1_000.14)) for second in range(1, 3_601)] == [
        []
    ] * 3_600


def test_a_suspend_is_where_the_boot_clock_runs_and_the_other_stands() -> None:
    watch = ClockWatch(1_000, 50_000, 1_000)
    assert watch.look(2_000, 51_000, 2_000) == []
    (happened,) = watch.look(63_000, 112_000, 3_000)
    assert (happened.kind, happened.data) == ("suspended", {"slept_ms": 60_000})
    assert watch.look(64_000, 113_000, 4_000) == []


def test_where_there_is_no_such_clock_a_suspend_is_not_seen() -> None:
    assert ClockWatch(1_000, 50_000).look(63_000, 112_000, 3_000) == []
    assert ClockWatch(1_000, 50_000, 1_000).look(63_000, 112_000) == []


# -- digests of equal cards


def card(name: str, model: str = "MI50") -> Device:
    return Device(name, "amd", model=model, arch="gfx906")


def beat(gpu: str, golden: str, rotation: int = 0) -> Progress:
    return Progress(gpu, 5, rotation, 1, 1, 1, 400.0, golden=golden)


def tell(quorum: Quorum, *beats: Progress) -> list[list[str | None]]:
    return [[h.gpu for h in quorum.take(each)] for each in beats]


def test_equal_cards_agree() -> None:
    quorum = Quorum((card("a"), card("b")))
    assert tell(quorum, beat("a", "1"), beat("b", "1"), beat("a", "1")) == [[], [], []]


def test_a_disagreement_is_told_once_of_each() -> None:
    quorum = Quorum((card("a"), card("b"), card("c")))
    assert tell(quorum, beat("a", "1"), beat("b", "2"), beat("b", "2"), beat("c", "1")) == [
        [],
        ["a", "b"],
        [],
        ["c"],
    ]
    assert tell(quorum, beat("a", "1", 1), beat("b", "2", 1)) == [[], ["a", "b"]]  # and in each rotation


def test_other_cards_are_not_compared() -> None:
    assert tell(Quorum((card("a"), card("b", "MI60"))), beat("a", "1"), beat("b", "2")) == [[], []]


def test_other_kernels_are_not_compared() -> None:
    fallen_back = replace(card("b"), kernel="naive")
    assert tell(Quorum((card("a"), fallen_back)), beat("a", "1"), beat("b", "2")) == [[], []]


def test_no_digest_yet_and_old_rotations_say_nothing() -> None:
    quorum = Quorum((card("a"), card("b")))
    assert tell(quorum, beat("a", "1", 1), beat("b", "2", 0), beat("b", "", 1)) == [[], [], []]


# -- the journal


class Frozen:
    def boot_ms(self) -> int:
        return 10_000

    def utc_ms(self) -> int:
        return 90_000


def test_incidents_are_numbered_stamped_and_counted() -> None:
    journal = Journal(2, Frozen())
    first = journal.record(Happening("clock_step", 9_500), 500)
    second = journal.record(Happening("device_lost", 9_900, "a", "gone"), 900)
    assert first is not None
    assert second is not None
    assert [(i.attempt, i.seq, i.at_ms, i.utc_ms) for i in (first, second)] == [
        (2, 0, 500, 89_500),
        (2, 1, 900, 89_900),
    ]
    assert journal.counts == {(None, "clock_step"): 1, ("a", "device_lost"): 1}


def test_numbers_go_on_after_those_that_are_stored(make: Any) -> None:
    stored = [make.incident("resumed", seq=4), replace(make.incident("resumed", seq=9), attempt=2)]
    incident = Journal(1, Frozen(), stored).record(Happening("resumed", 1), 0)
    assert incident is not None
    assert incident.seq == 5


def test_a_flood_is_counted_and_not_stored() -> None:
    journal = Journal(1, Frozen())
    kept = [journal.record(Happening("sensor_error", n, "a"), n) for n in range(10_000)]
    assert sum(incident is not None for incident in kept) == ROWS_MAX
    assert journal.counts == {("a", "sensor_error"): 10_000}
    assert len(journal.recent) == RECENT
    assert journal.record(Happening("sensor_error", 1, "b"), 1) is not None  # another card's are another's


# -- out of reach


@pytest.mark.parametrize(
    ("device", "limits", "said"),
    [
        ({}, {}, []),
        ({"ecc": Reading.unsupported("no RAS")}, {}, ["no ECC on this card (no RAS)"]),
        ({"ecc": Reading.unreadable("EIO")}, {}, []),  # the muster asks again
        ({"temperature_sensor": None}, {}, ["no temperature sensor to judge"]),
        (
            {"supported": {Quantity.TEMPERATURE_EDGE_C: Reading.unsupported("no hwmon")}},
            {},
            ["no temperature_edge_c reading (no hwmon)"],
        ),
        (
            {"supported": {Quantity.UTILISATION_PCT: Reading.unsupported("EINVAL")}},
            {},
            ["no utilisation reading (EINVAL)"],
        ),
        ({"slowdown_c": None}, {"temperature_kind": "margin"}, ["at which temperature it slows down"]),
        ({"slowdown_c": None}, {}, []),
        (
            {"supported": {Quantity.THERMAL_THROTTLE: Reading.unsupported("no bits")}},
            {"temperature_kind": "margin"},
            ["no reading of thermal throttling (no bits)"],
        ),
        ({"supported": {Quantity.THERMAL_THROTTLE: Reading.unsupported("no bits")}}, {}, []),
    ],
)
def test_what_cannot_be_reached_is_said_at_the_start(
    make: Any, device: Any, limits: Any, said: list[str]
) -> None:
    found = out_of_reach(make.protocol(limits=limits), [make.device(**device)], ())
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True))
    not_required = make.protocol(limits={**limits, "required": frozenset({"faults"})})
    assert out_of_reach(not_required, [make.device(**device)], ()) == []


def test_a_waiver_brings_ecc_within_reach(make: Any) -> None:
    bare = make.device(ecc=Reading.unsupported("no RAS"))
    assert out_of_reach(make.protocol(), [bare], ("ecc",)) == []


def test_a_warm_up_as_long_as_the_run_is_out_of_reach(make: Any) -> None:
    assert out_of_reach(make.protocol(warmup_ms=599_999), [make.device()], ()) == []
    assert "warm-up" in out_of_reach(make.protocol(warmup_ms=600_000), [make.device()], ())[0]
