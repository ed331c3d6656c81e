"""The binary table: real ones of several generations are in the captures; here what is wrong with one."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.records import Reading, ReadingStatus
from soak.telemetry.gpu_metrics import Metrics, decoded, throttled

CAPTURES = Path(__file__).parents[1] / "captures"
MI50 = next(
    (CAPTURES / "amd__instinct-mi50-32gb__by-hand/root/sys/devices").rglob("gpu_metrics")
).read_bytes()
TABLES = [
    path.read_bytes()
    for path in sorted((CAPTURES / "amd__gpu-metrics-of-six-cards__lact").rglob("gpu_metrics"))
]


def test_v1_0_of_an_mi50_under_load():
    metrics = decoded(MI50)
    assert isinstance(metrics, Metrics)
    assert metrics.version == (1, 0)
    assert metrics.values == {
        "edge_c": 70, "junction_c": 86, "memory_c": 78, "busy_pct": 99, "memory_busy_pct": 61,
        "power_w": 221, "core_mhz": 1690, "memory_mhz": 1000,
    }  # fmt: skip
    assert metrics.throttle == 0
    assert not metrics.throttle_is_common


def test_throttle_bits_are_read_only_where_they_are_known():
    metrics = decoded(MI50[:68] + (1 << 3 | 1 << 13).to_bytes(4, "little") + MI50[72:])
    assert isinstance(metrics, Metrics)
    assert throttled(metrics, is_vega20=True) == (True, True)
    assert throttled(metrics, is_vega20=False) is None  # the bits are each ASIC's own


def test_the_table_may_be_padded_and_may_not_be_cut():
    assert decoded(MI50 + bytes(4096 - len(MI50))) == decoded(MI50)
    for table in (MI50, *TABLES):
        (size,) = struct.unpack_from("<H", table)
        for length in (0, 1, 3, 4, size // 2, size - 1):
            cut = decoded(table[:length])
            assert isinstance(cut, Reading)
            assert cut.status is ReadingStatus.UNREADABLE


@pytest.mark.parametrize("version", [(0, 0), (1, 4), (1, 8), (2, 0), (3, 1), (255, 255)])
def test_an_unknown_version_is_unsupported_by_name(version):
    metrics = decoded(struct.pack("<HBB", 120, *version) + bytes(200))
    assert metrics == Reading.unsupported(f"gpu_metrics v{version[0]}.{version[1]} is not known here")


def test_a_wrong_size_is_unreadable():
    metrics = decoded(struct.pack("<HBB", 96, 1, 0) + MI50[4:] + bytes(100))
    assert isinstance(metrics, Reading)
    assert metrics.status is ReadingStatus.UNREADABLE


def test_unfilled_fields_are_absent():
    metrics = decoded(MI50[:4] + b"\xff" * (len(MI50) - 4))
    assert isinstance(metrics, Metrics)
    assert metrics.values == {}
    assert metrics.throttle is None


@given(st.sampled_from([MI50, *TABLES]), st.binary(max_size=300), st.integers(0, 300))
def test_no_table_escapes_as_an_exception(table, noise, offset):
    for data in (noise, table[:offset] + noise, table[:4] + noise):
        metrics = decoded(data)
        if isinstance(metrics, Metrics):
            assert all(value >= 0 for value in metrics.values.values())
