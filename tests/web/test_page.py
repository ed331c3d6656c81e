"""The page for people."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from soak.core.records import Verdict
from soak.web.page import page
from tests.web.scenes import GPU, at_hour, before_t0, played

EVIL = "<script>alert(1)</script>&\"'"


class Strict(HTMLParser):
    """Refuses elements that are not closed in their order, and keeps what a browser would ask for."""

    EMPTY = ("meta", "br", "link", "img")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.asked: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe", "object")
        self.asked += [value or "" for name, value in attrs if name in ("src", "srcset", "data", "action")]
        assert not [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def words(html: str) -> str:
    parser = Strict()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    assert parser.asked == []
    return " ".join(" ".join(parser.words).split())


@pytest.mark.parametrize(
    ("snapshot", "title"),
    [
        (None, "starting"),
        (before_t0(), "SIMULATED: starting"),
        (at_hour("healthy", 20), "SIMULATED: INCONCLUSIVE so far"),
        (at_hour("hang", 20), "SIMULATED: FAIL so far"),
        (played("healthy")[-1], "SIMULATED: PASS"),
        (played("lost-gpu")[-1], "SIMULATED: FAIL"),
    ],
    ids=["nothing", "before t0", "healthy", "failed", "passed", "lost"],
)
def test_the_verdict_is_the_title(snapshot: object, title: str) -> None:
    html = page(snapshot, "")  # type: ignore[arg-type]  # a parameter
    assert f"<title>soak: {title}</title>" in html
    assert words(html).startswith(f"soak: {title}")


def test_a_run_is_shown_with_cards_criteria_and_incidents() -> None:
    shown = words(page(at_hour("hang", 20, 2), ""))
    for expected in (
        "sim-hang, attempt 1", "running, 20:", "of 48:00:00", GPU, "99 %", "72 °C", "221 W",
        "12.0 of 16.0 GiB", "gradient", "no step finished for 60 s", "worker restarted", "seq_len",
        'rack=r7 "left"',
    ):  # fmt: skip
        assert expected in shown


def test_a_lost_card_is_gone_and_has_no_values() -> None:
    html = page(at_hour("lost-gpu", 20, 2), "")
    row = re.search(rf"<td>{GPU} [^<]*</td>(.*?)</tr>", html)
    assert row is not None
    assert re.findall(r"<td>([^<]*)</td>", row[1]) == ["FAIL", "gone", *["–"] * 6]


def test_a_waiver_is_in_the_title() -> None:
    over = played("healthy")[-1]
    findings = tuple(replace(f, waived=f.criterion == "ecc") for f in over.cards[0].findings)
    waived = replace(over, cards=(replace(over.cards[0], findings=findings, verdict=Verdict.PASS),))
    assert "PASS, ecc waived" in words(page(waived, ""))


def test_what_keeps_it_from_working_is_said() -> None:
    assert "no poll of x for 9 s" in words(page(at_hour("healthy", 20), "no poll of x for 9 s"))


def test_text_from_outside_is_text() -> None:
    snapshot = at_hour("hang", 20)
    card = snapshot.cards[0]
    evil = replace(
        snapshot,
        info=replace(snapshot.info, run_id=EVIL, kernel=EVIL, labels={"a": EVIL}),
        message=EVIL,
        incidents=tuple(replace(i, detail=EVIL) for i in snapshot.incidents),
        cards=(replace(card, device=replace(card.device, model=EVIL)),),
    )
    html = page(evil, EVIL)
    assert "<script" not in html
    assert words(html).count(EVIL) >= 6


def test_it_renews_itself_and_is_dark_where_the_reader_wants_it() -> None:
    html = page(at_hour("healthy", 20), "")
    assert '<meta http-equiv="refresh" content="5">' in html
    assert "prefers-color-scheme: dark" in html
    assert not re.search(r"https?://", html)
