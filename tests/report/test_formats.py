"""What every format has to keep, and what each owes its readers."""

from __future__ import annotations

import csv
import json
import re
import xml.etree.ElementTree as Xml
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from io import StringIO
from typing import Any, get_args, get_type_hints

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

from soak.core.errors import ConfigError
from soak.report.as_csv import COLUMNS
from soak.report.as_json import schema
from soak.report.as_text import as_text
from soak.report.document import Document
from soak.report.render import FORMATS, render

Documents = Mapping[str, Document]


def test_an_unknown_format_is_refused_by_name(documents: Documents) -> None:
    with pytest.raises(ConfigError, match="--format 'pdf' is not known; use one of text, json, html"):
        render(documents["healthy"], "pdf")


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f != "csv"])
def test_the_verdict_reads_the_same_everywhere(fmt: str, document: Document) -> None:
    text = render(document, fmt)
    assert document.verdict.title in text
    assert ("SIMULATED" in text) == document.run.simulated
    assert text.endswith("\n")
    text.encode("utf-8")


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_simulated_run_says_so_in_every_format(fmt: str, documents: Documents) -> None:
    assert "SIMULATED" in render(documents["simulated"], fmt)
    assert "SIMULATED" not in render(documents["healthy"], fmt)


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f not in ("csv", "json")])
@pytest.mark.parametrize("scene", ["no_rows", "never_begun", "no_cards", "running", "killed"])
def test_what_is_not_proven_never_reads_as_pass(fmt: str, scene: str, documents: Documents) -> None:
    """The word stands in upper case for the verdict alone."""
    assert "PASS" not in render(documents[scene], fmt)


# -- text ------------------------------------------------------------------------------------------------


def test_text_fits_100_columns(document: Document) -> None:
    assert [line for line in as_text(document).split("\n") if cell_len(line) > 100] == []


def test_text_is_plain_unless_colour_is_asked_for(document: Document) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", as_text(document))
    coloured = as_text(document, colour=True)
    assert "\x1b[" in coloured
    styles = re.findall(r"\x1b\[([0-9;]*)(.)", coloured)
    assert {end for _, end in styles} == {"m"}  # colour, and no other control


def test_colour_changes_nothing_else(documents: Documents) -> None:
    document = documents["failed"]
    bare = re.sub(r"\x1b\[[0-9;]*m", "", as_text(document, colour=True))
    assert [line.rstrip() for line in bare.split("\n")] == as_text(document).split("\n")


# -- JSON ------------------------------------------------------------------------------------------------


def refuse(constant: str) -> None:
    raise ValueError(constant)


def test_json_is_strict_and_meets_its_schema(document: Document) -> None:
    parsed = json.loads(render(document, "json"), parse_constant=refuse)
    jsonschema.Draft202012Validator(closed(schema())).validate(parsed)


@pytest.mark.parametrize("end", ["completed", "interrupted", "failed", "closed"])
def test_every_end_of_an_attempt_is_in_the_schema(documents: Documents, end: str) -> None:
    run = replace(documents["healthy"].run, state=end)
    parsed = json.loads(render(replace(documents["healthy"], run=run), "json"))
    jsonschema.Draft202012Validator(schema()).validate(parsed)


