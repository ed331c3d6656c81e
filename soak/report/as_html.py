"""The certificate as one self-contained HTML file: no script, no request, printable, light and dark."""

from __future__ import annotations

from html import escape

from soak.report import sections as s
from soak.report.card_section import card_section
from soak.report.charts import charts
from soak.report.document import Document
from soak.report.html_style import STYLE

STATE_CLASSES = {"pass": "pass", "FAIL": "fail", "unknown": "unknown"}
# Nothing may be loaded or run, whatever a string in the report would like.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def as_html(document: Document) -> str:
    """A whole page."""
    heading = s.heading(document)
    title = escape(f"{heading.title} · soak {heading.run_id}")
    body = [_head(heading, document.verdict.verdict), *(_section(section) for section in s.opening(document))]
    body += [_card(document, index) for index in range(len(document.cards))]
    body += [_section(section) for section in s.closing(document)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def _head(heading: s.Heading, verdict: str) -> str:
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in heading.reasons)
    return (
        f'<header class="{escape(verdict)}">\n'
        f"<p>soak certificate <code>{escape(heading.run_id)}</code></p>\n"
        f"<h1>{escape(heading.title)}</h1>\n"
        f"<p>{escape(heading.state)}</p>\n" + (f"<ul>{reasons}</ul>\n" if reasons else "") + "</header>"
    )


def _section(section: s.Section) -> str:
    return "\n".join(
        ["<section>", f"<h2>{escape(section.title)}</h2>", *map(_block, section.blocks), "</section>"]
    )


def _card(document: Document, index: int) -> str:
    """The card's section, its charts between the criteria and the long tables."""
    section = card_section(document, index)
    plain = [_block(b) for b in section.blocks if not _is_detail(b)]
    details = [_block(b) for b in section.blocks if _is_detail(b)]
    parts = [*plain[:2], *charts(document, document.cards[index]), *plain[2:], *details]
    return "\n".join(["<section>", f"<h2>{escape(section.title)}</h2>", *parts, "</section>"])


def _is_detail(block: s.Block) -> bool:
    return isinstance(block, s.Table) and block.detail


def _block(block: s.Block) -> str:
    if isinstance(block, s.Facts):
        rows = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in block.rows)
        return f"<dl>{rows}</dl>"
    if isinstance(block, s.Table):
        return _table(block)
    title = f"<h3>{escape(block.title)}</h3>" if block.title else ""
    return f"{title}<ul>{''.join(f'<li>{escape(item)}</li>' for item in block.items)}</ul>"


def _table(block: s.Table) -> str:
    head = "".join(f"<th{_class(c.kind, '')}>{escape(c.name)}</th>" for c in block.columns)
    rows = "\n".join(
        "<tr>"
        + "".join(
            f"<td{_class(c.kind, text)}>{escape(text)}</td>"
            for c, text in zip(block.columns, row, strict=True)
        )
        + "</tr>"
        for row in block.rows
    )
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'
    if block.detail:
        return f"<details><summary>{escape(block.title)} ({len(block.rows):,})</summary>{table}</details>"
    return (f"<h3>{escape(block.title)}</h3>" if block.title else "") + table


def _class(kind: str, text: str) -> str:
    name = STATE_CLASSES.get(text, "") if kind == "state" else "" if kind == "text" else kind
    return f' class="{name}"' if name else ""
