"""The certificate as GitHub-flavoured Markdown, for an issue, a wiki or a pull request."""

from __future__ import annotations

import re

from soak.report import sections as s
from soak.report.card_section import card_section
from soak.report.document import Document

# What may stand in Markdown as it is: nothing here can start emphasis, a link, a mention, a list or HTML.
PLAIN = re.compile(r"[\w ,;:.'%°±≥≤→·()/+–…-]*")
ACTIVE = re.compile(r"//|www\.|(?<!\w)_|_(?!\w)|^\d+[.)]( |$)|^[-+ ]", re.IGNORECASE)


def as_markdown(document: Document) -> str:
    """The document with its verdict as the title."""
    heading = s.heading(document)
    parts = [f"# {inline(heading.title)}", f"soak certificate, run {inline(heading.run_id)}"]
    if heading.reasons:
        parts.append("\n".join(f"- {inline(reason)}" for reason in heading.reasons))
    cards = [card_section(document, index) for index in range(len(document.cards))]
    for section in (*s.opening(document), *cards, *s.closing(document)):
        parts.append(f"## {inline(section.title)}")
        parts += [_block(b) for b in section.blocks if not (isinstance(b, s.Table) and b.detail)]
    return "\n\n".join(parts) + "\n"


def _block(block: s.Block) -> str:
    if isinstance(block, s.Facts):
        return "\n".join(f"- **{label}**: {inline(text)}" for label, text in block.rows)
    if isinstance(block, s.Table):
        return _table(block)
    items = "\n".join(f"- {inline(item)}" for item in block.items)
    return f"### {inline(block.title)}\n\n{items}" if block.title else items


def _table(block: s.Table) -> str:
    rows = [
        [c.name for c in block.columns],
        ["---:" if c.kind == "figure" else "---" for c in block.columns],
        *([_cell(c, text) for c, text in zip(block.columns, row, strict=True)] for row in block.rows),
    ]
    title = [f"### {inline(block.title)}\n"] if block.title else []
    return "\n".join([*title, *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(column: s.Column, text: str) -> str:
    if column.kind == "state" and text == "FAIL":
        return f"**{text}**"
    sign = text[:2] if text[:2] in ("< ", "> ") else ""  # means nothing inside a cell
    return sign + inline(text.removeprefix(sign).replace("|", "¦"))  # a bar ends a cell, even escaped


def inline(text: str) -> str:
    """A text that Markdown will show as it is: plain where that is safe, else as a code span, in which only
    backticks mean anything."""
    if PLAIN.fullmatch(text) and not ACTIVE.search(text):
        return text
    fence = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    padding = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{padding}{text}{padding}{fence}"
