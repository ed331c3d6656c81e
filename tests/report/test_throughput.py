"""Rates, drift and their uncertainty."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from soak.core.protocol import Limits, Protocol
from soak.core.records import Quantity, Rotation, Slot, Stats
from soak.report.throughput import paces, throughput

HOUR, TEN = 3_600_000, 600_000
PLAN = Protocol(
    duration_ms=12 * HOUR,
    rotate_ms=TEN,
    check_ms=HOUR,
    sample_ms=TEN,
    poll_ms=1000,
    warmup_ms=0,
    seq_len_min=512,
    seq_len_max=4096,
    seed=3,
    limits=Limits(required=frozenset()),
)
EDGE = Quantity.TEMPERATURE_EDGE_C


def rate(seq_len: int, causal: bool) -> float:
    """TFLOP/s of a steady card."""
    return (9 if causal else 12) + 0.8 * math.log2(seq_len / 512) - 0.1 * math.log2(seq_len / 512) ** 2


def rotations(factor=lambda _index: 1.0, n: int = 72) -> list[Rotation]:
    found = []
    for index in range(n):
        shape = PLAN.shape(index)
        tflops = rate(shape.seq_len, shape.causal) * factor(index)
        found.append(
            Rotation(
                1, "g", index, index * TEN, shape.seq_len, shape.causal, shape.seed,
                n_steps=100, flops=int(tflops * TEN * 1e9),
            )
        )  # fmt: skip
    return found


def slots(temperature_c) -> list[Slot]:
    found = []
    for index in range(72):
        c = temperature_c(index)
        stats = {EDGE: Stats(600, c, c, c, c, c, c)}
        found.append(Slot(1, "g", index, index * TEN, (index + 1) * TEN, 0, True, 600, stats=stats))
    return found


def test_a_steady_card_does_not_drift() -> None:
    work = throughput(rotations(), [], EDGE, 12 * HOUR, PLAN)
    assert work.drift_pct == pytest.approx(0, abs=1e-6)
    assert work.first_pct == pytest.approx(100)
    assert work.n_steps == 7200


def test_a_drift_is_found_within_its_uncertainty() -> None:
    work = throughput(rotations(lambda index: 1 - 0.03 * index / 71), [], EDGE, 12 * HOUR, PLAN)
    assert work.drift_pct == pytest.approx(-2.79, abs=0.3)  # from the mean of rotations 0 to 5 to 66 to 71
    assert work.drift_error_pct is not None
    assert work.drift_error_pct < 0.5


def test_the_slope_over_temperature() -> None:
    temperature = [60 + 15 * abs(math.sin(index / 5)) for index in range(72)]
    work = throughput(
        rotations(lambda index: 1 - 0.004 * (temperature[index] - 70)),
        slots(lambda index: temperature[index]),
        EDGE,
        12 * HOUR,
        PLAN,
    )
    assert work.per_kelvin_pct == pytest.approx(-0.4, abs=0.05)
    assert work.per_kelvin_error_pct is not None
    assert work.per_kelvin_error_pct < 0.05


@pytest.mark.parametrize("temperature", [lambda _index: 72.0, lambda index: 72.0 + (index % 2) * 0.01])
def test_one_temperature_gives_no_slope(temperature) -> None:
    work = throughput(rotations(), slots(temperature), EDGE, 12 * HOUR, PLAN)
    assert work.per_kelvin_pct is work.per_kelvin_error_pct is None


def test_a_card_without_the_sensor_has_no_slope() -> None:
    assert (
        throughput(rotations(), slots(lambda index: 60.0 + index), None, 12 * HOUR, PLAN).per_kelvin_pct
        is None
    )


@pytest.mark.parametrize("n", [0, 1, 3])
def test_little_work_claims_nothing(n: int) -> None:
    work = throughput(rotations(n=n), [], EDGE, n * TEN, PLAN)
    assert work.drift_pct is work.drift_error_pct is None
    assert (work.tflops_mean is None) == (n == 0)


def test_a_rotation_of_unknown_length_has_no_rate() -> None:
    rows = [row for row in rotations(n=12) if row.index != 5]
    assert [pace.rotation.index for pace in paces(rows, 2 * HOUR, PLAN)] == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]


def test_a_rotation_without_work_counts_as_zero() -> None:
    rows = [replace(row, flops=0) for row in rotations(n=6)]
    work = throughput(rows, [], EDGE, HOUR, PLAN)
    assert work.tflops_mean == 0
    assert work.drift_pct is None


def test_bands_are_octaves_within_the_protocols_range() -> None:
    bands = throughput(rotations(), [], EDGE, 12 * HOUR, PLAN).bands
    assert sum(band.n_rotations for band in bands) == 72
    for band in bands:
        assert 512 <= band.seq_len_min <= band.seq_len_max <= 4096
        assert band.tflops_min <= band.tflops_mean <= band.tflops_max
