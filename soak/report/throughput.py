"""Work per second by shape, and whether it drifted: like compared with like."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from soak.core.protocol import Protocol
from soak.core.records import Quantity, Rotation, Slot
from soak.report.card_document import RateBand, Throughput

HOUR_MS = 3_600_000
Z_95 = 1.96  # standard errors to either side of a mean that hold 95 %
SLOPE_MIN = 10  # rotations before a slope is given at all


@dataclass(frozen=True, slots=True)
class Pace:
    """A rotation's rate, over the time it had."""

    rotation: Rotation
    span_ms: int
    tflops: float


def paces(rotations: Sequence[Rotation], elapsed_ms: int, protocol: Protocol) -> list[Pace]:
    """The rotations of one card in one attempt whose length is known: until the next one, or until now."""
    starts = {r.index: r.start_ms for r in rotations}
    found = []
    for rotation in sorted(rotations, key=lambda r: r.index):
        end_ms = starts.get(rotation.index + 1)
        if end_ms is None and rotation.index == protocol.rotation_index(max(elapsed_ms - 1, 0)):
            end_ms = elapsed_ms
        if end_ms is not None and end_ms > rotation.start_ms:
            span_ms = end_ms - rotation.start_ms
            found.append(Pace(rotation, span_ms, rotation.flops / span_ms / 1e9))
    return found


def throughput(
    rotations: Sequence[Rotation],
    slots: Sequence[Slot],
    sensor: Quantity | None,
    elapsed_ms: int,
    protocol: Protocol,
) -> Throughput:
    """Rates of one card in one attempt, from its rotations; temperatures from its slots."""
    known = paces(rotations, elapsed_ms, protocol)
    whole = [p for p in known if 2 * p.span_ms >= protocol.rotate_ms]
    relative = _relative(whole)
    first, last = _first_and_last(relative, elapsed_ms)
    drift, drift_error = _difference(first, last)
    per_kelvin, per_kelvin_error = _slope(_against_temperature(relative, slots, sensor))
    span_ms = sum(p.span_ms for p in known)
    return Throughput(
        n_steps=sum(r.n_steps for r in rotations),
        flops=sum(r.flops for r in rotations),
        tflops_mean=sum(p.rotation.flops for p in known) / span_ms / 1e9 if span_ms else None,
        bands=_bands(whole or known, protocol),
        first_pct=fmean(first) if first else None,
        last_pct=fmean(last) if last else None,
        drift_pct=drift,
        drift_error_pct=drift_error,
        per_kelvin_pct=per_kelvin,
        per_kelvin_error_pct=per_kelvin_error,
    )


def _bands(known: Sequence[Pace], protocol: Protocol) -> tuple[RateBand, ...]:
    """By octave of the sequence length and by mask."""
    grouped: dict[tuple[int, bool], list[float]] = {}
    for pace in known:
        octave = max(pace.rotation.seq_len, 1).bit_length() - 1
        grouped.setdefault((octave, pace.rotation.causal), []).append(pace.tflops)
    return tuple(
        RateBand(
            seq_len_min=max(1 << octave, protocol.seq_len_min),
            seq_len_max=min((2 << octave) - 1, protocol.seq_len_max),
            causal=causal,
            n_rotations=len(rates),
            tflops_min=min(rates),
            tflops_mean=fmean(rates),
            tflops_max=max(rates),
        )
        for (octave, causal), rates in sorted(grouped.items())
    )


def _relative(whole: Sequence[Pace]) -> list[tuple[Pace, float]]:
    """Each rate in percent of what this run did on the whole at that sequence length and mask."""
    found = []
    for causal in (False, True):
        group = [p for p in whole if p.rotation.causal is causal]
        lengths = [math.log(max(p.rotation.seq_len, 1)) for p in group]
        expected = _fitted(lengths, [p.tflops for p in group])
        found += [(p, 100 * p.tflops / e) for p, e in zip(group, expected, strict=True) if e > 0]
    return found


def _fitted(xs: Sequence[float], ys: Sequence[float]) -> list[float]:
    """Least squares of ys over a parabola in xs (less where there are few points), at xs."""
    if not xs:
        return []
    degree = min(2, len(set(xs)) // 3)
    centre = fmean(xs)
    basis: list[list[float]] = []
    fit = [0.0] * len(xs)
    for power in range(degree + 1):  # Gram-Schmidt: each column made orthogonal to those before
        column = [(x - centre) ** power for x in xs]
        for other in basis:
            share = _dot(column, other) / _dot(other, other)
            column = [c - share * o for c, o in zip(column, other, strict=True)]
        if _dot(column, column) < 1e-12:
            break
        basis.append(column)
        weight = _dot(ys, column) / _dot(column, column)
        fit = [f + weight * c for f, c in zip(fit, column, strict=True)]
    return fit


def _dot(xs: Sequence[float], ys: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(xs, ys, strict=True))


def _first_and_last(
    relative: Sequence[tuple[Pace, float]], elapsed_ms: int
) -> tuple[list[float], list[float]]:
    span_ms = min(HOUR_MS, elapsed_ms // 2)
    first = [rate for pace, rate in relative if pace.rotation.start_ms + pace.span_ms <= span_ms]
    last = [rate for pace, rate in relative if pace.rotation.start_ms >= elapsed_ms - span_ms]
    return first, last


def _difference(first: Sequence[float], last: Sequence[float]) -> tuple[float | None, float | None]:
    """None where one of them is too short to know its own scatter: a drift without it would be noise."""
    if len(first) < 2 or len(last) < 2:
        return None, None
    drift = fmean(last) - fmean(first)
    return drift, Z_95 * math.sqrt(variance(first) / len(first) + variance(last) / len(last))


def _against_temperature(
    relative: Sequence[tuple[Pace, float]], slots: Sequence[Slot], sensor: Quantity | None
) -> list[tuple[float, float]]:
    """(temperature, relative rate) of each rotation in which the sensor was read."""
    readings = [(s.start_ms, s.end_ms, s.stats[sensor].mean) for s in slots if sensor and sensor in s.stats]
    points = []
    for pace, rate in relative:
        begin_ms, end_ms = pace.rotation.start_ms, pace.rotation.start_ms + pace.span_ms
        inside = [c for start, end, c in readings if start >= begin_ms and end <= end_ms]
        if inside:
            points.append((fmean(inside), rate))
    return points


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Slope and half the width of its 95 % interval; None where there are few points or one temperature."""
    if len(points) < SLOPE_MIN:
        return None, None
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if spread < 1.0:
        return None, None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return slope, Z_95 * math.sqrt(rest / (len(points) - 2) / spread)
