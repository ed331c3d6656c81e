"""JUnit XML for CI: a test case per card and criterion, and one for the run's verdict.

What a CI server makes of it: `failure` is a limit that was broken, `error` a required criterion that is not
proven (the test could not be completed, and must not count as passed), `skipped` what was waived or is not
required here. So a run is green exactly where its verdict is PASS; the case of the verdict sees to it that a
run without cards or criteria is not.
"""

from __future__ import annotations

from xml.etree import ElementTree as Xml

from soak.report.document import Card, Criterion, Document
from soak.report.wording import clean


def as_junit(document: Document) -> str:
    """One `testsuite` per card, after that of the run."""
    suites = Xml.Element("testsuites", {"name": _attribute(f"soak {document.run.run_id}")})
    suites.append(_run_suite(document))
    suites.extend(_card_suite(document, card) for card in document.cards)
    for key in ("tests", "failures", "errors", "skipped"):
        suites.set(key, str(sum(int(suite.get(key, "0")) for suite in suites)))
    Xml.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(suites, encoding="unicode") + "\n"


def _run_suite(document: Document) -> Xml.Element:
    verdict, run = document.verdict, document.run
    case = Xml.Element("testcase", {"classname": "soak.run", "name": "verdict", "time": _seconds(document)})
    if verdict.verdict != "pass":
        tag = "failure" if verdict.verdict == "fail" else "error"
        kind = " ".join(verdict.causes) or verdict.verdict
        outcome = Xml.SubElement(case, tag, {"type": _attribute(kind), "message": _attribute(verdict.title)})
        outcome.text = "\n".join(clean(reason) for reason in verdict.reasons)
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
    return _suite(document, "soak.run", [case], facts)


def _card_suite(document: Document, card: Card) -> Xml.Element:
    name = f"soak.{card.gpu}"
    facts = {
        "gpu": card.gpu,
        "verdict": card.title,
        "model": card.model or "",
        "uuid": card.uuid or "",
        "driver": card.driver or "",
        "vbios": card.vbios or "",
    }
    return _suite(document, name, [_case(document, name, c) for c in card.criteria], facts)


def _suite(document: Document, name: str, cases: list[Xml.Element], facts: dict[str, str]) -> Xml.Element:
    prefix = "SIMULATED " if document.run.simulated else ""
    suite = Xml.Element("testsuite", {"name": _attribute(prefix + name)})
    suite.set("tests", str(len(cases)))
    for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(key, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("time", _seconds(document))
    if document.run.started_utc:
        suite.set("timestamp", document.run.started_utc)
    properties = Xml.SubElement(suite, "properties")
    for key, value in facts.items():
        if value:
            Xml.SubElement(properties, "property", {"name": _attribute(key), "value": _attribute(value)})
    suite.extend(cases)
    return suite


def _case(document: Document, name: str, c: Criterion) -> Xml.Element:
    case = Xml.Element("testcase", {"classname": _attribute(name), "name": _attribute(c.criterion)})
    case.set("time", _seconds(document))
    told = f"{c.state}: {c.value_text}, limit {c.limit_text}; {c.reason}"
    tag, kind = _outcome(c)
    if not tag:
        Xml.SubElement(case, "system-out").text = clean(told)
        return case
    outcome = Xml.SubElement(case, tag, {"type": kind, "message": _attribute(told)})
    if c.first_violation_s is not None:
        outcome.text = f"first violation {c.first_violation_s:.0f} s after t0, {c.first_violation_utc}"
    return case


def _outcome(c: Criterion) -> tuple[str, str]:
    """The element that says how it went ("" where it passed), and its type."""
    if c.state == "pass":
        return "", ""
    if c.waived:
        return "skipped", "waived"
    if not c.required:
        return "skipped", "not required"
    return ("failure", _attribute(c.cause or "fail")) if c.state == "fail" else ("error", "unknown")


def _seconds(document: Document) -> str:
    return f"{document.run.elapsed_s:.3f}"


def _attribute(text: str) -> str:
    return clean(text)
