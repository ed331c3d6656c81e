"""The contract's table of scenarios: every one ends as it says, live and by the store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from soak.core.records import Cause, Reading, State, Verdict
from soak.core.resume import OnInterrupt
from soak.simulate import SCENARIOS

PASS, FAIL, UNSURE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
TABLE = {
    "healthy": (PASS, None, None),
    "ecc-at-32h": (FAIL, "ecc", Cause.HARDWARE),
    "utilisation-drop-at-18h": (FAIL, "utilisation", Cause.HARDWARE),
    "thermal-drift": (FAIL, "temperature", Cause.ENVIRONMENT),
    "hang": (FAIL, "faults", Cause.HARDWARE),
    "lost-gpu": (FAIL, "faults", Cause.HARDWARE),
    "bit-flip": (FAIL, "integrity", Cause.HARDWARE),
    "no-ecc-sensor": (UNSURE, "ecc", None),
    "restart": (PASS, None, None),
    "disk-full": (PASS, None, None),
    "disk-full-for-good": (UNSURE, "coverage", None),
    "clock-step": (PASS, None, None),
}
HOUR_MS = 3_600_000


def deciding(judgement: Any, card: int = 0) -> set[str]:
    """The required criteria that keep a card from PASS."""
    found = judgement.cards[card].findings
    return {f.criterion for f in found if f.required and f.state is not State.PASS and not f.waived}


def test_the_table_is_complete() -> None:
    assert set(SCENARIOS) == set(TABLE)
    assert {name: scenario.verdict for name, scenario in SCENARIOS.items()} == {
        name: verdict for name, (verdict, *_) in TABLE.items()
    }
    assert {name: scenario.criterion for name, scenario in SCENARIOS.items()} == {
        name: criterion for name, (_, criterion, _) in TABLE.items()
    }


@pytest.mark.parametrize("n_gpus", [1, 2])
@pytest.mark.parametrize("name", sorted(TABLE))
def test_48_hours(theatre: Any, name: str, n_gpus: int) -> None:
    """Faults hit the first card; the others end as if alone, but for what the machine does to all."""
    verdict, criterion, cause = TABLE[name]
    played = theatre.play(name, n_gpus)
    assert played.live.verdict is verdict
    first = {f.criterion: f for f in played.live.cards[0].findings}
    if criterion is not None:
        assert first[criterion].state is (State.FAIL if verdict is FAIL else State.UNKNOWN)
        assert first[criterion].cause is cause
        assert criterion in deciding(played.live)
    of_the_machine = name == "disk-full-for-good"
    for card in played.live.cards[1:]:
        assert card.verdict is (UNSURE if of_the_machine else PASS)
    if of_the_machine:
        assert played.store.rows_waiting > 0
        return
    assert played.stored.verdict is verdict
    assert [c.findings for c in played.stored.cards] == [c.findings for c in played.live.cards]


def test_when_it_began_is_told(theatre: Any) -> None:
    expected = {
        "ecc-at-32h": 32 * HOUR_MS,
        "utilisation-drop-at-18h": 18 * HOUR_MS,
        "lost-gpu": 12 * HOUR_MS,
        "hang": 10 * HOUR_MS + 60_000,
    }
    for name, at_ms in expected.items():
        (finding,) = [f for f in theatre.play(name).live.cards[0].findings if f.criterion == TABLE[name][1]]
        assert finding.at_ms is not None
        assert abs(finding.at_ms - at_ms) <= 1_000, name


def test_the_rows_of_a_healthy_run_are_those_of_the_plan(theatre: Any) -> None:
    record = theatre.play("healthy", 2).record
    assert record.rows == {
        "run": 1, "attempt": 1, "device": 2, "sample": 2 * 576, "rotation": 2 * 288,
        "gradient_check": 2 * 48, "integrity_check": 2 * 288, "incident": 0, "finding": 2 * 8,
    }  # fmt: skip
    assert all(slot.closed and slot.observed_ms == 300_000 and slot.n_polls == 300 for slot in record.slots)
    assert {check.at_ms - check.due_ms for check in record.gradient_checks} == {45_000}


def test_a_lost_card_is_down_and_never_answers_again(theatre: Any) -> None:
    """A01: no reading of another card under its name; the others go on to the end."""
    record = theatre.play("lost-gpu", 2).record
    lost, other = (device.gpu for device in record.info.devices)
    seen = {slot.index for slot in record.slots if slot.gpu == lost and slot.n_polls}
    assert max(seen) == 12 * 12 - 1
    assert {slot.index for slot in record.slots if slot.gpu == other and slot.n_polls} == set(range(576))
    assert {i.gpu for i in record.incidents} == {lost}
    assert "check_late" not in {i.kind for i in record.incidents}
    assert record.attempts[0].elapsed_ms == 48 * HOUR_MS


def test_without_any_card_the_run_ends(theatre: Any) -> None:
    record = theatre.play("lost-gpu").record
    assert (record.attempts[0].end, record.attempts[0].reason) == ("failed", "no card can work any more")
    assert 12 * HOUR_MS < record.attempts[0].elapsed_ms < 12 * HOUR_MS + 60_000


# -- waivers, interruptions, disks


def test_no_ecc_with_a_waiver(theatre: Any) -> None:
    played = theatre.play("no-ecc-sensor", 2, waived=("ecc",))
    assert (played.live.words, played.stored.words) == ("PASS, ecc waived", "PASS, ecc waived")
    assert played.live.verdict is PASS


def test_a_waiver_changes_nothing_about_an_error(theatre: Any) -> None:
    assert theatre.play("ecc-at-32h", waived=("ecc",)).live.verdict is FAIL


def test_restart_with_a_second_stretch(theatre: Any) -> None:
    played = theatre.play("restart", 2)
    first, second = played.record.attempts
    assert (first.end, first.elapsed_ms, len(first.stretches)) == ("interrupted", 20 * HOUR_MS, 1)
    assert (second.end, second.elapsed_ms, len(second.stretches)) == ("completed", 48 * HOUR_MS, 1)
    assert second.started_utc_ms - first.started_utc_ms == 20 * HOUR_MS + 300_000
    assert played.stored.words == "PASS"
    assert {slot.attempt for slot in played.record.slots} == {1, 2}


def test_restart_with_continue_stays_inconclusive(theatre: Any) -> None:
    played = theatre.play("restart", 2, on_interrupt=OnInterrupt.CONTINUE)
    (attempt,) = played.record.attempts
    assert [stretch.start_ms for stretch in attempt.stretches] == [0, 20 * HOUR_MS]
    assert attempt.stretches[1].utc_ms - attempt.started_utc_ms == 20 * HOUR_MS + 300_000
    assert (attempt.end, attempt.elapsed_ms) == ("completed", 48 * HOUR_MS)
    assert played.live.verdict is played.stored.verdict is UNSURE
    for judgement in (played.live, played.stored):
        assert [deciding(judgement, card) for card in range(2)] == [{"continuity"}] * 2
    assert played.record.rows["sample"] == 2 * 576  # the gap is not elapsed time
    assert [c.findings for c in played.stored.cards] == [c.findings for c in played.live.cards]


def test_restart_with_stop_closes_the_run(theatre: Any) -> None:
    played = theatre.play("restart", on_interrupt=OnInterrupt.STOP)
    (attempt,) = played.record.attempts
    assert (attempt.end, attempt.elapsed_ms) == ("closed", 20 * HOUR_MS)
    assert played.live.verdict is played.stored.verdict is UNSURE


def test_a_full_disk_is_told_and_loses_nothing(theatre: Any) -> None:
    record = theatre.play("disk-full").record
    assert [i.kind for i in record.incidents] == ["store_error", "store_recovered"]
    assert record.rows["sample"] == 576
    assert record.attempts[0].closing.dropped == 0


def test_steps_of_the_clock_are_told_and_move_nothing(theatre: Any) -> None:
    """A11: -2 h at hour 10, +26 h at hour 20."""
    record = theatre.play("clock-step").record
    assert [(i.kind, i.at_ms, i.data["step_ms"]) for i in record.incidents] == [
        ("clock_step", 10 * HOUR_MS, -2 * HOUR_MS),
        ("clock_step", 20 * HOUR_MS, 26 * HOUR_MS),
    ]
    assert [row.due_ms for row in record.gradient_checks] == [k * HOUR_MS for k in range(48)]
    assert record.rows["sample"] == 576


# -- shorter, longer, odd


@pytest.mark.parametrize("name", sorted(set(TABLE) - {"disk-full-for-good"}))
@pytest.mark.parametrize("n_gpus", [1, 2])
def test_a_short_run_ends_as_a_long_one(theatre: Any, name: str, n_gpus: int) -> None:
    """An hour: a drift of 1 °C an hour is scaled with it, a fault lasts as long as ever."""
    protocol = theatre.config(duration="2h", warmup="5m").protocol()
    played = theatre.play(name, n_gpus, protocol=protocol)
    assert played.live.verdict is played.stored.verdict is TABLE[name][0]
    assert [c.findings for c in played.stored.cards] == [c.findings for c in played.live.cards]


@pytest.mark.parametrize(
    "changes",
    [
        {"duration_ms": 630_000},  # the last slot, rotation and check are cut
        {"duration_ms": 601_000},
        {"sample_ms": 7_000},
        {"rotate_ms": 13_000, "check_ms": 601_000},
        {"poll_ms": 250},
        {"poll_ms": 5_000},
        {"sample_ms": 600_000, "warmup_ms": 0},  # one slot
        {"sample_ms": 1_000, "warmup_ms": 1_000},  # a slot a poll
    ],
)
def test_odd_cadences_of_a_healthy_run_pass(theatre: Any, changes: dict[str, int]) -> None:
    played = theatre.play("healthy", 2, protocol=theatre.short(**changes))
    assert played.live.words == played.stored.words == "PASS", deciding(played.live)
    assert [c.findings for c in played.stored.cards] == [c.findings for c in played.live.cards]


def test_a_run_shorter_than_its_slot_lacks_a_slot_after_warm_up_and_nothing_else(theatre: Any) -> None:
    played = theatre.play("healthy", protocol=theatre.short(duration_ms=50_000))
    assert deciding(played.live) == deciding(played.stored) == {"temperature"}


def test_the_same_seed_gives_the_same_rows(theatre: Any) -> None:
    protocol = theatre.short()
    one, two = (theatre.play("healthy", 3, protocol=protocol).record for _ in range(2))
    assert one == two
    other = theatre.play("healthy", 3, protocol=replace(protocol, seed=8)).record
    assert one.rotations != other.rotations
    assert one.slots != other.slots


def test_ecc_that_stops_answering_is_no_pass(theatre: Any) -> None:
    """A04, second form: a telemetry fault, not a waiver."""
    from soak.simulate import world

    class Mute(world.SimulatedTelemetry):
        def _readings(self, index: int, device: Any, at_ms: int) -> Any:
            readings, ecc = super()._readings(index, device, at_ms)
            assert ecc is not None
            muted = dict.fromkeys(ecc, Reading.unsupported("NotSupported"))
            return readings, muted if at_ms >= 300_000 else ecc

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("soak.simulate.drive.SimulatedTelemetry", Mute)
        played = theatre.play("healthy", protocol=theatre.short(), waived=("ecc",))
    assert played.live.verdict is played.stored.verdict is UNSURE
    assert {"ecc", "coverage", "utilisation"} <= deciding(played.live)
