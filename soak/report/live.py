"""The live view of a run: a snapshot as a Rich renderable, and as one log line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from soak.core.records import Finding, Quantity, ReadingStatus, State, Verdict
from soak.core.snapshot import CardSnapshot, Snapshot
from soak.core.verdict import CardJudgement, judgement
from soak.report import wording as w

WIDE = 110  # columns; narrower views leave out what matters less
INCIDENTS_SHOWN = 3
CARDS_IN_LINE = 8
STALE_MS = 5_000  # a reading this old is shown with its age
RANK = {State.FAIL: 0, State.UNKNOWN: 1, State.PASS: 2}
MARKS = {State.FAIL: ("✗", "bold red"), State.UNKNOWN: ("?", "yellow"), State.PASS: ("✓", "green")}
VERDICT_STYLES = {Verdict.PASS: "bold green", Verdict.FAIL: "bold red", Verdict.INCONCLUSIVE: "bold yellow"}


def live_view(snapshot: Snapshot) -> RenderableType:
    """The run at this instant; fits itself to the width that it is given, from 80 columns."""
    return _View(snapshot)


def log_line(snapshot: Snapshot) -> str:
    """The run at this instant in one line, for logs: how far, which shape, the verdict, each card."""
    cards = [_card_words(card) for card in snapshot.cards[:CARDS_IN_LINE]]
    more = len(snapshot.cards) - len(cards)
    parts = [_progress_words(snapshot), *_shape_words(snapshot), _verdict_words(snapshot), *cards]
    if more > 0:
        parts.append(f"and {more} more cards")
    return "; ".join(parts)


class _View:
    """Laid out when it is drawn: only then is the width known."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        snapshot, wide = self._snapshot, options.max_width >= WIDE
        yield Text(_verdict_words(snapshot), VERDICT_STYLES[snapshot.verdict])
        yield Text(_run_words(snapshot), "dim", no_wrap=True, overflow="ellipsis")
        yield _progress(snapshot, options.max_width)
        now = [*_shape_words(snapshot), *_next_words(snapshot)]
        if now:
            yield Text(" · ".join(now), no_wrap=True, overflow="ellipsis")
        if snapshot.message:
            yield Text(w.clean(snapshot.message), "yellow")
        if snapshot.rows_waiting:
            yield Text(f"{snapshot.rows_waiting:,} rows wait for the store", "yellow")
        yield Text("")
        yield _cards(snapshot, wide)
        if any(card.findings for card in snapshot.cards):
            yield Text("")
            yield _criteria(snapshot, wide)
        if snapshot.incidents:
            yield Text("")
            yield Group(*_incidents(snapshot))


def _run_words(snapshot: Snapshot) -> str:
    info = snapshot.info
    run_id, profile, kernel = w.clean(info.run_id, 48), w.clean(info.profile, 24), w.clean(info.kernel, 32)
    return (
        f"run {run_id} · attempt {snapshot.attempt.number} · profile {profile} · {kernel} · seed {info.seed}"
    )


def _verdict_words(snapshot: Snapshot) -> str:
    """The verdict so far; with what is still to be proven, since a healthy run has something to the end."""
    cards = [CardJudgement(card.device, card.verdict, card.findings) for card in snapshot.cards]
    words = w.clean(w.title(judgement(cards, complete=False), simulated=snapshot.info.simulated))
    if snapshot.verdict is not Verdict.INCONCLUSIVE or snapshot.state != "running":
        return words
    unknown = [f for card in snapshot.cards for f in card.findings if f.required and f.state is State.UNKNOWN]
    names = dict.fromkeys(f.criterion for f in unknown if not f.waived)
    return f"{words} so far; not proven yet: {w.clean(', '.join(names))}" if names else f"{words} so far"


