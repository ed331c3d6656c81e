"""`soak runs`: the table and its JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from soak.report.runs import runs_json, runs_text


def test_the_table(judged: Mapping[str, tuple], expect: Callable[[str, str], None]) -> None:
    found = [judged[name] for name in ("healthy", "failed", "waived", "eight_cards", "killed", "never_begun")]
    expect("runs.txt", runs_text(found, now_utc_ms=1_795_200_000_000))
    expect("runs.json", runs_json(found, now_utc_ms=1_795_200_000_000))


def test_newest_first(judged: Mapping[str, tuple], aged: Callable[[tuple, int], tuple]) -> None:
    found = [aged(judged["healthy"], age) for age in (5, 1, 3)]
    ages = [line["run_id"] for line in json.loads(runs_json(found))]
    assert ages == ["aged-1", "aged-3", "aged-5"]


def test_without_a_now_nothing_is_called_silent(judged: Mapping[str, tuple]) -> None:
    (line,) = json.loads(runs_json([judged["killed"]]))
    assert line["state"] == "running"


def test_no_runs() -> None:
    assert runs_text([]) == "no runs yet\n"
    assert json.loads(runs_json([])) == []


def test_hostile_names_keep_to_their_line(judged: Mapping[str, tuple]) -> None:
    text = runs_text([judged["hostile"]])
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text
    json.loads(runs_json([judged["hostile"]]))
