"""The section of one card."""

from __future__ import annotations

from collections.abc import Mapping

from soak.report import card_document as c
from soak.report import document as d
from soak.report import wording as w
from soak.report.sections import Block, Column, Facts, Section, Table

BASELINE_SHOWN = 12  # counters
SCALES: Mapping[str, tuple[str, float]] = {"Hz": ("MHz", 1e6), "B": ("GiB", 2.0**30)}


def card_section(document: d.Document, index: int) -> Section:
    """Identity, criteria and figures of one card."""
    card = document.cards[index]
    blocks: list[Block | None] = [
        _identity(card),
        _criteria(card),
        _figures(card),
        _readings(card),
        _gradient(card),
        _rates(card),
        _checks(card),
        _rotations(card),
    ]
    model = f" · {w.clean(card.model)}" if card.model else ""
    title = f"Card {w.clean(card.gpu)}{model}"
    return Section(title, tuple(block for block in blocks if block is not None), index)


def _identity(card: c.Card) -> Facts:
    limits = [
        f"slows down at {w.number(card.slowdown_c)} °C" if card.slowdown_c is not None else "",
        f"power cap {w.number(card.power_cap_w)} W" if card.power_cap_w is not None else "",
    ]
    rows = [
        ("Verdict", w.clean(card.title)),
        ("Chip", w.clean(card.arch or "")),
        ("Vendor", w.clean(card.vendor)),
        ("UUID", w.clean(card.uuid or "")),
        ("Driver", w.clean(card.driver or "")),
        ("VBIOS", w.clean(card.vbios or "")),
        ("Memory", w.bytes_text(card.memory_total_bytes) if card.memory_total_bytes is not None else ""),
        ("Limits", ", ".join(text for text in limits if text)),
        ("Kernel", f"{w.clean(card.kernel)}: {w.clean(card.kernel_reason)}" if card.kernel_reason else ""),
        ("ECC", _ecc(card.ecc)),
        ("ECC at t0", _baseline(card.ecc)),
        *(("Note", w.clean(note)) for note in card.notes),
        *(("Not offered", f"{w.clean(name)}: {w.clean(why)}") for name, why in card.not_offered.items()),
    ]
    return Facts(tuple((label, text) for label, text in rows if text))


def _ecc(ecc: c.Ecc) -> str:
    if not ecc.supported:
        return f"not available: {w.clean(ecc.reason)}"
    if ecc.since_t0 is None:
        return "not read yet"
    counted = ", ".join(f"{n:,} {w.clean(kind)}" for kind, n in ecc.since_t0.items())
    doubt = f"; in doubt: {w.clean(ecc.doubt)}" if ecc.doubt else ""
    return f"errors since t0: {counted}{doubt}"


def _baseline(ecc: c.Ecc) -> str:
    shown = [
        f"{w.clean(c.name)} {w.number(c.value) if c.value is not None else w.clean(c.reason)}"
        for c in ecc.baseline[:BASELINE_SHOWN]
    ]
    more = len(ecc.baseline) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _criteria(card: c.Card) -> Table:
    columns = (
        Column("criterion"),
        Column("state", "state"),
        Column("value", "short"),
        Column("limit", "short"),
        Column("because"),
    )
    rows = tuple(
        (
            w.clean(c.criterion),
            w.STATE_WORDS.get(c.state, w.clean(c.state)),
            w.clean(c.value_text),
            w.clean(c.limit_text),
            _because(c),
        )
        for c in card.criteria
    )
    return Table("Criteria", columns, rows)


def _because(c: c.Criterion) -> str:
    parts = [w.clean(c.reason)]
    if c.cause:
        parts.append(f"cause: {w.clean(c.cause)}")
    if c.first_violation_s is not None:
        parts.append(f"first at {w.clock(c.first_violation_s)} ({w.when(c.first_violation_utc, 0)})")
    if c.waived:
        parts.append("waived")
    if not c.required:
        parts.append("not required")
    return "; ".join(part for part in parts if part)


def _figures(card: c.Card) -> Facts:
    coverage, use, work, integrity = card.coverage, card.utilisation, card.throughput, card.integrity
    rows = [
        (
            "Observed",
            f"{coverage.observed_s:,.0f} of {coverage.elapsed_s:,.0f} s ({w.percent(coverage.share)}), "
            f"{coverage.n_polls:,} of {coverage.n_polls_due:,} polls, "
            f"{coverage.n_slots:,} of {coverage.n_slots_due:,} slots{_worst(coverage.worst)}",
        ),
        (
            "Busy",
            f"{w.percent(use.share_in_spec)} in spec: {use.in_spec_s:,.0f} s; bad {use.bad_s:,.0f} s, "
            f"without work behind it {use.suspect_s:,.0f} s, unobserved {use.unobserved_s:,.0f} s"
            f"{_worst(use.worst)}",
        ),
        ("Throttled", f"{use.throttled_s:,.0f} s for heat" if use.throttled_s else ""),
        ("Work", _work(work)),
        ("Drift", _drift(work, coverage.elapsed_s)),
        ("Compared", _compared(integrity)),
        ("Checked", f"{card.gradient.n_made} of {card.gradient.n_due} gradient checks"),
    ]
    return Facts(tuple((label, text) for label, text in rows if text))


def _worst(window: c.Window | None) -> str:
    if window is None or window.share >= 1:
        return ""
    return f"; worst window {w.clock(window.start_s)} to {w.clock(window.end_s)}: {w.percent(window.share)}"


