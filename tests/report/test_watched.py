"""A report read back from its JSON is the report, and is shown as the run itself would be."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import pytest
from rich.console import Console

from soak.core.records import Verdict
from soak.report.as_json import as_json
from soak.report.document import Document
from soak.report.live import live_view, log_line
from soak.report.watched import NotAReport, document_from_json, snapshot_of


def test_what_was_written_is_read_back(document: Document) -> None:
    text = as_json(document)
    assert json.loads(as_json(document_from_json(text.encode()))) == json.loads(text)


def test_every_report_is_shown(document: Document) -> None:
    snapshot = snapshot_of(document_from_json(as_json(document).encode()))
    assert snapshot.verdict is Verdict(document.verdict.verdict)
    assert [card.device.gpu for card in snapshot.cards] == [card.gpu for card in document.cards]
    for card, line in zip(snapshot.cards, document.cards, strict=True):
        assert [(f.criterion, str(f.state)) for f in card.findings] == [
            (c.criterion, c.state) for c in line.criteria
        ]
        assert card.n_steps == line.throughput.n_steps
    console = Console(width=120, color_system=None, legacy_windows=False, _environ={})
    with console.capture() as capture:
        console.print(live_view(snapshot))
    for line in document.cards:
        assert line.gpu[:12] in capture.get()
    assert "\n" not in log_line(snapshot)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "truncated"),
        (b"<html>", "malformed"),
        (b"[]", "Expected"),
        (b'{"schema": "soak-report", "schema_version": 1}', "missing required field"),
        (b'{"schema": "weather", "schema_version": 1}', "it is weather 1"),
        (b'{"schema": "soak-report", "schema_version": 9}', "it is soak-report 9"),
    ],
)
def test_what_is_no_report_says_why(text: bytes, words: str) -> None:
    with pytest.raises(NotAReport, match=words):
        document_from_json(text)


def test_a_field_of_a_later_program_is_no_obstacle(documents: Mapping[str, Document]) -> None:
    text = json.loads(as_json(documents["healthy"]))
    text["mood"] = "good"
    assert document_from_json(json.dumps(text).encode()).run.run_id == documents["healthy"].run.run_id


def test_a_limit_that_json_can_only_name_is_a_number_again(documents: Mapping[str, Document]) -> None:
    text = json.loads(as_json(documents["healthy"]))
    text["protocol"]["limits"] |= {"throttle_max": "NaN", "coverage_min": "-Infinity"}
    read = document_from_json(json.dumps(text).encode())
    assert math.isnan(float(read.protocol.limits["throttle_max"]))
    assert read.protocol.limits["temperature_kind"] == "band"
    assert snapshot_of(read).protocol.limits.coverage_min == -math.inf
    assert json.loads(as_json(read)) == text
