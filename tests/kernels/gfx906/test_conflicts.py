"""Bank conflicts of patterns whose cost is known by counting on paper."""

from __future__ import annotations

import numpy as np
import pytest
from soak_kernels.gfx906.conflicts import Counter, access_cost

LANE = np.arange(64, dtype=np.int64)
ALL = np.ones(64, np.bool_)


@pytest.mark.parametrize(
    ("stride", "width", "clocks", "free"),
    [
        (4, 4, 2, 2),  # neighbours: 32 lanes a clock
        (0, 4, 2, 2),  # one address: a broadcast
        (8, 4, 4, 2),  # every other bank: two lanes a bank
        (128, 4, 64, 2),  # every lane in the same bank
        (132, 4, 2, 2),  # a row of 33 dwords: padded
        (8, 8, 4, 4),
        (16, 16, 8, 8),
        (512, 16, 64, 8),  # columns of a row of 256 halves: 8-way
        (528, 16, 8, 8),  # the same, padded by 16 bytes
    ],
)
def test_strides(stride: int, width: int, clocks: int, free: int) -> None:
    for read in (True, False):
        cost = access_cost(LANE * stride, ALL, width, read=read)
        assert (cost.clocks, cost.conflict_free) == (clocks, free)
        assert cost.worst >= cost.clocks


def test_groupings_of_later_cards_may_be_worse() -> None:
    """Lanes 0-3 and 20-23 at the same banks: no conflict among neighbours, one where CDNA3 groups them."""
    address = np.where(LANE % 32 < 16, LANE % 8, (LANE + 4) % 8) * 16 + LANE // 8 * 128
    cost = access_cost(address, ALL, 16, read=True)
    assert cost.clocks == 8
    assert cost.worst > 8
    assert access_cost(address, ALL, 16, read=False).worst == 8  # writes go by neighbours


def test_lanes_that_are_off_cost_nothing() -> None:
    cost = access_cost(LANE * 128, LANE < 4, 4, read=True)
    assert (cost.clocks, cost.conflict_free) == (4, 1)


def test_a_shifted_pattern_costs_the_same() -> None:
    counter = Counter()
    for shift in (0, 4, 64, 1000 * 4):
        counter.count(7, LANE * 12 + shift, ALL, 4, read=True)
    assert counter.accesses[7] == [4, 8, 8, 8]