def _progress(snapshot: Snapshot, width: int) -> RenderableType:
    row = Table.grid(expand=True, padding=(0, 1))
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True)
    total = max(snapshot.protocol.duration_ms, 1)
    bar = ProgressBar(total=total, completed=min(snapshot.elapsed_ms, total), width=None)
    words = _progress_words(snapshot)
    if snapshot.state == "running" and width >= WIDE:
        end_ms = snapshot.utc_ms + total - snapshot.elapsed_ms
        words += f", ends {w.when_short(w.utc(end_ms))} UTC"
    row.add_row(bar, Text(words))
    return row


def _progress_words(snapshot: Snapshot) -> str:
    total_s, elapsed_s = snapshot.protocol.duration_ms / 1000, snapshot.elapsed_ms / 1000
    share = w.percent(elapsed_s / total_s if total_s else None)
    words = f"{w.clock(elapsed_s)} of {w.clock(total_s)} ({share})"
    if snapshot.state != "running":
        return f"{w.clean(snapshot.state)}, {words}"
    return f"{words}, {w.clock(max(total_s - elapsed_s, 0))} to go"


def _shape_words(snapshot: Snapshot) -> list[str]:
    shape = snapshot.shape
    return [f"rotation {shape.index}: seq_len {shape.seq_len} {w.mask(shape.causal)}"] if shape else []


