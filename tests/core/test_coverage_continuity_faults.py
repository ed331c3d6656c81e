"""The three criteria about the run itself, and incidents laid over every criterion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from soak.core.incidents import KINDS
from soak.core.records import Cause, Finding, State, Stretch
from soak.core.verdict import CardJudge


def judged(make: Any, rows: list[Any], standing: Any, **card: Any) -> dict[str, Finding]:
    judge = make.judge(**card)
    for row in rows:
        judge.fold(row)
    found: dict[str, Finding] = make.by_name(judge.findings(standing))
    return found


# -- coverage


def slots(make: Any, unobserved_ms: int) -> list[Any]:
    return [make.slot(0, observed_ms=60_000 - unobserved_ms), *(make.slot(i) for i in range(1, 10))]


@pytest.mark.parametrize(
    ("unobserved_ms", "state"), [(0, State.PASS), (6_000, State.PASS), (6_001, State.UNKNOWN)]
)
def test_99_percent_are_observed(make: Any, unobserved_ms: int, state: State) -> None:
    found = judged(make, slots(make, unobserved_ms), make.ended())["coverage"]
    assert found.state is state
    assert found.value == pytest.approx(1 - unobserved_ms / 600_000)


@pytest.mark.parametrize(("unobserved_ms", "state"), [(2_000, State.PASS), (2_001, State.UNKNOWN)])
def test_or_all_but_two_polls(make: Any, unobserved_ms: int, state: State) -> None:
    protocol = make.protocol(duration_ms=60_000)
    rows = [make.slot(0, protocol, observed_ms=60_000 - unobserved_ms)]
    assert judged(make, rows, make.ended(60_000), protocol=protocol)["coverage"].state is state


def test_a_run_too_short_for_a_poll_is_not_covered(make: Any) -> None:
    protocol = make.protocol(duration_ms=1_000)
    for rows in ([], [make.slot(0, protocol, observed_ms=0)]):
        found = judged(make, rows, make.ended(1_000), protocol=protocol)
        assert found["coverage"].state is State.UNKNOWN
        assert found["utilisation"].state is State.UNKNOWN


@pytest.mark.parametrize(
    ("closing", "state", "words"),
    [
        ("", State.PASS, "600 of 600 s observed"),
        ("3 rows were dropped", State.UNKNOWN, "600 of 600 s observed; 3 rows were dropped"),
        (None, State.UNKNOWN, "600 of 600 s observed; there is no closing record"),
    ],
)
def test_the_closing_record_has_to_be_there(make: Any, closing: str | None, state: State, words: str) -> None:
    found = judged(make, slots(make, 0), make.ended(closing=closing))["coverage"]
    assert (found.state, found.reason) == (state, words)


def test_while_a_run_goes_on_nobody_asks_for_its_closing_record(make: Any) -> None:
    assert judged(make, slots(make, 0), make.standing(600_000))["coverage"].state is State.PASS


# -- continuity


@pytest.mark.parametrize(
    ("standing", "stretches", "state"),
    [
        ((600_000, True), 1, State.PASS),
        ((599_999, True), 1, State.UNKNOWN),
        ((600_000, False), 1, State.UNKNOWN),  # a running run is never PASS
        ((0, False), 1, State.UNKNOWN),
        ((600_000, True), 2, State.UNKNOWN),
    ],
)
def test_continuity(make: Any, standing: tuple[int, bool], stretches: int, state: State) -> None:
    elapsed_ms, ended = standing
    where = make.ended(elapsed_ms) if ended else make.standing(elapsed_ms)
    of = tuple(Stretch(100_000 * n, 0) for n in range(stretches))
    found = judged(make, [], where, stretches=of)["continuity"]
    assert found.state is state
    assert found.reason


# -- faults and incidents


def test_no_incident_is_no_fault(make: Any) -> None:
    assert judged(make, [], make.standing(1))["faults"].state is State.PASS
    assert judged(make, [], make.standing(0))["faults"].state is State.UNKNOWN


FAILS = {kind for kind, effect in KINDS.items() if effect.state is State.FAIL}
DOUBTS = {kind for kind, effect in KINDS.items() if effect.state is State.UNKNOWN}


def test_which_kinds_fail_and_which_leave_doubt() -> None:
    """The contract's list, word for word: a change here is a change of the contract."""
    assert {
        "worker_crashed", "device_error", "device_lost", "device_reset", "no_progress", "mismatch",
    } == FAILS  # fmt: skip
    assert {kind: KINDS[kind].criterion for kind in DOUBTS} == {
        "digest_disagreement": "integrity",
        "worker_killed": "faults",
        "worker_out_of_memory": "faults",
        "worker_stopped": "faults",
        "worker_error": "faults",
        "compile_error": "faults",
        "out_of_device_memory": "faults",
        "host_starved": "faults",
        "worker_unkillable": "faults",
        "restarts_exhausted": "faults",
        "unclean_reboot": "faults",
        "suspended": "continuity",
        "interrupted": "continuity",
        "lease_lost": "continuity",
    }


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_does_to_a_healthy_run_what_its_effect_says(make: Any, kind: str) -> None:
    effect = KINDS[kind]
    plain = judged(make, make.healthy(), make.ended())
    assert {finding.state for finding in plain.values()} == {State.PASS}
    found = judged(make, [*make.healthy(), make.incident(kind)], make.ended())
    changed = {name for name in found if found[name].state is not plain[name].state}
    assert changed == ({effect.criterion} if effect.criterion else set())
    if effect.criterion is not None:
        finding = found[effect.criterion]
        assert (finding.state, finding.cause, finding.at_ms) == (effect.state, effect.cause, 30_000)
        assert finding.reason == f"{kind.replace('_', ' ')}: what was seen"
        assert (finding.cause is not None) == (finding.state is State.FAIL)


