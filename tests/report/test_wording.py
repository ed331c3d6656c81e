"""The words and figures that every format shares."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.protocol import Limits
from soak.core.records import Cause, Finding, State
from soak.report import wording as w

LIMITS = Limits(required=frozenset())


def failed(criterion: str, cause: Cause | None) -> Finding:
    return Finding("g", criterion, True, State.FAIL, cause=cause)


def test_a_fail_names_criteria_by_cause() -> None:
    findings = [
        failed("ecc", Cause.HARDWARE),
        failed("temperature", Cause.ENVIRONMENT),
        failed("faults", Cause.HARDWARE),
        failed("ecc", Cause.HARDWARE),
        Finding("g", "coverage", True, State.PASS),
    ]
    assert w.fail_words(findings) == "FAIL (hardware): ecc, faults; (environment): temperature"
    assert w.fail_words([failed("ecc", None)]) == "FAIL: ecc"


@pytest.mark.parametrize(
    ("criterion", "value", "unit", "text"),
    [
        ("utilisation", 0.98, "of the time", "98 % of the time"),
        ("utilisation", 0.979999, "of the time", "97.99 % of the time"),  # never rounded up to its limit
        ("coverage", 1.0, "of the time", "100 % of the time"),
        ("gradient", math.inf, "of the limit, largest error", "inf of the limit"),
        ("ecc", 1.0, "errors since t0", "1 error since t0"),
        ("ecc", 0.0, "errors since t0", "0 errors since t0"),
        ("integrity", 12345.0, "mismatches", "12,345 mismatches"),
        ("temperature", 74.26, "°C, worst slot", "74.3 °C, worst slot"),
        ("continuity", 172_799.9, "s", "47:59:59"),
        ("ecc", None, "errors since t0", "–"),
    ],
)
def test_values(criterion: str, value: float | None, unit: str, text: str) -> None:
    assert w.value_text(criterion, value, unit) == text


@pytest.mark.parametrize(
    ("criterion", "threshold", "text"),
    [
        ("utilisation", 0.98, "> 98 %"),
        ("coverage", 0.99, "≥ 99 %"),
        ("temperature", 72.0, "72 ± 3 °C"),
        ("gradient", 1.0, "< 100 %"),
        ("ecc", 0.0, "0"),
        ("continuity", 172_800.0, "48:00:00"),
        ("temperature", None, "–"),
    ],
)
def test_limits(criterion: str, threshold: float | None, text: str) -> None:
    assert w.limit_text(criterion, threshold, LIMITS) == text


def test_a_margin_is_an_upper_limit() -> None:
    assert w.limit_text("temperature", 79.0, Limits(frozenset(), temperature_kind="margin")) == "≤ 79 °C"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (172_800, "48 h"),
        (5400, "1 h 30 min"),
        (120, "2 min"),
        (90, "1 min 30 s"),
        (0.5, "0.5 s"),
        (None, "–"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert w.duration(seconds) == text


def test_stamps() -> None:
    stamp = w.utc(1_795_000_000_123)
    assert stamp == "2026-11-18T11:06:40.123Z"
    assert w.when(stamp, 0) == "2026-11-18 11:06:40 UTC"
    assert w.when(stamp, 330) == "2026-11-18 11:06:40 UTC (16:36:40 +05:30)"
    assert w.when(stamp, 840) == "2026-11-18 11:06:40 UTC (2026-11-19 01:06:40 +14:00)"
    assert w.when(stamp, -210) == "2026-11-18 11:06:40 UTC (07:36:40 -03:30)"


@pytest.mark.parametrize("ms", [None, -1, 2**63, 253_402_300_800_000])
def test_what_is_no_date_is_none(ms: int | None) -> None:
    assert w.utc(ms) is None
    assert w.when(w.utc(ms), 60) == "–"


@given(st.text())
def test_cleaned_text_is_one_harmless_line(text: str) -> None:
    cleaned = w.clean(text)
    cleaned.encode("utf-8")
    assert cleaned.isprintable() or "\u200d" in cleaned or any(c.isspace() for c in cleaned)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in cleaned)
    assert len(cleaned) <= 10 * w.LONGEST + 40


def test_cleaning_shows_what_it_took_away() -> None:
    assert w.clean("a\x1b[31mb\u202ec\nd\ud800") == "a\\x1b[31mb\\u202ec d\\ud800"
    assert w.clean("x" * 10_000).endswith(" … (10,000 characters)")
    assert w.clean("Größe 漢字 👩‍🚀") == "Größe 漢字 👩‍🚀"


@given(st.floats())
def test_every_float_has_words(value: float) -> None:
    for words in (w.number, w.reading, w.error, w.decimal, w.percent):
        assert words(value)


def test_nothing_is_minus_zero() -> None:
    assert w.signed(-0.0001) == "+0.00"
    assert w.signed(-0.016) == "-0.02"