def _next_words(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.state == "running":
        plan = snapshot.protocol
        for what, every_ms in (("next", plan.rotate_ms), ("gradient check", plan.check_ms)):
            if every_ms <= 0:  # a stranger's report may say so
                continue
            due_ms = (snapshot.elapsed_ms // every_ms + 1) * every_ms
            if due_ms < plan.duration_ms:
                yield f"{what} in {_minutes(due_ms - snapshot.elapsed_ms)}"


def _minutes(ms: int) -> str:
    return w.clock(ms / 1000).removeprefix("00:")


def _cards(snapshot: Snapshot, wide: bool) -> RenderableType:
    table = _table("card", "verdict", ">util", ">temp", ">power", ">free", ">steps")
    for name in ("TFLOP/s", "ECC", "compared", "gradients") if wide else ():
        table.add_column(name, justify="right", no_wrap=True)
    for card in snapshot.cards:
        verdict = Text(str(card.verdict).upper(), VERDICT_STYLES[card.verdict])
        cells = [w.clean(card.device.gpu, 16), verdict, *_readings(snapshot, card), f"{card.n_steps:,}"]
        if wide:
            cells += [_rate(card, snapshot.elapsed_ms), _ecc(card), _compared(card), _check(card)]
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def _table(*names: str) -> Table:
    """A table with these columns; `>` in front of a name sets its column to the right."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim"
    )
    for name in names:
        side = "right" if name.startswith(">") else "left"
        table.add_column(name.removeprefix(">"), justify=side, no_wrap=True)  # type: ignore[arg-type]  # str
    return table


def _readings(snapshot: Snapshot, card: CardSnapshot) -> list[str | Text]:
    """Utilisation, judged temperature, power and free memory; what is not known is a dash."""
    if not card.up:
        return [Text("gone", "bold red"), w.NOT_KNOWN, w.NOT_KNOWN, w.NOT_KNOWN]
    sensor = card.device.temperature_sensor
    free = _value(card, Quantity.MEMORY_FREE_BYTES)
    cells: list[str | Text] = [
        _with_unit(_value(card, Quantity.UTILISATION_PCT), "%"),
        _with_unit(_value(card, sensor) if sensor else None, "°C"),
        _with_unit(_value(card, Quantity.POWER_W), "W"),
        w.bytes_text(free),
    ]
    age_ms = 0 if card.poll_utc_ms is None else snapshot.utc_ms - card.poll_utc_ms
    if age_ms > max(STALE_MS, 3 * snapshot.protocol.poll_ms):
        cells[0] = Text(f"{w.duration(age_ms // 1000)} old", "yellow")
    return cells


def _value(card: CardSnapshot, quantity: Quantity) -> float | None:
    reading = card.poll.readings.get(quantity) if card.poll is not None else None
    return reading.value if reading is not None and reading.status is ReadingStatus.OK else None


def _with_unit(value: float | None, unit: str) -> str:
    return w.NOT_KNOWN if value is None else f"{w.decimal(value)} {unit}"


def _rate(card: CardSnapshot, elapsed_ms: int) -> str:
    return w.reading(card.flops / elapsed_ms / 1e9) if elapsed_ms > 0 and card.flops else w.NOT_KNOWN


def _ecc(card: CardSnapshot) -> str | Text:
    if card.ecc is None:
        return w.NOT_KNOWN
    n = sum(card.ecc.values())
    return Text(f"{n:,}", "bold red") if n else "0"


def _compared(card: CardSnapshot) -> str | Text:
    if card.n_mismatches:
        return Text(f"{card.n_mismatches:,} of {card.n_compared:,} differ", "bold red")
    return f"{card.n_compared:,}"


def _check(card: CardSnapshot) -> str:
    made = ", ".join(f"{n} {result}" for result, n in card.n_checks.items() if n)
    return made or w.NOT_KNOWN


def _criteria(snapshot: Snapshot, wide: bool) -> RenderableType:
    """A row per criterion: the state of every card, and value and limit of the one that is worst off."""
    several = len(snapshot.cards) > 1
    table = _table("criterion", "state", "value", "limit")
    if wide:
        table.expand = True
        table.add_column("because", overflow="ellipsis", no_wrap=True, ratio=1)
    for findings in _by_criterion(snapshot.cards):
        worst = min(findings, key=lambda f: RANK[f.state])
        states = Text.assemble(*(MARKS[f.state] for f in findings)) if several else _state(worst)
        row = [
            Text(w.clean(worst.criterion, 16) + ("" if worst.required else " (not required)")),
            states,
            Text(w.clean(w.value_text(worst.criterion, worst.value, worst.unit), 40)),
            Text(w.limit_text(worst.criterion, worst.threshold, snapshot.protocol.limits)),
        ]
        if wide:
            row.append(Text(_because(worst, several)))
        table.add_row(*row)
    return table


def _by_criterion(cards: Sequence[CardSnapshot]) -> Iterator[list[Finding]]:
    names = dict.fromkeys(f.criterion for card in cards for f in card.findings)
    for name in names:
        yield [f for card in cards for f in card.findings if f.criterion == name]


def _state(found: Finding) -> Text:
    mark, style = MARKS[found.state]
    word = "waived" if found.waived else w.STATE_WORDS[str(found.state)]
    return Text(f"{mark} {word}", style)


def _because(found: Finding, several: bool) -> str:
    where = f"{w.clean(found.gpu, 16)}: " if several and found.state is not State.PASS else ""
    return where + w.clean(found.reason, 120)


def _incidents(snapshot: Snapshot) -> Iterator[Text]:
    total = sum(snapshot.n_incidents.values())
    yield Text(f"incidents, the last of {total:,}" if total else "incidents", "dim")
    for incident in reversed(snapshot.incidents[-INCIDENTS_SHOWN:]):
        where = f"{w.clean(incident.gpu, 16)} " if incident.gpu else ""
        detail = f": {w.clean(incident.detail, 120)}" if incident.detail else ""
        line = (
            f"{w.clock(incident.at_ms / 1000)} {where}{w.clean(incident.kind.replace('_', ' '), 40)}{detail}"
        )
        yield Text(line, no_wrap=True, overflow="ellipsis")


def _card_words(card: CardSnapshot) -> str:
    name = w.clean(card.device.gpu, 16)
    if not card.up:
        return f"{name} is gone"
    sensor = card.device.temperature_sensor
    readings = (
        _with_unit(_value(card, Quantity.UTILISATION_PCT), "%"),
        _with_unit(_value(card, sensor) if sensor else None, "°C"),
    )
    known = [text for text in readings if text != w.NOT_KNOWN]
    return f"{name} {', '.join([*known, f'{card.n_steps:,} steps'])}"
