"""What is due when, and which shape: the plan every process derives alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.protocol import Limits, Protocol, Shape
from soak.core.records import Stretch

HOUR_MS = 3_600_000
MI50 = Protocol(48 * HOUR_MS, 600_000, HOUR_MS, 300_000, 1_000, 1_800_000, 512, 4096, 7, Limits(frozenset()))


def test_the_stream_of_shapes_is_what_it_always_was() -> None:
    """A stored run is replayed by its seed: these values must never change."""
    assert [MI50.shape(index) for index in (0, 1, 2, 3, 287)] == [
        Shape(0, 3564, False, 8716930429822010340),
        Shape(1, 736, True, 5656619808592968788),
        Shape(2, 3654, False, 8854230370136832464),
        Shape(3, 3098, True, 8700775733365321354),
        Shape(287, 2253, True, 2741871913373260794),
    ]
    assert replace(MI50, seed=8).shape(0) == Shape(0, 3207, False, 7289560047198088225)


def test_shapes_cover_the_range_and_both_masks() -> None:
    drawn = [MI50.shape(index) for index in range(20_000)]
    assert {min(s.seq_len for s in drawn), max(s.seq_len for s in drawn)} == {512, 4096}
    assert 9_700 < sum(s.causal for s in drawn) < 10_300
    assert len({s.seed for s in drawn}) == len(drawn)
    assert all(0 <= s.seed < 1 << 63 for s in drawn)


@pytest.mark.parametrize(
    ("duration_ms", "rotate_ms", "n"),
    [
        (600_000, 100_000, 6),
        (602_000, 100_000, 6),  # 2 s hold no comparison to speak of
        (649_999, 100_000, 6),
        (650_000, 100_000, 7),
        (48 * HOUR_MS, 660_000, 262),  # 9 of 11 min
        (48 * HOUR_MS + 59_999, 600_000, 288),
        (48 * HOUR_MS + 60_000, 600_000, 289),
        (30_000, 100_000, 1),
        (1, 1, 1),
    ],
)
def test_a_rest_too_short_to_be_compared_is_no_rotation(duration_ms: int, rotate_ms: int, n: int) -> None:
    protocol = replace(MI50, duration_ms=duration_ms, rotate_ms=rotate_ms)
    assert protocol.n_rotations(duration_ms) == n
    assert protocol.rotation_index(duration_ms) == protocol.rotation_index(duration_ms - 1) == n - 1
    assert protocol.rotation_index((n - 1) * rotate_ms) == n - 1


def test_a_range_of_one_is_that_length() -> None:
    assert replace(MI50, seq_len_min=777, seq_len_max=777).shape(5).seq_len == 777


def test_48_hours_hold_48_checks_288_rotations_and_576_slots() -> None:
    end_ms = MI50.duration_ms
    assert (MI50.n_checks(end_ms), MI50.n_rotations(end_ms), MI50.n_slots) == (48, 288, 576)
    assert MI50.n_slots_warm(MI50.n_slots, (Stretch(0, 0),)) == 570
    assert MI50.n_polls(0) == 300


@pytest.mark.parametrize(
    ("at_ms", "checks", "settled", "rotation", "rotations"),
    [
        (-1, 0, 0, 0, 0),
        (0, 1, 0, 0, 1),
        (1, 1, 0, 0, 1),
        (HOUR_MS - 1, 1, 0, 5, 6),
        (HOUR_MS, 2, 1, 6, 7),
        (47 * HOUR_MS, 48, 47, 282, 283),
        (48 * HOUR_MS - 1, 48, 47, 287, 288),
        (48 * HOUR_MS, 48, 48, 287, 288),  # no check and no rotation at the end itself
        (48 * HOUR_MS + 60_000, 48, 48, 287, 288),
    ],
)
def test_fenceposts(at_ms: int, checks: int, settled: int, rotation: int, rotations: int) -> None:
    assert MI50.n_checks(at_ms) == checks
    assert MI50.n_checks_settled(at_ms) == settled
    assert MI50.rotation_index(max(at_ms, 0)) == rotation
    assert MI50.n_rotations(at_ms) == rotations


def test_an_interval_that_does_not_divide_the_length() -> None:
    """61 s: slots of 25 s, checks and rotations of 20 s."""
    protocol = replace(MI50, duration_ms=61_000, sample_ms=25_000, check_ms=20_000, rotate_ms=20_000)
    assert protocol.n_slots == 3
    assert [(protocol.slot_start_ms(i), protocol.slot_end_ms(i)) for i in range(3)] == [
        (0, 25_000),
        (25_000, 50_000),
        (50_000, 61_000),
    ]
    assert [protocol.n_polls(i) for i in range(3)] == [25, 25, 11]
    assert protocol.n_checks(61_000) == 4  # at 0, 20, 40 and 60 s
    assert protocol.n_checks_settled(61_000) == 3  # the one at 60 s has 20 s of its own
    assert protocol.rotation_index(61_000) == 2  # a last second is no rotation of its own
    assert [protocol.n_slots_closed(ms) for ms in (24_999, 25_000, 60_999, 61_000)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("at_ms", "slot"), [(0, 0), (1, 0), (300_000, 0), (300_001, 1), (48 * HOUR_MS, 575), (1 << 40, 575)]
)
def test_a_poll_on_the_border_belongs_to_the_slot_that_ends_there(at_ms: int, slot: int) -> None:
    assert MI50.slot_index(at_ms) == slot


@pytest.mark.parametrize(
    ("at_ms", "slot"), [(0, 0), (299_999, 0), (300_000, 1), (48 * HOUR_MS - 1, 575), (48 * HOUR_MS, 576)]
)
def test_what_comes_next_belongs_to_the_slot_in_progress(at_ms: int, slot: int) -> None:
    assert MI50.slot_in_progress(at_ms) == slot


def test_a_run_shorter_than_everything_has_one_of_each() -> None:
    protocol = replace(MI50, duration_ms=500)
    assert (protocol.n_slots, protocol.n_checks(500), protocol.n_rotations(500)) == (1, 1, 1)
    assert (protocol.n_polls(0), protocol.slot_end_ms(0), protocol.rotation_index(500)) == (1, 500, 0)


def test_warm_up_is_counted_per_stretch() -> None:
    """Slots of 300 s, warm-up 1800 s; a second stretch begins inside slot 10."""
    stretches = (Stretch(0, 0), Stretch(3_100_000, 0))
    warm = [slot for slot in range(24) if MI50.is_warm(slot, stretches)]
    assert warm == [6, 7, 8, 9, 17, 18, 19, 20, 21, 22, 23]


cadences: Any = st.integers(1, 40).map(lambda n: n * 1_000)


@given(
    duration_ms=st.integers(1, 400).map(lambda n: n * 500),
    sample_ms=cadences,
    warmup_ms=st.integers(0, 60).map(lambda n: n * 1_000),
    starts=st.lists(st.integers(0, 200_000), max_size=4),
)
def test_counting_warm_slots_is_arithmetic_over_is_warm(
    duration_ms: int, sample_ms: int, warmup_ms: int, starts: list[int]
) -> None:
    protocol = replace(MI50, duration_ms=duration_ms, sample_ms=sample_ms, warmup_ms=warmup_ms)
    stretches = tuple(Stretch(ms, 0) for ms in sorted({0, *(s for s in starts if s < duration_ms)}))
    for n_slots in range(protocol.n_slots + 1):
        counted = sum(protocol.is_warm(slot, stretches) for slot in range(n_slots))
        assert protocol.n_slots_warm(n_slots, stretches) == counted


@given(
    duration_ms=st.integers(1, 1_000_000), every_ms=st.integers(1, 100_000), at_ms=st.integers(-10, 1_100_000)
)
def test_checks_are_due_at_multiples_of_the_interval_before_the_end(
    duration_ms: int, every_ms: int, at_ms: int
) -> None:
    protocol = replace(MI50, duration_ms=duration_ms, check_ms=every_ms)
    n = protocol.n_checks(at_ms)
    due_ms = [k * every_ms for k in (n - 1, n)]
    assert n == 0 or due_ms[0] <= min(at_ms, duration_ms - 1)
    assert due_ms[1] > at_ms or due_ms[1] >= duration_ms
    assert 0 <= protocol.n_checks_settled(at_ms) <= n
