"""The runs of a database, newest first: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from soak.core.records import RunRecord
from soak.core.verdict import Judgement
from soak.report.as_json import strict
from soak.report.assemble import EXIT_CODES, state_of
from soak.report.wording import clean, clock, title, utc, when_short

Judged: TypeAlias = tuple[RunRecord, Judgement]
WIDTH = 240  # columns are as wide as they need to be; foreign text in them is cut
TEXT_SHOWN = 60


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run, as `soak runs --json` gives it. `planned_s` is None where no card was judged."""

    run_id: str
    created_utc: str | None
    ended_utc: str | None
    state: str
    verdict: str
    title: str
    exit_code: int
    simulated: bool
    profile: str
    kernel: str
    gpus: tuple[str, ...]
    n_attempts: int
    elapsed_s: float
    planned_s: float | None


def runs_text(found: Sequence[Judged], now_utc_ms: int | None = None) -> str:
    """A table; with `now_utc_ms` a run that is marked running and was not heard of is called silent."""
    lines = run_lines(found, now_utc_ms)
    if not lines:
        return "no runs yet\n"
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("run", "created, UTC", "state", "verdict"):
        table.add_column(name, no_wrap=True)
    for name in ("lasted", "of"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("profile", no_wrap=True)
    table.add_column("cards", no_wrap=True)
    for line in lines:
        cells = (
            line.run_id,
            when_short(line.created_utc),
            line.state,
            line.title,
            clock(line.elapsed_s),
            clock(line.planned_s),
            line.profile,
            line.gpus[0] if len(line.gpus) == 1 else f"{len(line.gpus)} cards",
        )
        table.add_row(*(Text(clean(cell, TEXT_SHOWN)) for cell in cells))
    out = StringIO()
    Console(file=out, width=WIDTH, color_system=None, legacy_windows=False, _environ={}).print(table)
    return "\n".join(row.rstrip() for row in out.getvalue().splitlines()) + "\n"


def runs_json(found: Sequence[Judged], now_utc_ms: int | None = None) -> str:
    """A JSON array of `RunLine`."""
    lines = [strict(line) for line in run_lines(found, now_utc_ms)]
    return json.dumps(lines, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def run_lines(found: Sequence[Judged], now_utc_ms: int | None = None) -> list[RunLine]:
    """Newest first."""
    newest = sorted(found, key=lambda judged: judged[0].info.created_utc_ms, reverse=True)
    return [_line(record, judgement, now_utc_ms) for record, judgement in newest]


def _line(record: RunRecord, judgement: Judgement, now_utc_ms: int | None) -> RunLine:
    info = record.info
    last = record.attempts[-1] if record.attempts else None
    continuity = [f for card in judgement.cards for f in card.findings if f.criterion == "continuity"]
    state, _ = state_of(record, 0 if now_utc_ms is None else now_utc_ms)
    return RunLine(
        run_id=info.run_id,
        created_utc=utc(info.created_utc_ms),
        ended_utc=utc(last.ended_utc_ms) if last else None,
        state=state,
        verdict=str(judgement.verdict),
        title=title(judgement, simulated=info.simulated),
        exit_code=EXIT_CODES[judgement.verdict],
        simulated=info.simulated,
        profile=info.profile,
        kernel=info.kernel,
        gpus=tuple(device.gpu for device in info.devices),
        n_attempts=len(record.attempts),
        elapsed_s=last.elapsed_ms / 1000 if last else 0.0,
        planned_s=continuity[0].threshold if continuity else None,
    )
