"""A document as sections of facts, tables and lines: what text, Markdown and HTML have in common.

Foreign strings are cleaned here (one line, no control characters, not endless); each format still escapes
every string for its own syntax.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from soak.report import card_document as c
from soak.report import document as d
from soak.report import wording as w

REASONS_SHOWN = 12
INCIDENTS_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels and what there is to say of each."""

    rows: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Literal["text", "short", "figure", "state"] = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """`detail`: long, for formats that can fold it away; others leave it out."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    detail: bool = False


@dataclass(frozen=True, slots=True)
class Lines:
    title: str
    items: tuple[str, ...]


Block: TypeAlias = Facts | Table | Lines


@dataclass(frozen=True, slots=True)
class Section:
    """`card`: the index of the card whose section this is."""

    title: str
    blocks: tuple[Block, ...]
    card: int | None = None


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands above everything: the run, the verdict's words, how far the run is, and why."""

    run_id: str
    title: str
    state: str
    reasons: tuple[str, ...]


def heading(document: d.Document) -> Heading:
    """The top of the report; of many reasons the first."""
    summary = document.verdict
    reasons = tuple(map(w.clean, summary.reasons[:REASONS_SHOWN]))
    more = len(summary.reasons) - len(reasons)
    return Heading(
        run_id=w.clean(document.run.run_id),
        title=w.clean(summary.title),
        state=_state(document.run),
        reasons=(*reasons, f"and {more} more, below") if more else reasons,
    )


def opening(document: d.Document) -> tuple[Section, ...]:
    """What comes before the cards."""
    sections = [Section("Run", (_run(document),))]
    if len(document.cards) > 1:
        sections.append(Section("Cards", (_cards(document.cards),)))
    return tuple(sections)


def closing(document: d.Document) -> tuple[Section, ...]:
    """What comes after the cards: history, advice, and what the verdict does not say."""
    sections = []
    if _has_history(document.attempts):
        sections.append(Section("Attempts", (_attempts(document),)))
    sections.append(Section("Incidents", _incidents(document)))
    if document.advice:
        sections.append(Section("What may lie behind it, and what to do", tuple(_advice(document.advice))))
    what = "PASS" if document.verdict.verdict == "pass" else "verdict"
    sections.append(
        Section(f"What this {what} does not mean", (Lines("", tuple(map(w.clean, document.does_not_mean))),))
    )
    return tuple(sections)


def _state(run: d.Run) -> str:
    """`completed, 48:00:00 of 48:00:00`; a silent run says since when."""
    progress = f"{w.clock(run.elapsed_s)} of {w.clock(run.planned_s)}"
    if run.silent_s is not None:
        since = w.duration(run.silent_s)
        return f"silent for {since}: still marked running, probably killed; {progress}"
    return f"{w.clean(run.state)}, {progress}"


def _run(document: d.Document) -> Facts:
    run, plan, offset = document.run, document.protocol, document.utc_offset_min
    rows = [
        ("State", _state(run)),
        ("Started", w.when(run.started_utc, offset)),
        ("Ended", w.when(run.ended_utc, offset)),
        ("Profile", f"{w.clean(run.profile)} ({w.clean(run.profile_reason)})"),
        ("Kernel", w.clean(run.kernel)),
        (
            "Load",
            f"attention forward and backward, {w.clean(plan.dtype)}, {plan.heads} heads of {plan.head_dim}, "
            + (f"{plan.tokens:,} tokens a launch" if plan.tokens else "one sequence a launch"),
        ),
        (
            "Shapes",
            f"seq_len {plan.seq_len_min} to {plan.seq_len_max}, full or causal, new every "
            f"{w.duration(plan.rotate_every_s)}, seed {run.seed}",
        ),
        (
            "Watched",
            f"polls every {w.duration(plan.poll_every_s)}, samples every {w.duration(plan.sample_every_s)}, "
            f"gradient check every {w.duration(plan.check_every_s)}, "
            f"warm-up {w.duration(plan.warmup_s)}",
        ),
        ("Required", ", ".join(plan.required)),
        ("Waived", ", ".join(map(w.clean, document.verdict.waived))),
        ("Labels", _pairs(run.labels.items())),
        ("Versions", _pairs(run.versions.items())),
        ("Report", w.when(document.generated_utc, offset)),
    ]
    return Facts(tuple((label, text) for label, text in rows if text))


def _pairs(items: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{w.clean(key)} {w.clean(value)}" for key, value in items)


def _cards(cards: Sequence[c.Card]) -> Table:
    rows = tuple(
        (
            w.clean(card.gpu),
            w.clean(card.model or w.NOT_KNOWN),
            w.clean(card.title),
            ", ".join(
                c.criterion for c in card.criteria if c.required and c.state != "pass" and not c.waived
            ),
        )
        for card in cards
    )
    return Table(
        "", (Column("card"), Column("model"), Column("verdict"), Column("failed or not proven")), rows
    )


def _has_history(attempts: Sequence[d.AttemptLine]) -> bool:
    return len(attempts) > 1 or any(len(a.stretches) > 1 or a.end == "interrupted" for a in attempts)


def _attempts(document: d.Document) -> Table:
    columns = (
        Column("attempt", "figure"),
        Column("started, UTC"),
        Column("lasted", "figure"),
        Column("stretches", "figure"),
        Column("end"),
    )
    rows = tuple(
        (
            str(a.number),
            w.when_short(a.started_utc),
            w.clock(a.elapsed_s),
            str(len(a.stretches)),
            w.clean(f"{a.end}: {a.reason}" if a.reason else a.end),
        )
        for a in document.attempts
    )
    return Table("", columns, rows)


def _incidents(document: d.Document) -> tuple[Block, ...]:
    if not document.incidents:
        return (Lines("", ("none",)),)
    shown = document.incidents[:INCIDENTS_SHOWN]
    several = len(document.attempts) > 1
    rows = tuple(
        (
            f"{i.attempt}/{w.clock(i.at_s)}" if several else w.clock(i.at_s),
            w.when_short(i.at_utc),
            w.clean(i.gpu or "run"),
            _what_happened(i),
            f"{i.criterion} {w.STATE_WORDS.get(i.effect, i.effect)}" if i.criterion and i.effect else "",
        )
        for i in shown
    )
    columns = (Column("at", "figure"), Column("UTC"), Column("card"), Column("what"), Column("effect"))
    blocks: list[Block] = [Table("", columns, rows)]
    more = len(document.incidents) - len(shown)
    if more:
        blocks.append(Lines("", (f"and {more:,} more: the JSON report has them all",)))
    return tuple(blocks)


def _what_happened(incident: d.IncidentLine) -> str:
    kind = w.clean(incident.kind.replace("_", " "))
    told = [text for text in (w.clean(incident.meaning), w.clean(incident.detail)) if text]
    return f"{kind}: {'; '.join(told)}" if told else kind


def _advice(advice: Sequence[d.Advice]) -> Iterable[Lines]:
    for item in advice:
        where = f" ({', '.join(map(w.clean, item.gpus))})" if item.gpus else ""
        causes = tuple(f"may be: {w.clean(cause)}" for cause in item.causes)
        steps = tuple(f"next: {w.clean(step)}" for step in item.next_steps)
        yield Lines(f"{w.clean(item.about)}{where}", causes + steps)
