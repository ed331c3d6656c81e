"""JUnit XML for CI: a test case per card and criterion, and one for the run's verdict.

What a CI server makes of it: `failure` is a limit that was broken, `error` a required criterion that is not
proven (the test could not be completed, and must not count as passed), `skipped` what was waived or is not
required here. So a run is green exactly where its verdict is PASS; the case of the verdict sees to it that a
run without cards or criteria is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from soak.report.card_document import Card, Criterion
from soak.report.document import Document
from soak.report.junit import Case, Outcome, Suite, junit
from soak.report.wording import clean


def as_junit(document: Document) -> str:
    """One `testsuite` per card, after that of the run."""
    suites = [_run_suite(document), *(_card_suite(document, card) for card in document.cards)]
    return junit(f"soak {document.run.run_id}", suites)


def _run_suite(document: Document) -> Suite:
    verdict, run = document.verdict, document.run
    outcome = None
    if verdict.verdict != "pass":
        tag = "failure" if verdict.verdict == "fail" else "error"
        kind = " ".join(verdict.causes) or verdict.verdict
        reasons = "\n".join(clean(reason) for reason in verdict.reasons)
        outcome = Outcome(tag, kind, verdict.title, reasons)
    facts = {
        "run_id": run.run_id,
        "verdict": verdict.title,
        "state": run.state,
        "simulated": str(run.simulated).lower(),
        "profile": run.profile,
        "seed": str(run.seed),
        "kernel": run.kernel,
        **{f"version.{name}": version for name, version in run.versions.items()},
        **{f"label.{name}": label for name, label in run.labels.items()},
    }
    return _suite(document, "soak.run", [Case("verdict", run.elapsed_s, outcome)], facts)


def _card_suite(document: Document, card: Card) -> Suite:
    facts = {
        "gpu": card.gpu,
        "verdict": card.title,
        "model": card.model or "",
        "uuid": card.uuid or "",
        "driver": card.driver or "",
        "vbios": card.vbios or "",
    }
    return _suite(document, f"soak.{card.gpu}", [_case(document, c) for c in card.criteria], facts)


def _suite(document: Document, name: str, cases: Sequence[Case], facts: Mapping[str, str]) -> Suite:
    prefix = "SIMULATED " if document.run.simulated else ""
    return Suite(
        prefix + name, cases, document.run.elapsed_s, document.run.started_utc, facts, classname=name
    )


def _case(document: Document, c: Criterion) -> Case:
    told = f"{c.state}: {c.value_text}, limit {c.limit_text}; {c.reason}"
    tag, kind = _outcome(c)
    if not tag:
        return Case(c.criterion, document.run.elapsed_s, says=told)
    since = None
    if c.first_violation_s is not None:
        since = f"first violation {c.first_violation_s:.0f} s after t0, {c.first_violation_utc}"
    return Case(c.criterion, document.run.elapsed_s, Outcome(tag, kind, told, since))


def _outcome(c: Criterion) -> tuple[str, str]:
    """The element that says how it went ("" where it passed), and its type."""
    if c.state == "pass":
        return "", ""
    if c.waived:
        return "skipped", "waived"
    if not c.required:
        return "skipped", "not required"
    return ("failure", c.cause or "fail") if c.state == "fail" else ("error", "unknown")
