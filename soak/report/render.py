"""A document in the format that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from soak.core.errors import ConfigError
from soak.report.as_csv import as_csv
from soak.report.as_html import as_html
from soak.report.as_json import as_json
from soak.report.as_junit import as_junit
from soak.report.as_markdown import as_markdown
from soak.report.as_text import as_text
from soak.report.document import Document

FORMATS: Mapping[str, Callable[[Document], str]] = {
    "text": as_text,
    "json": as_json,
    "html": as_html,
    "junit": as_junit,
    "csv": as_csv,
    "markdown": as_markdown,
}


def render(document: Document, fmt: str) -> str:
    """The document as text in the format `fmt`; raises ConfigError where there is no such format."""
    check_format(fmt)
    return FORMATS[fmt](document)


def check_format(fmt: str) -> None:
    """Raises ConfigError, naming the legal formats, before any work is done for an unknown one."""
    if fmt not in FORMATS:
        raise ConfigError(f"--format {fmt!r} is not known; use one of {', '.join(FORMATS)}")
