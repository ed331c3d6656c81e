"""What holds of every run, whatever goes wrong in it: drawn faults, one to three cards, interruptions."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from soak.core.records import RunRecord, State, Verdict
from soak.core.resume import OnInterrupt
from soak.core.verdict import judge
from soak.run import Run
from soak.simulate import Fault, Scenario
from soak.simulate.drive import _Playing
from soak.simulate.scenarios import FULL_MS
from soak.simulate.world import SimulatedTelemetry
from soak.store.memory import MemoryStore

SHORT = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
TABLES = {
    "attempts": "attempt",
    "slots": "sample",
    "rotations": "rotation",
    "gradient_checks": "gradient_check",
    "integrity_checks": "integrity_check",
    "incidents": "incident",
    "findings": "finding",
}


def at(seconds: int) -> int:
    """The time of a 48 h run that is so many seconds into one of ten minutes."""
    return -(-seconds * 1_000 * FULL_MS // 600_000)


@st.composite
def faults(draw: Any, kinds: tuple[str, ...], n_gpus: int) -> Fault:
    kind = draw(st.sampled_from(kinds))
    begin = draw(st.integers(1, 598))
    lasts_ms = draw(st.sampled_from([1, 3, 8, 13, 61, 70, 300])) * 1_000
    begin_ms, gpu = at(begin), draw(st.integers(0, n_gpus - 1))
    match kind:
        case "utilisation":
            return Fault(kind, begin_ms, begin_ms + lasts_ms, gpu, draw(st.sampled_from([0.0, 40.0, 94.0])))
        case "hang":
            return Fault(kind, begin_ms, begin_ms + lasts_ms, gpu)
        case "drift":
            return Fault(kind, begin_ms, None, gpu, draw(st.sampled_from([0.1, 1.0])))
        case "no-ecc":
            return Fault(kind, 0, None, gpu)
        case "restart":
            return Fault(kind, begin_ms, begin_ms + 40_000, None)
        case "disk-full":  # for good is another matter: then only the live run knows
            begin_ms = at(draw(st.integers(1, 520)))
            return Fault(kind, begin_ms, begin_ms + draw(st.integers(1, 70)) * 1_000, None)
        case "clock-step":
            return Fault(kind, begin_ms, None, None, draw(st.sampled_from([-7_200_000, 400, 9_000])))
    return Fault(kind, begin_ms, None, gpu, 1.0)


OF_CARDS = ("ecc", "utilisation", "hang", "lost", "bit-flip", "drift")
OF_MACHINES = ("restart", "disk-full", "clock-step", "no-ecc")


@st.composite
def plays(draw: Any, kinds: tuple[str, ...] = OF_CARDS + OF_MACHINES) -> dict[str, Any]:
    """What `theatre.play` takes: a plan of up to four faults, one of a kind."""
    n_gpus = draw(st.integers(1, 3))
    plan = draw(st.lists(faults(kinds, n_gpus), max_size=4, unique_by=lambda fault: fault.kind))
    # A process that ends while the disk is full loses what waits; the simulated store would keep it.
    assume(not {"restart", "disk-full"} <= {fault.kind for fault in plan})
    scenario = Scenario("drawn", "drawn faults", Verdict.INCONCLUSIVE, None, tuple(plan))
    return {
        "scenario": scenario,
        "n_gpus": n_gpus,
        "on_interrupt": draw(st.sampled_from(OnInterrupt)),
        "waived": draw(st.sampled_from([(), ("ecc",)])),
    }


def states(judgement: Any) -> list[dict[str, State]]:
    return [{f.criterion: f.state for f in card.findings} for card in judgement.cards]


# -- (c), (d): live is what the store says, at every border; and no PASS before the end


@SHORT
@given(play=plays())
def test_live_is_what_the_store_says(theatre: Any, play: dict[str, Any]) -> None:
    compared = 0

    def compare(run: Run, store: MemoryStore) -> None:
        nonlocal compared
        live = run.snapshot()
        assert live.verdict is not Verdict.PASS
        assert all(f.reason for card in live.cards for f in card.findings)
        assert all(
            (f.cause is None) == (f.state is not State.FAIL) for card in live.cards for f in card.findings
        )
        if not store.flush(0):
            return
        record = store.record()
        if record.attempts[-1].elapsed_ms == live.elapsed_ms and not run.is_over:
            compared += 1
            stored = judge(record, run.snapshot().protocol)
            assert [c.findings for c in stored.cards] == [c.findings for c in live.cards]
            assert stored.verdict is live.verdict

    played = theatre.play(play.pop("scenario"), protocol=theatre.short(), on_tick=compare, **play)
    assert compared or played.record.attempts[0].elapsed_ms < 60_000
    if played.store.rows_waiting:  # the last card was lost while the disk was full: only the live run knows
        assert played.live.verdict is not Verdict.PASS
        return
    assert played.stored.verdict is played.live.verdict
    assert [c.findings for c in played.stored.cards] == [c.findings for c in played.live.cards]
    closing = played.record.attempts[-1].closing
    assert closing is not None
    assert closing.rows == played.record.rows


@SHORT
@given(play=plays())
def test_a_fail_is_final(theatre: Any, play: dict[str, Any]) -> None:
    """Whatever was FAIL once is FAIL from then on, of its card, criterion and attempt, and at the end."""
    failed: set[tuple[int, str, str]] = set()

    def remember(run: Run, _: MemoryStore) -> None:
        shot = run.snapshot()
        now = {
            (shot.attempt.number, f.gpu, f.criterion)
            for card in shot.cards
            for f in card.findings
            if f.state is State.FAIL
        }
        assert {key for key in failed if key[0] == shot.attempt.number} <= now
        failed.update(now)

    played = theatre.play(play.pop("scenario"), protocol=theatre.short(), on_tick=remember, **play)
    last = played.live if played.store.rows_waiting else played.stored
    at_end = {(f.gpu, f.criterion) for c in last.cards for f in c.findings if f.state is State.FAIL}
    assert {key[1:] for key in failed} <= at_end


# -- (a): removing records


@st.composite
def removals(draw: Any) -> tuple[dict[str, Any], int, bool]:
    """Which share of each table goes (by a seed), and whether the closing goes; the store counts what is
    there, in the transaction that reads it."""
    shares = {name: draw(st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0])) for name in TABLES}
    shares["devices"] = draw(st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0]))
    return shares, draw(st.integers(0, 1 << 30)), draw(st.sampled_from([False, False, True]))


def without(record: RunRecord, removal: Any) -> RunRecord:
    shares, seed, no_closing = removal
    source = random.Random(seed)

    def kept(rows: Any, share: float) -> tuple[Any, ...]:
        return tuple(row for row in rows if source.random() >= share)

    tables = {name: kept(getattr(record, name), shares[name]) for name in TABLES}
    devices = kept(record.info.devices, shares["devices"])
    rows = {**record.rows, **{TABLES[name]: len(kept_rows) for name, kept_rows in tables.items()}}
    rows["device"] = len(devices)
    if no_closing and tables["attempts"]:
        *before, last = tables["attempts"]
        tables["attempts"] = (*before, replace(last, closing=None))
    return replace(record, info=replace(record.info, devices=devices), rows=rows, **tables)


@SHORT
@given(play=plays(), halfway=st.integers(0, 30), data=st.data())
def test_removing_records_never_makes_a_pass(
    theatre: Any, play: dict[str, Any], halfway: int, data: Any
) -> None:
    """Of a run that has ended, and of one in the middle."""
    middle: list[RunRecord] = []

    def keep(_: Run, store: MemoryStore) -> None:
        if len(middle) <= halfway and store.flush(0):
            middle.append(store.record())

    played = theatre.play(play.pop("scenario"), protocol=theatre.short(), on_tick=keep, **play)
    records = [*middle[-1:], played.record]
    records = [r for r in records if judge(r, played.protocol).verdict is not Verdict.PASS]
    assume(records)
    for record in records:
        for _ in range(12):
            less = without(record, data.draw(removals()))
            assert judge(less, played.protocol).verdict is not Verdict.PASS


@SHORT
@given(data=st.data())
def test_removing_records_ends_a_pass(healthy: Any, data: Any) -> None:
    """Whatever is missing is missed: the closing record counts every table, findings too."""
    removal = data.draw(removals())
    less = without(healthy.record, removal)
    changed = any(getattr(less, name) != getattr(healthy.record, name) for name in (*TABLES, "info"))
    assert (judge(less, healthy.protocol).verdict is Verdict.PASS) == (not changed)


@pytest.fixture(scope="module")
def healthy(theatre: Any) -> Any:
    played = theatre.play("healthy", 2, protocol=theatre.short())
    assert played.stored.verdict is Verdict.PASS
    return played


# -- (f): stretches against second-by-second polls


class Settled(SimulatedTelemetry):
    """A temperature that stands still: a stretch has one, seconds of a ramp would have many."""

    def _temperature_c(self, index: int, device: Any, at_ms: int) -> float:  # noqa: ARG002 - as overridden
        return 72.0 + index


def told(record: RunRecord) -> list[tuple[Any, ...]]:
    """Its incidents in the order of their time; a longer tick may number them otherwise."""
    return sorted((i.attempt, i.at_ms, i.kind, i.gpu or "", i.detail) for i in record.incidents)


def every_second(playing: Any) -> int:
    """A tick a poll, as in a real run."""
    return int(playing._world.now_ms() + playing._world.protocol.poll_ms)


@settings(SHORT, max_examples=12)
@given(play=plays(("ecc", "utilisation", "hang", "bit-flip", "restart", "clock-step", "no-ecc")))
def test_stretches_are_as_good_as_polls(theatre: Any, play: dict[str, Any]) -> None:
    """The same run, once in stretches of constant readings, once with a tick and a poll a second."""
    scenario = play.pop("scenario")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("soak.simulate.drive.SimulatedTelemetry", Settled)
        in_stretches = theatre.play(scenario, protocol=theatre.short(), **play)
        patch.setattr(_Playing, "_next_ms", every_second)
        in_seconds = theatre.play(scenario, protocol=theatre.short(), **play)
    assert in_stretches.record.slots == in_seconds.record.slots
    assert in_stretches.record.rotations == in_seconds.record.rotations
    assert in_stretches.record.gradient_checks == in_seconds.record.gradient_checks
    assert told(in_stretches.record) == told(in_seconds.record)
    assert states(in_stretches.live) == states(in_seconds.live)
    assert in_stretches.record.attempts == in_seconds.record.attempts
