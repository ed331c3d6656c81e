"""From rows to verdicts: closing records, attempts, waivers, and what is never PASS (A18)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from soak.core.records import Attempt, Closing, Finding, Reading, State, Stretch, Verdict
from soak.core.verdict import card_verdict, combined, earlier_attempts, judge, run_verdict

PASS, FAIL, UNSURE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE


def verdict_of(make: Any, record: Any, protocol: Any = None) -> Verdict:
    return judge(record, protocol or make.protocol()).verdict


def states_of(make: Any, record: Any) -> dict[str, State]:
    (card,) = judge(record, make.protocol()).cards
    return {finding.criterion: finding.state for finding in card.findings}


def findings(*states: str, required: bool = True) -> list[Finding]:
    return [Finding("g", f"c{i}", required, State(state)) for i, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "verdict"),
    [
        (["pass", "pass"], PASS),
        (["pass", "unknown"], UNSURE),
        (["pass", "fail"], FAIL),
        (["unknown", "fail"], FAIL),
        ([], UNSURE),
    ],
)
def test_a_card_is_as_good_as_its_worst_required_criterion(states: list[str], verdict: Verdict) -> None:
    for order in itertools.permutations(findings(*states)):
        assert card_verdict(order) is verdict


def test_what_is_not_required_is_not_counted() -> None:
    assert card_verdict([*findings("pass"), *findings("fail", "unknown", required=False)]) is PASS
    assert card_verdict(findings("pass", required=False)) is UNSURE  # nothing required is nothing proven


def test_a_waiver_counts_for_unknown_alone() -> None:
    waived = replace(findings("unknown")[0], waived=True)
    assert card_verdict([waived, *findings("pass")]) is PASS
    assert card_verdict([waived, *findings("fail")]) is FAIL
    assert card_verdict([replace(findings("fail")[0], waived=True)]) is FAIL


@pytest.mark.parametrize(
    ("cards", "verdict"),
    [
        ([], UNSURE),
        ([PASS], PASS),
        ([PASS, PASS], PASS),
        ([PASS, UNSURE], UNSURE),
        ([PASS, UNSURE, FAIL], FAIL),
        ([FAIL, PASS], FAIL),
    ],
)
def test_a_run_is_as_good_as_its_worst_card(cards: list[Verdict], verdict: Verdict) -> None:
    assert run_verdict(cards) is verdict


# -- stored runs


def test_a_whole_healthy_run_passes(make: Any) -> None:
    judged = judge(make.record(make.healthy()), make.protocol())
    assert (judged.verdict, judged.words, judged.complete) == (PASS, "PASS", True)


def test_a_run_row_alone_is_inconclusive(make: Any) -> None:
    """0 samples, 0 iterations (A18 i); also before the first attempt, and after a completed one."""
    for attempts in ([], [make.attempt(elapsed_ms=0, end="running")], [make.attempt()]):
        judged = judge(make.record([], attempts), make.protocol())
        assert judged.verdict is UNSURE
        found = [finding for card in judged.cards for finding in card.findings]
        passed = {finding.criterion for finding in found if finding.state is State.PASS}
        assert passed <= {"faults", "continuity"}
        assert all(finding.reason for finding in found)


def test_a_gradient_failure_after_the_last_sample_fails(make: Any) -> None:
    """A18 ii."""
    rows = [row for row in make.healthy() if row != make.check(2)]
    late = make.check(2, dq={"max_abs": 1.0}, at_ms=599_000)
    assert verdict_of(make, make.record([*rows, late])) is FAIL


def test_half_of_the_samples_all_good_are_inconclusive(make: Any) -> None:
    """A18 v."""
    rows = make.healthy()
    record = make.record([row for row in rows if row not in rows[5:10]])
    assert verdict_of(make, record) is UNSURE
    assert states_of(make, record)["coverage"] is State.UNKNOWN
    assert states_of(make, record)["utilisation"] is State.UNKNOWN


@pytest.mark.parametrize("end", ["interrupted", "failed", "closed", "running"])
def test_an_attempt_that_did_not_reach_its_length_is_inconclusive(make: Any, end: str) -> None:
    rows = [*(make.slot(i) for i in range(9)), *make.healthy()[10:]]
    record = make.record(rows, [make.attempt(elapsed_ms=540_000, end=end)])
    assert verdict_of(make, record) is UNSURE
    assert states_of(make, record)["continuity"] is State.UNKNOWN


def test_a_running_run_is_not_pass_even_at_its_last_second(make: Any) -> None:
    assert verdict_of(make, make.record(make.healthy(), [make.attempt(end="running")])) is UNSURE


@pytest.mark.parametrize(
    ("closing", "words"),
    [
        (Closing({}, 0), "rows are missing or were added"),
        (Closing({"sample": 11}, 0), "sample: 10 of 11 rows"),
        (Closing({"sample": 9}, 0), "sample: 10 of 9 rows"),
        (Closing({"finding": 8}, 0), "finding: 0 of 8 rows"),
    ],
)
def test_counts_have_to_be_met(make: Any, closing: Closing, words: str) -> None:
    record = make.record(make.healthy())
    counts = {**record.rows, **closing.rows} if closing.rows else {}
    record = replace(record, attempts=(replace(record.attempts[0], closing=Closing(counts, 0)),))
    assert verdict_of(make, record) is UNSURE
    (card,) = judge(record, make.protocol()).cards
    assert words in make.by_name(card.findings)["coverage"].reason


def test_dropped_rows_are_inconclusive(make: Any) -> None:
    record = make.record(make.healthy())
    closing = replace(record.attempts[0].closing, dropped=1)
    record = replace(record, attempts=(replace(record.attempts[0], closing=closing),))
    assert verdict_of(make, record) is UNSURE


def test_the_closing_record_has_to_be_there(make: Any) -> None:
    record = make.record(make.healthy())
    record = replace(record, attempts=(replace(record.attempts[0], closing=None),))
    assert verdict_of(make, record) is UNSURE


def test_two_stretches_are_inconclusive(make: Any) -> None:
    attempt = replace(make.attempt(), stretches=(Stretch(0, 0), Stretch(300_000, 9)))
    assert verdict_of(make, make.record(make.healthy(), [attempt])) is UNSURE


# -- waivers


def test_a_waiver_is_told_everywhere(make: Any) -> None:
    rows = [replace(row, ecc=None) if hasattr(row, "ecc") else row for row in make.healthy()]
    record = make.record(rows, waived=("ecc",))
    bare = make.device(ecc=Reading.unsupported("no RAS"), ecc_baseline={})
    record = replace(record, info=replace(record.info, devices=(bare,)))
    judged = judge(record, make.protocol())
    assert (judged.verdict, judged.words, judged.waived) == (PASS, "PASS, ecc waived", ("ecc",))
    unwaived = judge(replace(record, info=replace(record.info, waived=())), make.protocol())
    assert (unwaived.verdict, unwaived.words) == (UNSURE, "INCONCLUSIVE")


def test_a_waiver_that_was_not_needed_is_not_told(make: Any) -> None:
    judged = judge(make.record(make.healthy(), waived=("ecc",)), make.protocol())
    assert (judged.words, judged.waived) == ("PASS", ())


def test_only_ecc_can_be_waived(make: Any) -> None:
    record = make.record(make.healthy()[:10], waived=("gradient", "integrity", "coverage"))
    assert verdict_of(make, record) is UNSURE


# -- attempts


def second(rows: list[Any], first: list[Any], end: str = "interrupted") -> tuple[list[Any], list[Attempt]]:
    """The rows of attempt 2, after those of an attempt 1 that ended early."""
    moved = [replace(row, attempt=2) for row in rows]
    early = Attempt(1, 0, "boot", (Stretch(0, 0),), 120_000, None, end)
    return [*first, *moved], [early, Attempt(2, 0, "boot", (Stretch(0, 0),), 600_000, None, "completed")]


def test_the_last_attempt_is_judged(make: Any) -> None:
    """An interrupted first attempt leaves nothing behind but its rows."""
    first = [make.slot(0), make.incident("interrupted"), make.incident("worker_killed", seq=1)]
    assert verdict_of(make, make.record(*second(make.healthy(), first))) is PASS


def test_a_fail_in_any_attempt_is_final(make: Any) -> None:
    first = [make.slot(0, ecc={"corrected": 1})]
    judged = judge(make.record(*second(make.healthy(), first)), make.protocol())
    assert judged.verdict is FAIL
    assert make.by_name(judged.cards[0].findings)["ecc"].at_ms == 0
    assert make.by_name(judged.by_attempt[2][make.gpu])["ecc"].state is State.PASS


def test_the_first_of_two_fails_is_told() -> None:
    old, new = findings("fail"), [replace(findings("fail")[0], reason="new")]
    assert combined(old, new) == tuple(old)
    assert combined([*old, *new], findings("pass")) == tuple(old)
    assert combined(findings("unknown"), new) == tuple(new)


@pytest.mark.parametrize(("kind", "verdict"), [("unclean_reboot", UNSURE), ("resumed", PASS)])
def test_an_unclean_reboot_stays_in_doubt(make: Any, kind: str, verdict: Verdict) -> None:
    """It is told in the attempt that finds it, and lasts through all that follow."""
    happened = replace(make.incident(kind), gpu=None, attempt=2, at_ms=0)
    rows, attempts = second(make.healthy(), [make.slot(0)])
    assert verdict_of(make, make.record([*rows, happened], attempts)) is verdict
    third = [replace(row, attempt=3) for row in make.healthy()]
    attempts = [attempts[0], replace(attempts[1], end="interrupted"), replace(attempts[1], number=3)]
    record = make.record([*rows, *third, happened], attempts)
    assert verdict_of(make, record) is verdict
    earlier = earlier_attempts(record, make.protocol(), make.device(), 3)
    assert [i.kind for i in earlier.incidents] == [kind] * (kind == "unclean_reboot")


def test_an_unclean_reboot_does_not_reach_back(make: Any) -> None:
    happened = replace(make.incident("unclean_reboot"), gpu=None, attempt=2)
    record = make.record([*make.healthy(), happened], [make.attempt(), make.attempt(2, 0, "interrupted")])
    by_attempt = judge(record, make.protocol()).by_attempt
    assert make.by_name(by_attempt[1][make.gpu])["faults"].state is State.PASS


def test_a_card_that_failed_fails_the_run_and_leaves_the_others_their_verdict(make: Any) -> None:
    """Of two cards one is lost (A01); the counts of the closing record are those of both."""
    other = replace(make.device(), gpu="0000:43:00.0")
    rows = make.healthy()
    others = [replace(row, gpu=other.gpu) for row in rows]
    record = make.record([*rows, *others, replace(make.incident("device_lost"), gpu=other.gpu)])
    record = replace(record, info=replace(record.info, devices=(make.device(), other)))
    judged = judge(record, make.protocol())
    assert [card.verdict for card in judged.cards] == [PASS, FAIL]
    assert judged.verdict is FAIL


# -- removing rows never makes a PASS


def test_removing_any_one_row_of_a_healthy_run_ends_its_pass(make: Any) -> None:
    record = make.record(make.healthy())
    names = {"slots": "sample", "gradient_checks": "gradient_check", "integrity_checks": "integrity_check"}
    for table, name in names.items():
        rows = getattr(record, table)
        for row in rows:
            less = replace(
                record,
                rows={**record.rows, name: record.rows[name] - 1},
                **{table: tuple(r for r in rows if r != row)},
            )
            assert verdict_of(make, less) is UNSURE


def test_a_card_that_is_taken_out_of_the_record_is_missed(make: Any) -> None:
    other = replace(make.device(), gpu="0000:43:00.0")
    failing = replace(make.incident("device_lost"), gpu=other.gpu)
    rows = [*make.healthy(), *(replace(row, gpu=other.gpu) for row in make.healthy()), failing]
    record = make.record(rows)
    counts = {**record.rows, "device": 2}
    record = replace(record, attempts=(replace(record.attempts[0], closing=Closing(counts, 0)),))
    assert verdict_of(make, record) is UNSURE
