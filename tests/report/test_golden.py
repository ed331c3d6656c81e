"""Reports as files: read the diff after SOAK_REGENERATE=1 before believing it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from rich.console import Console

from soak.core.snapshot import Snapshot
from soak.report.document import Document
from soak.report.live import live_view, log_line
from soak.report.render import render

Expect = Callable[[str, str], None]
SUFFIXES = {"text": "txt", "json": "json", "html": "html", "junit": "xml", "csv": "csv", "markdown": "md"}


def test_text(document: Document, scene_name: str, expect: Expect) -> None:
    expect(f"{scene_name}.txt", render(document, "text"))


def test_junit(document: Document, scene_name: str, expect: Expect) -> None:
    expect(f"{scene_name}.xml", render(document, "junit"))


@pytest.mark.parametrize(
    ("fmt", "scene"),
    [
        ("json", "failed"),
        ("json", "no_rows"),
        ("html", "failed"),
        ("html", "no_rows"),
        ("markdown", "failed"),
        ("markdown", "waived"),
        ("markdown", "eight_cards"),
        ("markdown", "hostile"),
        ("csv", "inconclusive"),
        ("csv", "simulated"),
    ],
)
def test_other_formats(fmt: str, scene: str, documents: Mapping[str, Document], expect: Expect) -> None:
    expect(f"{scene}.{SUFFIXES[fmt]}", render(documents[scene], fmt))


@pytest.mark.parametrize("width", [80, 120])
def test_live_view(width: int, snapshot: Snapshot, snapshot_name: str, expect: Expect) -> None:
    console = Console(width=width, color_system=None, legacy_windows=False, _environ={})
    with console.capture() as capture:
        console.print(live_view(snapshot))
    lines = [line.rstrip() for line in capture.get().split("\n")]
    expect(f"live_{snapshot_name}_{width}.txt", "\n".join(lines))


def test_log_line(snapshot: Snapshot, snapshot_name: str, expect: Expect) -> None:
    expect(f"log_{snapshot_name}.txt", log_line(snapshot) + "\n")