def _work(work: c.Throughput) -> str:
    if work.tflops_mean is None:
        return "none recorded"
    return f"{w.reading(work.tflops_mean)} TFLOP/s on the whole, {work.n_steps:,} steps"


def _drift(work: c.Throughput, elapsed_s: float) -> str:
    if work.drift_pct is None or work.first_pct is None or work.last_pct is None:
        return ""
    part = "hour" if elapsed_s >= 7200 else "half"
    text = (
        f"first {part} {work.first_pct:.2f} %, last {work.last_pct:.2f} % of the run's own rate at like "
        f"shapes: {w.signed(work.drift_pct)}{_plus_minus(work.drift_error_pct)} %"
    )
    if work.per_kelvin_pct is not None:
        text += f"; {w.signed(work.per_kelvin_pct)}{_plus_minus(work.per_kelvin_error_pct)} % a kelvin"
    return text


def _plus_minus(half_width: float | None) -> str:
    return "" if half_width is None else f" ± {half_width:.2f}"


def _compared(integrity: c.Integrity) -> str:
    text = (
        f"{integrity.n_compared:,} of {integrity.n_due:,} comparisons due, in "
        f"{integrity.n_rotations_compared} of {integrity.n_rotations_due} rotations: "
        f"{integrity.n_mismatches:,} mismatches"
    )
    if integrity.n_unproved:
        text += f"; {integrity.n_unproved} gradient checks without the golden digest"
    if integrity.error_rate_below is not None:
        text += f", so the error rate is below {w.error(integrity.error_rate_below)} a comparison (95 %)"
    return text


def _readings(card: c.Card) -> Table | None:
    columns = (
        Column("reading"),
        Column("unit"),
        *(Column(name, "figure") for name in ("min", "mean", "max", "last", "polls")),
    )
    rows = []
    for spread in card.readings:
        unit, scale = SCALES.get(spread.unit, (spread.unit, 1.0))
        name = (
            spread.quantity.removesuffix("_" + spread.quantity.rsplit("_", 1)[-1])
            if unit
            else spread.quantity
        )
        values = (spread.min, spread.mean, spread.max, spread.last)
        judged = " (judged)" if spread.judged else ""
        rows.append(
            (
                w.clean(name.replace("_", " ")) + judged,
                unit,
                *(w.reading(value / scale) for value in values),
                f"{spread.n:,}",
            )
        )
    return Table("Readings", columns, tuple(rows)) if rows else None


def _gradient(card: c.Card) -> Table | None:
    columns = (
        Column("tensor"),
        *(Column(name, "figure") for name in ("max abs", "limit", "relative L2", "limit", "NaN, inf")),
        Column("within", "state"),
    )
    rows = tuple(
        (
            w.clean(f.tensor),
            w.error(f.max_abs),
            w.number(f.max_abs_limit),
            w.error(f.relative_l2),
            w.number(f.relative_l2_limit),
            f"{f.n_nonfinite:,}",
            _within(f.within),
        )
        for f in card.gradient.worst
    )
    return Table("Gradients against float64, largest of all checks", columns, rows) if rows else None


def _within(within: bool | None) -> str:
    return w.NOT_KNOWN if within is None else w.STATE_WORDS["pass" if within else "fail"]


def _rates(card: c.Card) -> Table | None:
    columns = (
        Column("seq_len"),
        Column("mask"),
        *(Column(name, "figure") for name in ("rotations", "min", "mean", "max")),
    )
    rows = tuple(
        (
            f"{b.seq_len_min} to {b.seq_len_max}" if b.seq_len_min < b.seq_len_max else str(b.seq_len_min),
            w.mask(b.causal),
            str(b.n_rotations),
            *(w.reading(rate) for rate in (b.tflops_min, b.tflops_mean, b.tflops_max)),
        )
        for b in card.throughput.bands
    )
    return Table("Work by shape, TFLOP/s", columns, rows) if rows else None


def _checks(card: c.Card) -> Table | None:
    columns = (
        *(Column(name, "figure") for name in ("attempt", "check", "at", "seq_len")),
        Column("mask"),
        Column("largest error: max abs, relative L2"),
        Column("seed", "figure"),
        Column("within", "state"),
    )
    rows = tuple(
        (
            str(c.attempt),
            str(c.index),
            w.clock(c.at_s),
            str(c.seq_len),
            w.mask(c.causal),
            ", ".join(
                f"{w.clean(t.tensor)} {w.error(t.max_abs)} {w.error(t.relative_l2)}" for t in c.tensors
            ),
            str(c.seed),
            _within(c.within),
        )
        for c in card.gradient.checks
    )
    return Table("Every gradient check", columns, rows, detail=True) if rows else None


def _rotations(card: c.Card) -> Table | None:
    columns = (
        *(Column(name, "figure") for name in ("attempt", "rotation", "at", "seq_len")),
        Column("mask"),
        *(Column(name, "figure") for name in ("steps", "TFLOP/s", "compared", "mismatches")),
        Column("golden digest"),
    )
    rows = tuple(
        (
            str(r.attempt),
            str(r.index),
            w.clock(r.start_s),
            str(r.seq_len),
            w.mask(r.causal),
            f"{r.n_steps:,}",
            w.number(r.tflops),
            w.number(r.n_compared),
            w.number(r.n_mismatches),
            w.clean(r.golden, 24),
        )
        for r in card.rotations
    )
    return Table("Every rotation", columns, rows, detail=True) if rows else None
