"""What a document says of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from soak.core.criteria import NAMES
from soak.core.incidents import KINDS
from soak.core.records import State
from soak.report.advice import FINDINGS, INCIDENTS
from soak.report.document import Document

Documents = Mapping[str, Document]


def titles(documents: Documents) -> dict[str, str]:
    return {name: document.verdict.title for name, document in documents.items()}


def test_the_verdict_in_words(documents: Documents) -> None:
    assert titles(documents) == {
        "healthy": "PASS",
        "failed": "FAIL (hardware): utilisation, ecc, gradient, faults",
        "inconclusive": "INCONCLUSIVE",
        "waived": "PASS, ecc waived",
        "running": "INCONCLUSIVE",
        "killed": "INCONCLUSIVE",
        "simulated": "SIMULATED: PASS",
        "eight_cards": "FAIL (hardware): faults",
        "two_attempts": "FAIL (hardware): gradient",
        "no_rows": "INCONCLUSIVE",
        "never_begun": "INCONCLUSIVE",
        "no_cards": "INCONCLUSIVE",
        "hostile": "INCONCLUSIVE",
    }


def test_exit_codes_are_those_of_the_verdict(documents: Documents) -> None:
    codes = {"pass": 0, "fail": 1, "inconclusive": 3}
    for document in documents.values():
        assert document.verdict.exit_code == codes[document.verdict.verdict]


def test_states(documents: Documents) -> None:
    states = {name: document.run.state for name, document in documents.items()}
    assert (states["running"], states["killed"], states["never_begun"]) == ("running", "silent", "starting")
    assert states["two_attempts"] == states["healthy"] == "completed"
    assert documents["killed"].run.silent_s == 1800
    assert documents["running"].run.silent_s is None


def test_a_verdict_is_final_when_nothing_can_change_it(documents: Documents) -> None:
    final = {name for name, document in documents.items() if document.verdict.final}
    assert final == set(documents) - {"running", "killed", "never_begun"}


def test_reasons_name_what_failed_and_what_is_not_proven(documents: Documents) -> None:
    assert documents["healthy"].verdict.reasons == ()
    assert documents["waived"].verdict.reasons == ()
    assert documents["no_cards"].verdict.reasons == ("no criterion was judged on any card",)
    first, *_, last = documents["eight_cards"].verdict.reasons
    assert first.startswith("0000:23:00.0 faults: device lost")
    assert last.startswith("0000:e3:00.0 ecc: no ECC on this card")


def test_a_fail_of_an_earlier_attempt_is_told_by_that_attempts_clock(documents: Documents) -> None:
    (gradient,) = [c for c in documents["two_attempts"].cards[0].criteria if c.criterion == "gradient"]
    assert (gradient.attempt, gradient.first_violation_s) == (1, 21.0)
    assert gradient.first_violation_utc == "2026-11-18T09:07:01.000Z"


def test_what_is_due_comes_from_the_protocol(documents: Documents) -> None:
    coverage = documents["inconclusive"].cards[0].coverage
    assert (coverage.n_slots, coverage.n_slots_due) == (18, 24)
    assert (coverage.n_polls, coverage.n_polls_due) == (10800, 14400)
    assert coverage.worst is not None
    assert (coverage.worst.start_s, coverage.worst.share) == (3600, 0)
    empty = documents["no_rows"].cards[0]
    assert (empty.coverage.n_slots_due, empty.gradient.n_due, empty.integrity.n_rotations_due) == (24, 4, 24)
    assert empty.utilisation.unobserved_s == 14400


def test_every_elapsed_second_is_counted_once(document: Document) -> None:
    for card in document.cards:
        use = card.utilisation
        parts = use.in_spec_s + use.suspect_s + use.bad_s + use.unobserved_s
        assert parts == pytest.approx(card.coverage.elapsed_s)


def test_nothing_known_is_none_and_not_zero(documents: Documents) -> None:
    card = documents["no_rows"].cards[0]
    assert card.ecc.since_t0 is None
    assert card.throughput.tflops_mean is card.throughput.drift_pct is None
    assert card.integrity.error_rate_below is None
    assert card.readings == ()
    assert documents["never_begun"].cards[0].coverage.share is None


def test_the_bound_of_the_error_rate(documents: Documents) -> None:
    integrity = documents["healthy"].cards[0].integrity
    assert (integrity.n_compared, integrity.n_mismatches) == (1080, 0)
    assert integrity.error_rate_below == 3 / 1080


def test_an_output_without_its_digest_takes_the_bound_away(unproved: Document) -> None:
    integrity = unproved.cards[0].integrity
    assert (integrity.n_mismatches, integrity.n_unproved, integrity.error_rate_below) == (0, 1, None)


def test_nan_is_the_worst_figure(documents: Documents) -> None:
    gradient = documents["failed"].cards[0].gradient
    dq = next(figure for figure in gradient.worst if figure.tensor == "dq")
    assert math.isnan(dq.max_abs)
    assert (dq.relative_l2, dq.n_nonfinite, dq.within) == (math.inf, 1, False)
    assert [check.within for check in gradient.checks] == [True, True, True, False]
    o = next(figure for figure in gradient.worst if figure.tensor == "o")
    assert (o.within, o.max_abs_limit) == (None, None)


def test_each_tensor_is_held_to_the_rule_of_the_criterion(documents: Documents) -> None:
    """A check is within its limits exactly where each of its limited tensors is."""
    for document in documents.values():
        for check in (check for card in document.cards for check in card.gradient.checks):
            assert check.within == all(tensor.within is not False for tensor in check.tensors)


def test_advice_is_given_for_trouble_only(documents: Documents) -> None:
    assert documents["healthy"].advice == documents["waived"].advice == ()
    assert documents["running"].advice == ()
    assert [a.about for a in documents["killed"].advice] == ["continuity: unknown"]
    about = [a.about for a in documents["failed"].advice]
    assert about == ["utilisation: fail", "ecc: fail", "gradient: fail", "faults: fail", "worker crashed"]
    lost = next(a for a in documents["eight_cards"].advice if a.about == "device lost")
    assert lost.gpus == ("0000:23:00.0",)


def test_every_state_and_every_incident_that_counts_has_advice() -> None:
    never_fail = ("coverage", "continuity")
    wanted = {f"{n}/{s}" for n in NAMES for s in (State.FAIL, State.UNKNOWN)} - {
        f"{n}/fail" for n in never_fail
    }
    assert set(FINDINGS) == wanted
    assert set(INCIDENTS) <= set(KINDS)
    assert {kind for kind, effect in KINDS.items() if effect.criterion is not None} <= set(INCIDENTS)


def test_what_the_verdict_does_not_mean(documents: Documents) -> None:
    assert documents["simulated"].does_not_mean[0].startswith("Nothing real was tested")
    assert documents["waived"].does_not_mean[0] == "ecc was waived: nothing is known about it."
    assert len(documents["healthy"].does_not_mean) == 4


def test_the_drift_compares_like_with_like(documents: Documents) -> None:
    """Masks and lengths differ by a third in their rates; the drift of steady cards is below a percent."""
    work = documents["healthy"].cards[0].throughput
    rates = [band.tflops_mean for band in work.bands]
    assert max(rates) / min(rates) > 1.3
    assert work.drift_pct == pytest.approx(0, abs=0.5)
    assert work.drift_error_pct is not None
    assert abs(work.drift_pct) <= 2 * work.drift_error_pct


def test_a_database_password_stays_out(assembled) -> None:
    document = assembled(
        "healthy", lambda info: replace(info, config={"database": "postgresql+psycopg://soak:s3cret@db/soak"})
    )
    assert document.run.config == {"database": "postgresql+psycopg://soak:***@db/soak"}
