"""JUnit XML: suites of cases, counted, with text that XML can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree as Xml

from soak.report.wording import clean

TAGS = ("failure", "error", "skipped")
_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case went that did not pass. `tag`: one of TAGS; `kind`: its type; `text`: more lines."""

    tag: str
    kind: str
    message: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """`outcome`: None where it passed; `says`: what it put out."""

    name: str
    took_s: float
    outcome: Outcome | None = None
    says: str | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """`facts` become properties; empty ones are left out."""

    name: str
    cases: Sequence[Case]
    took_s: float
    started_utc: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    classname: str | None = None  # of its cases; None: the suite's name


def junit(name: str, suites: Sequence[Suite]) -> str:
    """The XML document."""
    root = Xml.Element("testsuites", {"name": clean(name)})
    root.extend(_suite(suite) for suite in suites)
    for key in ("tests", *_COUNTS):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _suite(suite: Suite) -> Xml.Element:
    node = Xml.Element("testsuite", {"name": clean(suite.name), "tests": str(len(suite.cases))})
    cases = [_case(suite.classname or suite.name, case) for case in suite.cases]
    for key, tag in _COUNTS.items():
        node.set(key, str(sum(case.find(tag) is not None for case in cases)))
    node.set("time", _seconds(suite.took_s))
    if suite.started_utc:
        node.set("timestamp", suite.started_utc)
    properties = Xml.SubElement(node, "properties")
    for key, value in suite.facts.items():
        if value:
            Xml.SubElement(properties, "property", {"name": clean(key), "value": clean(value)})
    node.extend(cases)
    return node


def _case(classname: str, case: Case) -> Xml.Element:
    node = Xml.Element("testcase", {"classname": clean(classname), "name": clean(case.name)})
    node.set("time", _seconds(case.took_s))
    if case.says is not None:
        Xml.SubElement(node, "system-out").text = clean(case.says)
    if case.outcome is not None:
        how = {"type": clean(case.outcome.kind), "message": clean(case.outcome.message)}
        Xml.SubElement(node, case.outcome.tag, how).text = case.outcome.text
    return node


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"
