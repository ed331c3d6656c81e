"""The page at /: the run at this instant, for people; without JavaScript, and without asking anybody else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from soak.core.records import Finding, Quantity, ReadingStatus, Verdict
from soak.core.snapshot import CardSnapshot, Snapshot
from soak.core.verdict import CardJudgement, judgement
from soak.web.health import is_over, is_ready
from soak.web.style import STYLE

REFRESH_S = 5
DASH = "–"
NBSP = "\u00a0"  # a figure and its unit stay together


def page(snapshot: Snapshot | None, trouble: str) -> str:
    """The whole page; it renews itself. `trouble`: what keeps the daemon from making progress, or ""."""
    title = _title(snapshot)
    warning = [f'<p class="trouble">{escape(trouble)}</p>'] if trouble else []
    body = [f'<h1 class="{_class(snapshot)}">{escape(title)}</h1>', *warning]
    if snapshot is not None:
        body += [*_run(snapshot), *_cards(snapshot), *_criteria(snapshot), *_incidents(snapshot)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><title>soak: {escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><main>\n" + "\n".join(body) + "\n<footer>"
        '<a href="/run.json">run.json</a> · <a href="/metrics">metrics</a> · <a href="/healthz">healthz</a>'
        "</footer></main></body></html>\n"
    )


def _title(snapshot: Snapshot | None) -> str:
    if snapshot is None:
        return "starting"
    cards = [CardJudgement(card.device, card.verdict, card.findings) for card in snapshot.cards]
    words = judgement(cards, complete=is_over(snapshot)).words
    if not is_over(snapshot):
        words = f"{words} so far" if is_ready(snapshot) else "starting"
    return f"SIMULATED: {words}" if snapshot.info.simulated else words


def _class(snapshot: Snapshot | None) -> Verdict:
    return Verdict.INCONCLUSIVE if snapshot is None else snapshot.verdict


def _run(snapshot: Snapshot) -> Iterator[str]:
    info, shape = snapshot.info, snapshot.shape
    total_ms, elapsed_ms = snapshot.protocol.duration_ms, snapshot.elapsed_ms
    yield f'<progress max="{total_ms}" value="{elapsed_ms}">{elapsed_ms / total_ms:.1%}</progress>'
    how_far = f"{_clock(elapsed_ms)} of {_clock(total_ms)} ({elapsed_ms / total_ms:.1%})"
    if snapshot.state == "running":
        end = datetime.fromtimestamp((snapshot.utc_ms + total_ms - elapsed_ms) / 1000, UTC)
        how_far += f", ends {end:%Y-%m-%d %H:%M} UTC"
    facts = [
        ("run", f"{info.run_id}, attempt {snapshot.attempt.number}"),
        ("state", f"{snapshot.state}, {how_far}"),
        ("profile", f"{info.profile}; kernel {info.kernel}; seed {info.seed}"),
    ]
    if shape is not None:
        mask = "causal" if shape.causal else "full"
        facts.append(("shape", f"rotation {shape.index}: seq_len {shape.seq_len}, {mask} mask"))
    if info.labels:
        facts.append(("labels", ", ".join(f"{key}={value}" for key, value in info.labels.items())))
    if snapshot.rows_waiting:
        facts.append(("store", f"{snapshot.rows_waiting:,} rows wait for it"))
    if snapshot.message:
        facts.append(("now", snapshot.message))
    stamp = datetime.fromtimestamp(snapshot.utc_ms / 1000, UTC)
    facts.append(("as of", f"{stamp:%Y-%m-%d %H:%M:%S} UTC"))
    yield "<dl>" + "".join(f"<dt>{name}</dt><dd>{escape(words)}</dd>" for name, words in facts) + "</dl>"


def _cards(snapshot: Snapshot) -> Iterator[str]:
    head = ("card", "verdict", "busy", "temperature", "power", "memory free", "steps", "ECC", "compared")
    rows = [(str(card.verdict), _card(card)) for card in snapshot.cards]
    yield _table("Cards", head, rows)


def _card(card: CardSnapshot) -> list[str]:
    name = f"{card.device.gpu} {card.device.model or ''}".strip()
    if not card.up:
        return [name, card.verdict.upper(), "gone", *[DASH] * 6]
    sensor = card.device.temperature_sensor
    free, total = _value(card, Quantity.MEMORY_FREE_BYTES), _value(card, Quantity.MEMORY_TOTAL_BYTES)
    compared = f"{card.n_mismatches:,} of {card.n_compared:,} differ"
    return [
        name,
        card.verdict.upper(),
        _with(_value(card, Quantity.UTILISATION_PCT), "%"),
        _with(_value(card, sensor) if sensor else None, "°C"),
        _with(_value(card, Quantity.POWER_W), "W"),
        DASH if free is None or total is None else f"{free / 2**30:.1f} of {total / 2**30:.1f}{NBSP}GiB",
        f"{card.n_steps:,}",
        DASH if card.ecc is None else f"{sum(card.ecc.values()):,}",
        compared if card.n_mismatches else f"{card.n_compared:,}",
    ]


def _value(card: CardSnapshot, quantity: Quantity) -> float | None:
    reading = None if card.poll is None else card.poll.readings.get(quantity)
    return reading.value if reading is not None and reading.status is ReadingStatus.OK else None


def _with(value: float | None, unit: str) -> str:
    return DASH if value is None else f"{value:.0f}{NBSP}{unit}"


def _criteria(snapshot: Snapshot) -> Iterator[str]:
    found = [(card.device.gpu, f) for card in snapshot.cards for f in card.findings]
    if found:
        head = ("card", "criterion", "state", "because")
        yield _table("Criteria", head, [(str(f.state), _finding(gpu, f)) for gpu, f in found])


def _finding(gpu: str, found: Finding) -> list[str]:
    name = found.criterion if found.required else f"{found.criterion} (not required)"
    cause = f" ({found.cause})" if found.cause is not None else ""
    return [gpu, name, "waived" if found.waived else f"{found.state}{cause}", found.reason]


def _incidents(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.incidents:
        total = sum(snapshot.n_incidents.values())
        rows = [
            ("", [_clock(i.at_ms), i.gpu or "", i.kind.replace("_", " "), i.detail])
            for i in reversed(snapshot.incidents)
        ]
        yield _table(f"Incidents, the last of {total:,}", ("at", "card", "what", "detail"), rows)


def _table(caption: str, head: tuple[str, ...], rows: list[tuple[str, list[str]]]) -> str:
    """Each row with the class that gives it its colour."""
    heads = "".join(f"<th>{name}</th>" for name in head)
    lines = [
        f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for kind, cells in rows
    ]
    return (
        f'<h2>{escape(caption)}</h2><div class="wide"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _clock(ms: int) -> str:
    minutes, seconds = divmod(ms // 1000, 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
