"""Results as text, JSON and JUnit."""

from __future__ import annotations

import json
from collections.abc import Callable
from xml.etree import ElementTree as Xml

import pytest

from soak.verify.messages import About, Figure, Order, Outcome, Result
from soak.verify.session import Verified
from soak.verify.show import as_counts, as_heading, as_json, as_junit, as_line

ABOUT = About("0000:33:00.0", "mi50", "written for gfx906", "float16", {"torch": "2.13.0"})
NAN = Figure("dq L2", float("nan"), limit=2e-3)
RESULTS = (
    Result("numerics", "largest-full", Outcome.OK, "", (Figure("o L2", 2e-4, limit=1e-3),), 1.0),
    Result("gradient", "seed-1-full", Outcome.FAIL, "dq differs", (NAN,), 2.0),
    Result("memory", "many-shapes", Outcome.SKIP, "the memory of an interpreter is Python's", (), 0.0),
    Result("integrity", "flip-o", Outcome.ERROR, "died by signal 9", (), 0.0),
)  # fmt: skip


@pytest.fixture
def verified(order: Callable[..., Order]) -> Verified:
    return Verified(order(gpu="0000:33:00.0", engine="gpu", kernel="mi50", seed=9), ABOUT, RESULTS)


def test_a_line_has_the_figures_and_how_to_make_it_again(verified: Verified) -> None:
    lines = [as_line(verified.order, result, "mi50") for result in RESULTS]
    assert " ".join(lines[0].split()) == "ok numerics/largest-full 1.0 s o L2 0.0002 (of 0.001)"
    assert "FAIL  gradient/seed-1-full" in lines[1]
    assert "dq L2 nan (of 0.002)" in lines[1]
    again = "soak verify gradient --device 0000:33:00.0 --kernel mi50 --seed 9 --case seed-1-full"
    assert lines[1].endswith(again)
    assert "Python's" in lines[2]
    assert as_counts([verified], 3.0) == "1 ok, 1 FAIL, 1 error, 1 skip; 3.0 s"
    assert as_counts([], 0.0) == "nothing was made; 0.0 s"


def test_a_planted_fault_is_said_everywhere(order: Callable[..., Order]) -> None:
    planted = Verified(order(plant="scale"), ABOUT, RESULTS)
    assert "PLANTED FAULT: scale" in as_heading(planted.order, ABOUT)
    assert "--plant scale" in as_line(planted.order, RESULTS[1], "mi50")
    assert json.loads(as_json([planted], 1.0))["subjects"][0]["planted"] == "scale"
    assert '<property name="planted" value="scale" />' in as_junit([planted], 1.0)


def test_json_is_strict_and_whole(verified: Verified) -> None:
    document = json.loads(as_json([verified], 3.0), parse_constant=pytest.fail)
    assert document["exit_code"] == 1
    (subject,) = document["subjects"]
    assert subject["kernel"] == "mi50"
    assert [case["outcome"] for case in subject["cases"]] == ["ok", "FAIL", "skip", "error"]
    assert subject["cases"][1]["figures"][0]["value"] == "NaN"
    assert subject["cases"][1]["again"].startswith("soak verify gradient")


def test_junit_counts_are_right(verified: Verified) -> None:
    root = Xml.fromstring(as_junit([verified], 3.0))
    assert {key: root.attrib[key] for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
    }
    (failure,) = root.findall(".//failure")
    assert "--case seed-1-full" in (failure.text or "")


def test_junit_is_red_where_nothing_could_begin(order: Callable[..., Order]) -> None:
    refused = Verified(order(), None, (), "Triton is not installed")
    for suites in ([refused], []):
        assert Xml.fromstring(as_junit(suites, 0.0)).attrib["errors"] == "1"
