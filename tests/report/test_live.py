"""The live view and the log line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from soak.core.records import Quantity, Reading, State
from soak.core.snapshot import Snapshot
from soak.report.live import live_view, log_line


def drawn(snapshot: Snapshot, width: int) -> str:
    console = Console(width=width, color_system=None, legacy_windows=False, _environ={})
    with console.capture() as capture:
        console.print(live_view(snapshot))
    return capture.get()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_view_fits_its_width(width: int, snapshot: Snapshot) -> None:
    assert [line for line in drawn(snapshot, width).split("\n") if cell_len(line) > width] == []


@pytest.mark.parametrize("width", [80, 120])
def test_the_view_of_eight_cards_fits_a_screen(width: int, snapshots: dict[str, Snapshot]) -> None:
    assert len(drawn(snapshots["eight_cards"], width).splitlines()) <= 30


def test_every_card_and_every_criterion_has_a_row(snapshots: dict[str, Snapshot]) -> None:
    for name in ("running", "eight_cards"):
        lines = drawn(snapshots[name], 80).splitlines()
        for card in snapshots[name].cards:
            assert sum(line.startswith(card.device.gpu) for line in lines) == 1
        for finding in snapshots[name].cards[0].findings:
            assert sum(line.startswith(finding.criterion) for line in lines) == 1


def test_nothing_foreign_reaches_the_terminal(snapshots: dict[str, Snapshot]) -> None:
    for text in (drawn(snapshots["hostile"], 80), log_line(snapshots["hostile"])):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


def test_a_log_line_is_one_line(snapshot: Snapshot) -> None:
    assert "\n" not in log_line(snapshot)


def test_simulated_is_said(snapshots: dict[str, Snapshot]) -> None:
    assert "SIMULATED" in drawn(snapshots["simulated"], 80)
    assert "SIMULATED" in log_line(snapshots["simulated"])
    assert "SIMULATED" not in log_line(snapshots["running"])


def test_a_running_run_is_never_pass(snapshots: dict[str, Snapshot]) -> None:
    for name in ("running", "starting", "no_cards"):
        assert "PASS" not in drawn(snapshots[name], 120)
        assert "PASS" not in log_line(snapshots[name])


def card_changed(snapshot: Snapshot, **changes: object) -> Snapshot:
    return replace(snapshot, cards=(replace(snapshot.cards[0], **changes), *snapshot.cards[1:]))


def test_what_is_not_known_is_a_dash(snapshots: dict[str, Snapshot]) -> None:
    snapshot = snapshots["running"]
    poll = snapshot.cards[0].poll
    assert poll is not None
    readings = {**poll.readings, Quantity.UTILISATION_PCT: Reading.unreadable("EBUSY")}
    changed = card_changed(snapshot, poll=replace(poll, readings=readings), ecc=None)
    row = next(line for line in drawn(changed, 120).splitlines() if line.startswith("0000:33:00.0"))
    assert row.split()[2] == "–"
    assert row.split()[-4] == "–"


def test_an_old_reading_shows_its_age(snapshots: dict[str, Snapshot]) -> None:
    snapshot = snapshots["running"]
    changed = card_changed(snapshot, poll_utc_ms=snapshot.utc_ms - 42_000)
    assert "42 s old" in drawn(changed, 80)


def test_a_card_that_is_gone_is_gone(snapshots: dict[str, Snapshot]) -> None:
    changed = card_changed(snapshots["running"], up=False, poll=None)
    assert "gone" in drawn(changed, 80)
    assert "is gone" in log_line(changed)


def test_rows_that_wait_are_shown(snapshots: dict[str, Snapshot]) -> None:
    assert "1,234 rows wait for the store" in drawn(replace(snapshots["running"], rows_waiting=1234), 80)


def test_a_mismatch_is_shown(snapshots: dict[str, Snapshot]) -> None:
    assert "2 of 585 differ" in drawn(card_changed(snapshots["running"], n_mismatches=2), 120)


def test_what_comes_next(snapshots: dict[str, Snapshot], at: Callable[[Snapshot, int], Snapshot]) -> None:
    assert "next in 03:00 · gradient check in 53:00" in drawn(snapshots["running"], 80)
    last_minute = at(snapshots["running"], snapshots["running"].protocol.duration_ms - 60_000)
    assert "next in" not in drawn(last_minute, 80)
    assert "00:01:00 to go" in drawn(last_minute, 80)


def test_a_plan_without_cadences_is_drawn(snapshots: dict[str, Snapshot]) -> None:
    plan = replace(snapshots["running"].protocol, rotate_ms=0, check_ms=0)
    assert "next in" not in drawn(replace(snapshots["running"], protocol=plan), 80)


def test_the_name_of_a_criterion_is_foreign_too(snapshots: dict[str, Snapshot]) -> None:
    finding = replace(snapshots["running"].cards[0].findings[0], criterion="\x1b[2J", required=True)
    for state in State:
        changed = card_changed(snapshots["running"], findings=(replace(finding, state=state),))
        assert "\x1b" not in drawn(changed, 80) + log_line(changed)
