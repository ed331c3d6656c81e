"""One card's figures, from its rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from soak.core.criteria import broken_limits
from soak.core.protocol import Limits, Protocol
from soak.core.records import (
    Attempt,
    Device,
    GradientCheck,
    IntegrityCheck,
    Quantity,
    ReadingStatus,
    Rotation,
    RunRecord,
    Slot,
    TensorError,
)
from soak.report import card_document as d
from soak.report.throughput import paces, throughput
from soak.report.wording import utc

UNITS = {"pct": "%", "c": "°C", "w": "W", "hz": "Hz", "bytes": "B", "gts": "GT/s", "j": "J"}


class CardRows:
    """The rows of one card, those of the last attempt apart."""

    def __init__(self, record: RunRecord, device: Device, protocol: Protocol) -> None:
        gpu = device.gpu
        self.device = device
        self.protocol = protocol
        self.attempt = record.attempts[-1] if record.attempts else None
        self.attempts: Mapping[int, Attempt] = {a.number: a for a in record.attempts}
        self.elapsed_ms = max(self.attempt.elapsed_ms, 0) if self.attempt else 0
        self.all_slots = sorted((s for s in record.slots if s.gpu == gpu), key=lambda s: (s.attempt, s.index))
        self.rotations = sorted(
            (r for r in record.rotations if r.gpu == gpu), key=lambda r: (r.attempt, r.index)
        )
        self.checks = sorted(
            (c for c in record.gradient_checks if c.gpu == gpu), key=lambda c: (c.attempt, c.index)
        )
        self.comparisons: Mapping[tuple[int, int], IntegrityCheck] = {
            (c.attempt, c.rotation): c for c in record.integrity_checks if c.gpu == gpu
        }
        self.slots = [s for s in self.all_slots if self.is_last(s.attempt)]
        self.last_rotations = [r for r in self.rotations if self.is_last(r.attempt)]

    def is_last(self, attempt: int) -> bool:
        return self.attempt is not None and attempt == self.attempt.number


def coverage(rows: CardRows) -> d.Coverage:
    """What was observed of what was due; a slot without a row is a slot without observation."""
    elapsed_ms, protocol = rows.elapsed_ms, rows.protocol
    observed_ms = sum(s.observed_ms for s in rows.slots)
    return d.Coverage(
        elapsed_s=elapsed_ms / 1000,
        observed_s=observed_ms / 1000,
        share=observed_ms / elapsed_ms if elapsed_ms else None,
        n_slots_due=-(-min(elapsed_ms, protocol.duration_ms) // protocol.sample_ms),
        n_slots=len(rows.slots),
        n_polls_due=elapsed_ms // protocol.poll_ms,
        n_polls=sum(s.n_polls for s in rows.slots),
        worst=_worst(rows, {s.index: s.observed_ms for s in rows.slots}),
    )


def utilisation(rows: CardRows) -> d.Utilisation:
    elapsed_ms = rows.elapsed_ms
    in_spec_ms = sum(s.in_spec_ms for s in rows.slots)
    suspect_ms = sum(s.suspect_ms for s in rows.slots)
    bad_ms = sum(s.bad_ms for s in rows.slots)
    return d.Utilisation(
        in_spec_s=in_spec_ms / 1000,
        suspect_s=suspect_ms / 1000,
        bad_s=bad_ms / 1000,
        unobserved_s=max(elapsed_ms - in_spec_ms - suspect_ms - bad_ms, 0) / 1000,
        share_in_spec=in_spec_ms / elapsed_ms if elapsed_ms else None,
        throttled_s=sum(s.throttled_ms for s in rows.slots) / 1000,
        worst=_worst(rows, {s.index: s.in_spec_ms for s in rows.slots}),
    )


def _worst(rows: CardRows, good_ms: Mapping[int, int]) -> d.Window | None:
    """The slot due so far with the least good time in it; the earliest of equals."""
    protocol, worst = rows.protocol, None
    for index in range(-(-min(rows.elapsed_ms, protocol.duration_ms) // protocol.sample_ms)):
        start_ms = protocol.slot_start_ms(index)
        span_ms = min(protocol.slot_end_ms(index), rows.elapsed_ms) - start_ms
        if span_ms <= 2 * protocol.poll_ms:  # a slot that has just begun says nothing yet
            continue
        share = good_ms.get(index, 0) / span_ms
        if worst is None or share < worst[0]:
            worst = share, start_ms, start_ms + span_ms
    if worst is None or rows.attempt is None:
        return None
    share, start_ms, end_ms = worst
    return d.Window(start_ms / 1000, end_ms / 1000, utc(utc_at(rows.attempt, start_ms)), share)


def utc_at(attempt: Attempt, at_ms: int) -> int | None:
    """The wall clock at an elapsed instant, by the stamp of the stretch it lies in."""
    begun = [s for s in attempt.stretches if s.start_ms <= at_ms]
    return begun[-1].utc_ms + at_ms - begun[-1].start_ms if begun else None


def readings(rows: CardRows) -> tuple[d.Spread, ...]:
    """Every quantity that was read in the last attempt, over all of its polls."""
    found = []
    for quantity in Quantity:
        parts = [s.stats[quantity] for s in rows.slots if quantity in s.stats and s.stats[quantity].n > 0]
        if parts:
            n = sum(p.n for p in parts)
            found.append(
                d.Spread(
                    quantity=str(quantity),
                    unit=UNITS.get(quantity.rsplit("_", 1)[-1], ""),
                    n=n,
                    min=min(p.min for p in parts),
                    mean=sum(p.mean * p.n for p in parts) / n,
                    max=max(p.max for p in parts),
                    last=parts[-1].last,
                    judged=quantity is rows.device.temperature_sensor,
                )
            )
    return tuple(found)


def ecc(rows: CardRows) -> d.Ecc:
    device = rows.device
    read = [s for s in rows.slots if s.ecc is not None]
    return d.Ecc(
        supported=device.ecc.status is ReadingStatus.OK,
        reason=device.ecc.reason,
        baseline=tuple(
            d.Counter(name, reading.value, reading.reason)
            for name, reading in sorted(device.ecc_baseline.items())
        ),
        last=dict(sorted(read[-1].ecc_raw.items())) if read else {},
        since_t0=dict(read[-1].ecc or {}) if read else None,
        n_slots_read=len(read),
        doubt=next((s.ecc_doubt for s in rows.slots if s.ecc_doubt), ""),
    )


def gradient(rows: CardRows) -> d.Gradient:
    limits, protocol = rows.protocol.limits, rows.protocol
    checks = tuple(_check(check, limits) for check in rows.checks)
    return d.Gradient(
        n_due=protocol.n_checks(rows.elapsed_ms) if rows.attempt else 0,
        n_made=len({c.index for c in checks if rows.is_last(c.attempt)}),
        worst=_worst_tensors(checks),
        checks=checks,
    )


def _check(check: GradientCheck, limits: Limits) -> d.CheckLine:
    broken = broken_limits(check, limits)
    return d.CheckLine(
        attempt=check.attempt,
        index=check.index,
        due_s=check.due_ms / 1000,
        at_s=check.at_ms / 1000,
        duration_s=check.duration_ms / 1000,
        rotation=check.rotation,
        seq_len=check.seq_len,
        causal=check.causal,
        seed=check.seed,
        slices=check.slices,
        input_std=check.input_std,
        dtype=check.dtype,
        golden_proved=check.golden_proved,
        within=not broken,
        tensors=tuple(_tensor(error, broken, limits) for error in check.errors),
    )


def _tensor(error: TensorError, broken: Sequence[str], limits: Limits) -> d.TensorFigure:
    """`broken_limits` is the one place that knows the rule; each of its complaints begins with its tensor."""
    absolute = {
        "dq": limits.gradient_max_abs_dq,
        "dk": limits.gradient_max_abs_dk,
        "dv": limits.gradient_max_abs_dv,
    }.get(error.tensor)
    return d.TensorFigure(
        tensor=error.tensor,
        n_elements=error.n_elements,
        n_nonfinite=error.n_nonfinite,
        max_abs=error.max_abs,
        max_abs_limit=absolute,
        relative_l2=error.relative_l2,
        relative_l2_limit=None if absolute is None else limits.gradient_relative_l2,
        max_reference=error.max_reference,
        within=None if absolute is None else not any(b.startswith(f"{error.tensor} ") for b in broken),
    )


def _worst_tensors(checks: Sequence[d.CheckLine]) -> tuple[d.TensorFigure, ...]:
    """Per tensor the largest of each figure over all checks; NaN is larger than anything."""
    by_tensor: dict[str, list[d.TensorFigure]] = {}
    for check in checks:
        for figure in check.tensors:
            by_tensor.setdefault(figure.tensor, []).append(figure)
    return tuple(
        d.TensorFigure(
            tensor=tensor,
            n_elements=sum(f.n_elements for f in figures),
            n_nonfinite=sum(f.n_nonfinite for f in figures),
            max_abs=_largest(f.max_abs for f in figures),
            max_abs_limit=figures[0].max_abs_limit,
            relative_l2=_largest(f.relative_l2 for f in figures),
            relative_l2_limit=figures[0].relative_l2_limit,
            max_reference=_largest(f.max_reference for f in figures),
            within=None if figures[0].within is None else all(f.within for f in figures),
        )
        for tensor, figures in by_tensor.items()
    )


def _largest(values: Iterable[float]) -> float:
    return max(values, key=lambda v: (math.isnan(v), v if not math.isnan(v) else 0.0))


def integrity(rows: CardRows) -> d.Integrity:
    checks = list(rows.comparisons.values())
    n, mismatches = sum(c.n for c in checks), sum(c.mismatches for c in checks)
    unproved = sum(1 for check in rows.checks if check.golden_proved is False)
    spotless = n > 0 and not mismatches and not unproved
    return d.Integrity(
        n_rotations_due=rows.protocol.n_rotations(rows.elapsed_ms) if rows.attempt else 0,
        n_rotations_compared=sum(1 for c in checks if rows.is_last(c.attempt) and c.n > 0),
        n_due=sum(c.n_due for c in checks),
        n_compared=n,
        n_mismatches=mismatches,
        n_unproved=unproved,
        error_rate_below=min(3 / n, 1.0) if spotless else None,  # rule of three, 95 %
    )


def rotations(rows: CardRows) -> tuple[d.RotationLine, ...]:
    rates: dict[tuple[int, int], float] = {}
    for number, attempt in rows.attempts.items():
        of_attempt = [r for r in rows.rotations if r.attempt == number]
        for pace in paces(of_attempt, attempt.elapsed_ms, rows.protocol):
            rates[number, pace.rotation.index] = pace.tflops
    return tuple(
        _rotation(r, rates.get((r.attempt, r.index)), rows.comparisons.get((r.attempt, r.index)))
        for r in rows.rotations
    )


def _rotation(r: Rotation, tflops: float | None, compared: IntegrityCheck | None) -> d.RotationLine:
    return d.RotationLine(
        attempt=r.attempt,
        index=r.index,
        start_s=r.start_ms / 1000,
        seq_len=r.seq_len,
        causal=r.causal,
        seed=r.seed,
        kernel=r.kernel,
        golden=r.golden,
        n_steps=r.n_steps,
        flops=r.flops,
        tflops=tflops,
        n_due=compared.n_due if compared else None,
        n_compared=compared.n if compared else None,
        n_mismatches=compared.mismatches if compared else None,
    )


def samples(rows: CardRows) -> tuple[d.Sample, ...]:
    return tuple(_sample(slot) for slot in rows.all_slots)


def _sample(s: Slot) -> d.Sample:
    return d.Sample(
        attempt=s.attempt,
        index=s.index,
        start_s=s.start_ms / 1000,
        end_s=s.end_ms / 1000,
        start_utc=utc(s.utc_ms),
        closed=s.closed,
        n_polls=s.n_polls,
        observed_s=s.observed_ms / 1000,
        in_spec_s=s.in_spec_ms / 1000,
        suspect_s=s.suspect_ms / 1000,
        bad_s=s.bad_ms / 1000,
        throttled_s=s.throttled_ms / 1000,
        ecc=dict(s.ecc) if s.ecc is not None else None,
        ecc_doubt=s.ecc_doubt,
        stats={str(q): stats for q, stats in s.stats.items()},
        missing={str(q): reason for q, reason in s.missing.items()},
    )


def not_offered(device: Device) -> Mapping[str, str]:
    """Quantities that gave no value before t0, with the reason."""
    return {
        str(quantity): f"{reading.status}: {reading.reason}" if reading.reason else str(reading.status)
        for quantity, reading in device.supported.items()
        if reading.status is not ReadingStatus.OK
    }


def work(rows: CardRows) -> d.Throughput:
    return throughput(
        rows.last_rotations, rows.slots, rows.device.temperature_sensor, rows.elapsed_ms, rows.protocol
    )
