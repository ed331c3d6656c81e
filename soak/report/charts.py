"""A card's sample rows as inline SVG: means over the range of each slot, gaps where nothing was read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from soak.report.card_document import Card, Sample
from soak.report.document import Document
from soak.report.wording import clean, clock, duration

WIDTH, HEIGHT = 940, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 12, 28
MARKS_SHOWN = 100
TICKS_S = (10, 30, 60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True, slots=True)
class Point:
    slot: int
    at_s: float
    min: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Elapsed seconds and a quantity to places in the picture."""

    span_s: float
    low: float
    high: float

    def x(self, at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at_s / self.span_s, 0.0), 1.0)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(max(share, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Chart:
    """`band`: the range that is in spec; `lines`: limits, drawn dashed."""

    title: str
    unit: str
    quantities: tuple[str, ...]
    lines: tuple[float, ...] = ()
    band: tuple[float, float] | None = None
    floor: float | None = None
    ceiling: float | None = None


def charts(document: Document, card: Card) -> Iterator[str]:
    """The charts of one card's last attempt that have anything to show."""
    last = document.attempts[-1].number if document.attempts else None
    samples = [s for s in card.samples if s.attempt == last]
    span_s = max([document.run.elapsed_s, *(s.end_s for s in samples if s.closed), 1.0])
    marks = _marks(document, card, span_s, last)
    for chart in _wanted(document, card):
        drawn = _draw(chart, samples, span_s, marks)
        if drawn:
            yield drawn


def _wanted(document: Document, card: Card) -> tuple[Chart, ...]:
    limits = document.protocol.limits
    temperatures = tuple(r.quantity for r in card.readings if r.quantity.startswith("temperature"))
    judged = sorted(temperatures, key=lambda name: name != card.temperature_sensor)
    band: tuple[float, float] | None = None
    lines: tuple[float, ...] = ()
    if limits["temperature_kind"] == "band":
        target, inner, outer = (
            float(limits[f"temperature_{name}_c"]) for name in ("target", "band", "outer")
        )
        band, lines = (target - inner, target + inner), (target - outer, target + outer)
    elif card.slowdown_c is not None:
        lines = (card.slowdown_c - float(limits["temperature_margin_c"]),)
    minimum = float(limits["utilisation_min_pct"])
    return (
        Chart("Utilisation", "%", ("utilisation_pct",), lines=(minimum,), floor=0, ceiling=100),
        Chart("Temperature", "°C", tuple(judged), lines, band),
        Chart("Power", "W", ("power_w",), floor=0),
    )


def _draw(chart: Chart, samples: Sequence[Sample], span_s: float, marks: str) -> str:
    series = [(name, _points(samples, name)) for name in chart.quantities]
    series = [(name, points) for name, points in series if points]
    if not series:
        return ""
    scale = Scale(span_s, *_range(chart, [p for _, points in series for p in points]))
    label = escape(f"{chart.title} over elapsed time, {chart.unit}")
    body = [*_band(chart, scale), *_axes(scale), marks, *_limits(chart, scale)]
    body += [_series(points, scale, number) for number, (_, points) in enumerate(series)]
    names = (name.rsplit("_", 1)[0].replace("_", " ") for name, _ in series)
    legend = "".join(f'<span class="key s{i}">{escape(clean(n))}</span>' for i, n in enumerate(names))
    return (
        f"<figure><figcaption>{escape(chart.title)}, {escape(chart.unit)} {legend}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(body)}</svg></figure>'
    )


def _points(samples: Sequence[Sample], quantity: str) -> list[Point]:
    found = []
    for sample in samples:
        stats = sample.stats.get(quantity)
        if stats is not None and all(map(math.isfinite, (stats.min, stats.mean, stats.max))):
            middle_s = (sample.start_s + sample.end_s) / 2
            found.append(Point(sample.index, middle_s, stats.min, stats.mean, stats.max))
    return found


def _range(chart: Chart, points: Sequence[Point]) -> tuple[float, float]:
    values = [v for p in points for v in (p.min, p.max)] + list(chart.lines)
    low, high = min(values), max(values)
    room = max((high - low) * 0.06, 1e-9)
    low = low - room if chart.floor is None else min(chart.floor, low)
    high = high + room if chart.ceiling is None else max(chart.ceiling, high)
    return low, high if high > low else low + 1.0


def _series(points: Sequence[Point], scale: Scale, number: int) -> str:
    """Runs of neighbouring slots as a line of means over the area of their ranges; a lone slot as a dot."""
    drawn = []
    for run in _runs(points):
        means = " ".join(f"{scale.x(p.at_s):.1f},{scale.y(p.mean):.1f}" for p in run)
        upper = [f"{scale.x(p.at_s):.1f},{scale.y(p.max):.1f}" for p in run]
        lower = [f"{scale.x(p.at_s):.1f},{scale.y(p.min):.1f}" for p in reversed(run)]
        if len(run) == 1:
            x, y = means.split(",")
            drawn.append(f'<circle class="dot" cx="{x}" cy="{y}" r="2.5"/>')
        else:
            drawn.append(f'<polygon class="spread" points="{" ".join(upper + lower)}"/>')
            drawn.append(f'<polyline class="mean" points="{means}"/>')
    return f'<g class="s{number}">{"".join(drawn)}</g>'


def _runs(points: Sequence[Point]) -> Iterator[list[Point]]:
    run: list[Point] = []
    for point in points:
        if run and point.slot != run[-1].slot + 1:
            yield run
            run = []
        run.append(point)
    if run:
        yield run


def _axes(scale: Scale) -> Iterator[str]:
    bottom = HEIGHT - BOTTOM
    for value in _round_values(scale.low, scale.high):
        y = scale.y(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
    step = next((t for t in TICKS_S if scale.span_s / t <= 9), 86400 * math.ceil(scale.span_s / 86400 / 9))
    for k in range(int(scale.span_s // step) + 1):
        x = scale.x(k * step)
        label = duration(k * step) if k else "0"
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>'


def _round_values(low: float, high: float) -> Iterator[float]:
    """About five values at steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    for k in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield k * step


def _band(chart: Chart, scale: Scale) -> Iterator[str]:
    if chart.band is not None:
        top, bottom = scale.y(chart.band[1]), scale.y(chart.band[0])
        yield (
            f'<rect class="band" x="{LEFT}" width="{WIDTH - LEFT - RIGHT}" y="{top:.1f}" '
            f'height="{bottom - top:.1f}"/>'
        )


def _limits(chart: Chart, scale: Scale) -> Iterator[str]:
    for value in chart.lines:
        y = scale.y(value)
        yield f'<line class="limit" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _marks(document: Document, card: Card, span_s: float, attempt: int | None) -> str:
    """The incidents of this card and of the run as thin lines; a pointer shows what they were."""
    scale = Scale(span_s, 0, 1)
    own = [i for i in document.incidents if i.attempt == attempt and i.gpu in (card.gpu, None)]
    drawn = []
    for incident in own[:MARKS_SHOWN]:
        x = f"{scale.x(incident.at_s):.1f}"
        what = escape(clean(incident.kind.replace("_", " ")))
        drawn.append(
            f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
            f"<title>{clock(incident.at_s)} {what}</title></line>"
        )
    return "".join(drawn)
