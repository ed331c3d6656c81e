"""What a start does with what it finds: the contract's table of interruptions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from soak.core.records import Attempt, Device, RunInfo, RunRecord, Stretch, Verdict
from soak.core.resume import OnInterrupt, What, decide, is_finished

INFO = RunInfo("run-1", 0, "host", "mi50", "", 7, "kernel", False, (Device("gpu0", "amd"),), {})
RESTART, CONTINUE, STOP = OnInterrupt.RESTART_CLOCK, OnInterrupt.CONTINUE, OnInterrupt.STOP
PASS, FAIL, UNSURE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


def attempt(end: str, number: int = 1, elapsed_ms: int = 72_000_000, **changes: Any) -> Attempt:
    plain = Attempt(number, 1_000, "boot-1", (Stretch(0, 1_000),), elapsed_ms, None, end)
    return replace(plain, **changes)


def run(*attempts: Attempt) -> RunRecord:
    return RunRecord(INFO, attempts)


def decided(found: RunRecord | None, verdict: Verdict | None = UNSURE, **options: Any) -> Any:
    given = {
        "on_interrupt": RESTART,
        "by_id": True,
        "boot_id": "boot-1",
        "boot_ms": 500,
        "utc_ms": 900_000_000,
        **options,
    }
    return decide(found, verdict, **given)


def test_without_an_earlier_run_a_new_one_begins() -> None:
    for by_id in (True, False):
        decision = decided(None, None, by_id=by_id)
        assert (decision.what, decision.attempt, decision.before) == (What.NEW, 1, None)
        assert decision.reason


@pytest.mark.parametrize(
    ("end", "verdict", "finished"),
    [
        ("completed", PASS, True),
        ("completed", UNSURE, True),
        ("completed", FAIL, True),
        ("failed", UNSURE, True),
        ("closed", UNSURE, True),
        ("interrupted", UNSURE, False),
        ("interrupted", FAIL, True),  # a final fail is a finished run
        ("running", UNSURE, False),
        ("running", FAIL, True),
    ],
)
@pytest.mark.parametrize("on_interrupt", list(OnInterrupt))
def test_a_finished_run_is_not_taken_up(
    end: str, verdict: Verdict, finished: bool, on_interrupt: OnInterrupt
) -> None:
    """By its id it prints its verdict; without an id a new run begins."""
    found = run(attempt(end))
    assert is_finished(found, verdict) is finished
    by_id = decided(found, verdict, on_interrupt=on_interrupt)
    unasked = decided(found, verdict, on_interrupt=on_interrupt, by_id=False)
    if finished:
        assert (by_id.what, unasked.what) == (What.FINISHED, What.NEW)
        assert unasked.attempt == 1
        for decision in (by_id, unasked):  # and one that was killed gets its end
            assert (decision.ended and decision.ended.end) == ("interrupted" if end == "running" else None)
    elif on_interrupt is STOP:
        assert (by_id.what, unasked.what) == (What.FINISHED, What.CLOSE)
    else:
        expected = {RESTART: What.ATTEMPT, CONTINUE: What.CONTINUE}[on_interrupt]
        assert by_id.what is unasked.what is expected
    for decision in (by_id, unasked):
        assert "run-1" in decision.reason


def test_a_run_that_was_created_and_never_begun_begins() -> None:
    decision = decided(run())
    assert (decision.what, decision.attempt, decision.happened, decision.ended) == (What.ATTEMPT, 1, (), None)


def test_the_clock_starts_again_in_a_new_attempt() -> None:
    found = run(attempt("interrupted"), attempt("interrupted", 2, 3_600_000, reason="SIGTERM"))
    decision = decided(found)
    assert (decision.what, decision.attempt, decision.before, decision.ended) == (
        What.ATTEMPT,
        3,
        found,
        None,
    )
    (happened,) = decision.happened
    assert (happened.kind, happened.detail) == ("resumed", "after: interrupted SIGTERM")
    assert "3600 s" in decision.reason


def test_continue_stays_in_its_attempt() -> None:
    found = run(attempt("interrupted"), attempt("interrupted", 2))
    decision = decided(found, on_interrupt=CONTINUE)
    assert (decision.what, decision.attempt, decision.before) == (What.CONTINUE, 2, found)


@pytest.mark.parametrize("end", ["interrupted", "running"])
def test_stop_closes_the_old_run(end: str) -> None:
    decision = decided(run(attempt(end)), on_interrupt=STOP, by_id=False)
    assert decision.what is What.CLOSE
    assert (decision.ended.end, decision.ended.number) == ("closed", 1)
    assert "--on-interrupt stop" in decision.ended.reason


@pytest.mark.parametrize("on_interrupt", [RESTART, CONTINUE])
@pytest.mark.parametrize(
    ("boot_id", "kind", "reason"),
    [
        ("boot-1", "resumed", "the daemon was killed"),
        ("boot-2", "unclean_reboot", "the machine went down"),  # it may have been the card
    ],
)
def test_an_orphan_is_marked_with_the_time_of_its_last_record(
    on_interrupt: OnInterrupt, boot_id: str, kind: str, reason: str
) -> None:
    """A13 iii."""
    decision = decided(run(attempt("running")), on_interrupt=on_interrupt, boot_id=boot_id)
    assert [h.kind for h in decision.happened] == [kind]
    assert (decision.ended.end, decision.ended.reason) == ("interrupted", reason)
    assert decision.ended.ended_utc_ms == 1_000 + 72_000_000


def test_the_last_record_is_of_the_last_stretch_and_not_from_the_future() -> None:
    stretches = (Stretch(0, 1_000), Stretch(50_000, 400_000))
    found = run(attempt("running", stretches=stretches, elapsed_ms=60_000))
    assert decided(found).ended.ended_utc_ms == 410_000
    assert decided(found, utc_ms=5).ended.ended_utc_ms == 5  # the wall clock was set back since


def test_a_clean_stop_before_a_reboot_is_no_unclean_reboot() -> None:
    decision = decided(run(attempt("interrupted")), boot_id="boot-2")
    assert [h.kind for h in decision.happened] == ["resumed"]
    assert decision.ended is None


def test_an_orphan_that_has_failed_is_marked_when_a_new_run_begins() -> None:
    found = run(attempt("running"))
    decision = decided(found, FAIL, by_id=False)
    assert (decision.what, decision.before, decision.ended.end) == (What.NEW, found, "interrupted")
    assert decided(run(attempt("completed")), FAIL, by_id=False).ended is None