@pytest.mark.parametrize("kind", sorted(FAILS | DOUBTS))
def test_an_incident_at_t0_counts(make: Any, kind: str) -> None:
    found = judged(make, [*make.healthy(), make.incident(kind, at_ms=0)], make.ended())
    finding = found[KINDS[kind].criterion or ""]
    assert (finding.at_ms, finding.state) == (0, KINDS[kind].state)


def test_fail_outweighs_doubt_whatever_the_order(make: Any) -> None:
    doubt = make.incident("worker_killed", 10_000, seq=0)
    fail = make.incident("device_lost", 20_000, seq=1)
    for rows in ([doubt, fail], [fail, doubt]):
        found = judged(make, rows, make.standing(60_000))["faults"]
        assert (found.state, found.cause, found.at_ms) == (State.FAIL, Cause.HARDWARE, 20_000)


def test_of_equal_incidents_the_first_is_named(make: Any) -> None:
    first, second = make.incident("device_lost", 10_000, seq=0), make.incident("device_reset", 10_000, seq=1)
    for rows in ([first, second], [second, first]):
        assert judged(make, rows, make.standing(60_000))["faults"].reason.startswith("device lost")


def test_a_doubt_does_not_soften_a_fail(make: Any) -> None:
    """A mismatch, and a disagreement of digests."""
    rows = [make.integrity(0, mismatches=1), make.incident("digest_disagreement")]
    found = judged(make, rows, make.standing(100_000))["integrity"]
    assert (found.state, found.cause) == (State.FAIL, Cause.HARDWARE)


def test_a_fail_is_told_with_the_incident_that_says_more(make: Any) -> None:
    rows = [make.integrity(0, mismatches=1), make.incident("mismatch")]
    found = judged(make, rows, make.standing(100_000))["integrity"]
    assert found.reason == "1 of 10 comparisons were not bit-equal; mismatch: what was seen"


def test_an_incident_without_detail_is_its_kind(make: Any) -> None:
    found = judged(make, [make.incident("worker_error", detail="")], make.ended(1_000))
    assert found["faults"].reason == "worker error"


def test_a_doubt_is_told_beside_what_is_unknown_anyway(make: Any) -> None:
    found = judged(make, [make.incident("interrupted", detail="SIGTERM")], make.ended(360_000))
    assert found["continuity"].reason == "ended after 0.10 of 0.17 h; interrupted: SIGTERM"


def test_a_waiver_does_not_cover_incidents(make: Any) -> None:
    found = judged(make, [make.incident("worker_killed")], make.ended(), waived=frozenset({"ecc", "faults"}))
    assert found["faults"].waived is False


def test_folding_open_rows_leaves_no_trace(make: Any) -> None:
    judge: CardJudge = make.judge()
    before = judge.findings(make.standing(60_000))
    judge.findings(make.standing(60_000), [*make.healthy(), make.slot(0, ecc={"corrected": 9})])
    assert judge.findings(make.standing(60_000)) == before


@pytest.mark.parametrize("elapsed_ms", [0, 1, 59_999, 60_000, 300_000, 600_000])
@pytest.mark.parametrize("rows", [0, 5, 19])
@pytest.mark.parametrize("ended", [True, False])
def test_unknown_always_says_why(make: Any, elapsed_ms: int, rows: int, ended: bool) -> None:
    standing = make.ended(elapsed_ms) if ended else make.standing(elapsed_ms)
    for device in (make.device(), make.device(temperature_sensor=None)):
        found = judged(make, make.healthy()[:rows], standing, device=device)
        assert all(finding.reason for finding in found.values())
        assert all((f.cause is not None) == (f.state is State.FAIL) for f in found.values())


def test_a_criterion_that_is_not_required_is_shown_and_marked(make: Any) -> None:
    protocol = make.protocol(limits={"required": frozenset({"faults"})})
    found = judged(make, [make.slot(0, ecc={"corrected": 1})], make.standing(60_000), protocol=protocol)
    assert (found["ecc"].state, found["ecc"].required) == (State.FAIL, False)
    assert found["faults"].required


def test_incidents_of_the_run_concern_every_card(make: Any) -> None:
    everywhere = replace(make.incident("suspended"), gpu=None)
    assert judged(make, [everywhere], make.ended())["continuity"].state is State.UNKNOWN
