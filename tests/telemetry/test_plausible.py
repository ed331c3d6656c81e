"""A02: what a sensor cannot have meant is unreadable, with its own words, and never a value."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.records import Quantity, Reading, ReadingStatus
from soak.telemetry.plausible import BOUNDS, COUNT_MAX, counted, judged


def test_every_quantity_has_bounds():
    assert set(BOUNDS) == set(Quantity)


@pytest.mark.parametrize("value", [97, 1980, 808334905, -1])
def test_the_sequence_of_the_report(value):
    reading = judged(Quantity.UTILISATION_PCT, value)
    if value == 97:
        assert reading == Reading.ok(97.0)
    else:
        assert reading.status is ReadingStatus.UNREADABLE
        assert reading.value is None
        assert str(value) in reading.reason or f"{value:g}" in reading.reason


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        (Quantity.TEMPERATURE_EDGE_C, 65535),
        (Quantity.TEMPERATURE_MEMORY_C, 0),
        (Quantity.TEMPERATURE_CORE_C, -273.15),
        (Quantity.POWER_W, 0xFFFFFFFF / 1000),
        (Quantity.POWER_W, 65535),
        (Quantity.CLOCK_CORE_HZ, 0xFFFF * 1e6),
        (Quantity.PCIE_WIDTH, 63),
        (Quantity.PCIE_WIDTH, 0),
        (Quantity.PCIE_REPLAYS, 0xFFFFFFFF),
        (Quantity.MEMORY_TOTAL_BYTES, 0),
        (Quantity.MEMORY_FREE_BYTES, 140737488355328),
        (Quantity.MEMORY_FREE_BYTES, 2**64 - 1),
        (Quantity.THERMAL_THROTTLE, 2),
    ],
)
def test_sentinels_of_real_tools_are_impossible(quantity, value):
    assert judged(quantity, value).status is ReadingStatus.UNREADABLE


@pytest.mark.parametrize("value", [0, 1, 57, 0xFFFF, 1048560])
def test_counts_that_a_card_can_have(value):
    assert counted(value) == Reading.ok(float(value))


@pytest.mark.parametrize("value", [-1, 2**32 - 1, 2**64 - 1, 2**63 - 1, 140737488355328])
def test_counts_that_no_card_can_have(value):
    assert counted(value).status is ReadingStatus.UNREADABLE


@given(st.sampled_from(Quantity), st.floats(allow_nan=True, allow_infinity=True))
def test_a_reading_is_within_its_bounds_or_none(quantity, value):
    reading = judged(quantity, value)
    if reading.status is ReadingStatus.OK:
        assert reading.value is not None
        assert BOUNDS[quantity][0] <= reading.value <= BOUNDS[quantity][1]
    else:
        assert reading.value is None
        assert reading.reason
        assert not (math.isfinite(value) and BOUNDS[quantity][0] <= value <= BOUNDS[quantity][1])


@given(st.integers())
def test_a_count_is_exact_or_none(value):
    reading = counted(value)
    assert reading.value == (value if reading.status is ReadingStatus.OK else None)
    assert (reading.status is ReadingStatus.OK) == (0 <= value <= COUNT_MAX and value != 2**32 - 1)
