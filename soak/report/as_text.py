"""The certificate on a terminal: 100 columns; plain, or with colour where the caller has a terminal."""

from __future__ import annotations

from io import StringIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from soak.report import sections as s
from soak.report.card_section import card_section
from soak.report.document import Document

WIDTH = 100
STYLES = {"pass": "green", "FAIL": "bold red", "unknown": "yellow"}
VERDICT_STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow"}


def as_text(document: Document, *, colour: bool = False) -> str:
    """The document as lines of at most 100 columns."""
    out = StringIO()
    console = Console(
        file=out,
        width=WIDTH,
        color_system="standard" if colour else None,
        force_terminal=colour,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
        _environ={},  # what this gives depends on nothing but the document
    )
    console.print(_head(document))
    cards = [card_section(document, index) for index in range(len(document.cards))]
    for section in (*s.opening(document), *cards, *s.closing(document)):
        console.print(_section(section))
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n")).rstrip("\n") + "\n"


def _head(document: Document) -> RenderableType:
    heading = s.heading(document)
    title = Text("soak certificate", "bold")
    run_id = Text(heading.run_id, "bold", justify="right")
    line = Table.grid(expand=True)
    line.add_column(width=len(title))
    line.add_column(justify="right", overflow="fold")
    line.add_row(title, run_id)
    verdict = Text(heading.title, VERDICT_STYLES.get(document.verdict.verdict, "bold"))
    reasons = [Text(reason) for reason in heading.reasons]
    body = Padding(Group(verdict, *reasons), (1, 0, 1, 2))
    return Group(Rule(characters="═", style=""), Padding(line, (0, 1)), Rule(characters="═", style=""), body)


def _section(section: s.Section) -> RenderableType:
    heading = Text(section.title, "bold")
    blocks = [_block(b) for b in section.blocks if not (isinstance(b, s.Table) and b.detail)]
    return Group(heading, Rule(characters="─", style="dim"), *blocks)


def _block(block: s.Block) -> RenderableType:
    if isinstance(block, s.Facts):
        return _facts(block)
    if isinstance(block, s.Table):
        return _table(block)
    return _lines(block)


def _facts(block: s.Facts) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=12, style="dim")
    grid.add_column(overflow="fold")
    for label, text in block.rows:
        grid.add_row(Text(label), Text(text))
    return Padding(grid, (0, 0, 1, 2))


def _table(block: s.Table) -> RenderableType:
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim", border_style="dim"
    )
    for column in block.columns:
        right = column.kind == "figure"
        table.add_column(Text(column.name), justify="right" if right else "left", overflow="fold")
    for row in block.rows:
        cells = zip(block.columns, row, strict=True)
        table.add_row(*(Text(c, STYLES.get(c, "") if column.kind == "state" else "") for column, c in cells))
    title = [Text(block.title, "bold")] if block.title else []
    return Padding(Group(*title, table), (0, 0, 1, 2))


def _lines(block: s.Lines) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    for item in block.items:
        grid.add_row(Text("·"), Text(item))
    title = [Text(block.title, "bold")] if block.title else []
    return Padding(Group(*title, grid), (0, 0, 1, 2))