def closed(node: Any) -> Any:
    """The schema without the room that it leaves for later fields: what we write, we publish."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: closed(value) for key, value in node.items()}
    return found | {"additionalProperties": False} if "properties" in node and "required" in node else found


def test_the_schema_is_a_schema_and_names_every_field() -> None:
    published = schema()
    jsonschema.Draft202012Validator.check_schema(published)
    assert set(published["properties"]) == set(published["required"]) == {f.name for f in fields(Document)}
    for cls in dataclasses_of(Document):
        definition = published["$defs"][cls.__name__]
        assert list(definition["properties"]) == definition["required"] == [f.name for f in fields(cls)]
    assert set(published["$defs"]) == {cls.__name__ for cls in dataclasses_of(Document)} | {"number"}


def dataclasses_of(cls: type) -> set[type]:
    found: set[type] = set()
    todo = list(get_type_hints(cls).values())
    while todo:
        hint = todo.pop()
        todo += get_args(hint)
        if isinstance(hint, type) and is_dataclass(hint) and hint not in found:
            found.add(hint)
            todo += get_type_hints(hint).values()
    return found


def test_the_schema_refuses_what_is_wrong(documents: Documents) -> None:
    validator = jsonschema.Draft202012Validator(schema())
    parsed = json.loads(render(documents["healthy"], "json"))
    assert validator.is_valid(parsed)
    for path, wrong in (
        (("schema_version",), 2),
        (("verdict", "verdict"), "ok"),
        (("run", "elapsed_s"), "many"),
        (("cards", 0, "integrity", "n_compared"), -1),
        (("cards", 0, "ecc", "since_t0", "corrected"), None),
    ):
        broken = json.loads(json.dumps(parsed))
        place = broken
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = wrong
        assert not validator.is_valid(broken), path


def test_nan_and_infinity_are_named(documents: Documents) -> None:
    parsed = json.loads(render(documents["failed"], "json"))
    dq = next(t for t in parsed["cards"][0]["gradient"]["worst"] if t["tensor"] == "dq")
    assert (dq["max_abs"], dq["relative_l2"]) == ("NaN", "Infinity")


# -- JUnit -----------------------------------------------------------------------------------------------


def test_junit_is_green_exactly_where_the_verdict_is_pass(document: Document) -> None:
    root = Xml.fromstring(render(document, "junit"))
    red = root.findall(".//failure") + root.findall(".//error")
    assert bool(red) == (document.verdict.verdict != "pass")
    assert bool(root.findall(".//failure")) == (document.verdict.verdict == "fail")


def test_junit_counts_are_right(document: Document) -> None:
    root = Xml.fromstring(render(document, "junit"))
    tags = {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}
    for node in (root, *root.findall("testsuite")):
        for key, tag in tags.items():
            assert int(node.attrib[key]) == len(node.findall(f".//{tag}"))
    assert len(root.findall(".//testcase")) == 1 + sum(len(card.criteria) for card in document.cards)


def test_junit_skips_what_was_waived(documents: Documents) -> None:
    root = Xml.fromstring(render(documents["waived"], "junit"))
    (ecc,) = [case for case in root.iter("testcase") if case.attrib["name"] == "ecc"]
    (skipped,) = ecc.findall("skipped")
    assert skipped.attrib["type"] == "waived"


# -- CSV -------------------------------------------------------------------------------------------------


def rows_of(document: Document) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(render(document, "csv")), strict=True))


def test_csv_has_a_row_per_sample_and_the_same_columns(document: Document) -> None:
    rows = rows_of(document)
    assert len(rows) == sum(len(card.samples) for card in document.cards)
    assert len(set(COLUMNS)) == len(COLUMNS)
    for row in rows:
        assert tuple(row) == COLUMNS
        assert None not in row.values()


def test_csv_leaves_empty_what_is_not_known(documents: Documents) -> None:
    row = rows_of(documents["inconclusive"])[0]
    assert row["ecc_corrected"] == row["temperature_core_c_mean"] == ""
    assert row["utilisation_pct_n"] == "600"


def test_csv_holds_no_formula(document: Document) -> None:
    for row in rows_of(document):
        for name, cell in row.items():
            if not re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", cell):
                assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), name


# -- Markdown --------------------------------------------------------------------------------------------


def tokens(text: str) -> list[Any]:
    top = MarkdownIt("commonmark").enable("table").parse(text)
    return [token for block in top for token in (block, *(block.children or ()))]


def test_markdown_carries_no_html_link_or_image(document: Document) -> None:
    kinds = {token.type for token in tokens(render(document, "markdown"))}
    assert kinds.isdisjoint(
        {"html_block", "html_inline", "link_open", "image", "fence", "code_block", "em_open"}
    )


def test_markdown_tables_keep_their_shape(document: Document) -> None:
    """Foreign text neither adds nor removes a cell."""
    found = tokens(render(document, "markdown"))
    widths: list[list[int]] = []
    for token in found:
        if token.type == "table_open":
            widths.append([])
        elif token.type == "tr_open":
            widths[-1].append(0)
        elif token.type in ("td_open", "th_open"):
            widths[-1][-1] += 1
    assert all(len(set(table)) == 1 for table in widths)
    texts = [token.content for token in found if token.type == "inline"]
    assert not any(re.match(r"\s*\|", text) for text in texts)


def test_markdown_has_the_sections_of_the_document_alone(documents: Documents) -> None:
    def headings(name: str) -> list[str]:
        return [t.tag for t in tokens(render(documents[name], "markdown")) if t.type == "heading_open"]

    assert headings("hostile").count("h1") == headings("healthy").count("h1") == 1
    assert headings("hostile").count("h2") == headings("healthy").count("h2") + 1  # advice


# -- HTML ------------------------------------------------------------------------------------------------

VOID = {"meta"}


class Page(HTMLParser):
    """Collects elements and texts, and holds every tag to its end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_loads_and_runs_nothing(document: Document) -> None:
    page = Page(render(document, "html"))
    assert {"script", "img", "link", "iframe", "object", "base", "form", "a", "image", "use"}.isdisjoint(
        page.tags
    )
    names = {name for name, _ in page.attributes}
    assert not {n for n in names if n.startswith("on")} | names & {"src", "href", "style", "xlink:href"}
    assert "url(" not in "".join(page.texts[:3])
    policy = [value for name, value in page.attributes if name == "content" and "default-src" in str(value)]
    assert len(policy) == 1


def test_html_shows_charts_with_gaps(documents: Documents) -> None:
    whole, holed = (render(documents[name], "html") for name in ("healthy", "inconclusive"))
    assert whole.count("<svg") == 3
    assert whole.count('class="mean"') == 4  # utilisation, two temperatures, power
    assert holed.count('class="mean"') == 8  # each in two parts
    assert 'class="band"' in whole
    assert "<svg" not in render(documents["no_rows"], "html")


def test_html_shows_hostile_text_as_text(documents: Documents, evil: tuple[str, ...]) -> None:
    page = Page(render(documents["hostile"], "html"))
    assert any(evil[1] in text for text in page.texts)


# -- any text, anywhere ----------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=60))
def test_any_foreign_text_is_borne_by_every_format(text: str, with_text: Callable[[str], Document]) -> None:
    document = with_text(text)
    assert [line for line in as_text(document).split("\n") if cell_len(line) > 100] == []
    json.loads(render(document, "json"), parse_constant=refuse)
    Xml.fromstring(render(document, "junit"))
    rows_of(document)
    Page(render(document, "html"))
    kinds = {token.type for token in tokens(render(document, "markdown"))}
    assert kinds.isdisjoint({"html_block", "html_inline", "link_open", "image"})
