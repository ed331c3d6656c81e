"""utilisation: busy, with work behind it, for more than 98 % of the time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.core.records import Cause, Finding, Quantity, Slot, State, Stats


def judged(make: Any, slots: list[Slot], standing: Any, **card: Any) -> Finding:
    judge = make.judge(**card)
    for slot in slots:
        judge.fold(slot)
    found: Finding = make.by_name(judge.findings(standing))["utilisation"]
    return found


def lost(make: Any, **seconds: int) -> list[Slot]:
    """Ten whole slots; so many seconds of slot 3 are bad, suspect, unobserved."""
    unobserved_ms = seconds.pop("unobserved", 0) * 1_000
    third = make.slot(
        3,
        observed_ms=60_000 - unobserved_ms,
        first_bad_ms=200_000 if seconds.get("bad") else None,
        **{f"{kind}_ms": n * 1_000 for kind, n in seconds.items()},
    )
    return [third if index == 3 else make.slot(index) for index in range(10)]


# 2 % of 600 s are 12 s.
@pytest.mark.parametrize(
    ("seconds", "state"),
    [
        ({}, State.PASS),
        ({"bad": 11}, State.PASS),
        ({"bad": 12}, State.FAIL),
        ({"suspect": 11}, State.PASS),
        ({"suspect": 12}, State.UNKNOWN),  # suspicion never fails
        ({"unobserved": 11}, State.PASS),
        ({"unobserved": 12}, State.UNKNOWN),  # and missing evidence never passes
        ({"bad": 4, "suspect": 4, "unobserved": 3}, State.PASS),
        ({"bad": 4, "suspect": 4, "unobserved": 4}, State.UNKNOWN),
        ({"bad": 12, "suspect": 40}, State.FAIL),
    ],
)
def test_at_the_end(make: Any, seconds: dict[str, int], state: State) -> None:
    found = judged(make, lost(make, **seconds), make.ended())
    assert found.state is state
    assert found.value == pytest.approx(1 - sum(seconds.values()) / 600)
    assert found.threshold == 0.98
    assert (found.cause is not None) == (state is State.FAIL)


def test_without_records_nothing_passes(make: Any) -> None:
    assert judged(make, [], make.standing(0)).reason == "nothing observed yet"
    for standing in (make.standing(0), make.standing(1_500), make.ended(), make.ended(1_500)):
        assert judged(make, [], standing).state is State.UNKNOWN


def test_300_of_576_samples_all_good_are_not_enough(make: Any) -> None:
    """The 98 % are of the time, not of the rows present (A18 v)."""
    protocol = make.protocol(duration_ms=172_800_000, sample_ms=300_000)
    rows = [make.slot(index, protocol) for index in range(300)]
    found = judged(make, rows, make.ended(172_800_000), protocol=protocol)
    assert found.state is State.UNKNOWN
    assert found.value == pytest.approx(300 / 576)


def test_so_far_is_of_the_elapsed_time_and_fail_of_the_planned(make: Any) -> None:
    rows = [make.slot(0, bad_ms=6_000, first_bad_ms=9_000)]
    assert judged(make, rows, make.standing(60_000)).state is State.UNKNOWN  # 10 % so far, it may recover
    assert judged(make, lost(make, bad=6)[:9], make.standing(540_000)).state is State.PASS
    rows = [make.slot(0, bad_ms=12_000, first_bad_ms=9_000)]
    found = judged(make, rows, make.standing(60_000))
    assert (found.state, found.at_ms) == (State.FAIL, 9_000)  # for good


@pytest.mark.parametrize(("lost_ms", "state"), [(2_000, State.PASS), (2_001, State.UNKNOWN)])
def test_two_polls_may_always_be_lost(make: Any, lost_ms: int, state: State) -> None:
    """2 % of a short run are less than two polls."""
    protocol = make.protocol(duration_ms=50_000)
    rows = [make.slot(0, protocol, observed_ms=50_000 - lost_ms)]
    assert judged(make, rows, make.ended(50_000), protocol=protocol).state is state


@pytest.mark.parametrize(("bad_ms", "state"), [(2_000, State.PASS), (2_001, State.FAIL)])
def test_two_bad_polls_never_fail(make: Any, bad_ms: int, state: State) -> None:
    protocol = make.protocol(duration_ms=50_000)
    rows = [make.slot(0, protocol, bad_ms=bad_ms, first_bad_ms=1)]
    assert judged(make, rows, make.ended(50_000), protocol=protocol).state is state


def with_pcie(slot: Slot, lanes: float) -> Slot:
    return replace(slot, stats={**slot.stats, Quantity.PCIE_WIDTH: Stats(60, *[lanes] * 6)})


def test_a_narrower_link_is_the_hardware(make: Any) -> None:
    rows = [with_pcie(slot, 4 if slot.index == 3 else 16) for slot in lost(make, bad=30)]
    found = judged(make, rows, make.ended())
    assert (found.cause, found.at_ms) == (Cause.HARDWARE, 200_000)
    assert "from 16 to 4 lanes" in found.reason


def test_heat_is_the_environment(make: Any) -> None:
    rows = [replace(slot, throttled_ms=20_000 if slot.index == 3 else 0) for slot in lost(make, bad=30)]
    found = judged(make, rows, make.ended())
    assert (found.state, found.cause) == (State.FAIL, Cause.ENVIRONMENT)
    assert "throttled itself for heat" in found.reason


def test_unexplained_is_the_hardware(make: Any) -> None:
    assert judged(make, lost(make, bad=30), make.ended()).cause is Cause.HARDWARE


# -- who left the card without work


def idle(make: Any, *bad_slots: int) -> list[Slot]:
    return [
        make.slot(i, bad_ms=30_000, first_bad_ms=i * 60_000 + 1_000) if i in bad_slots else make.slot(i)
        for i in range(10)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("worker_killed", Cause.ENVIRONMENT),
        ("worker_stopped", Cause.ENVIRONMENT),
        ("worker_out_of_memory", Cause.ENVIRONMENT),
        ("host_starved", Cause.ENVIRONMENT),
        ("out_of_device_memory", Cause.ENVIRONMENT),
        ("worker_error", Cause.SOFTWARE),
        ("compile_error", Cause.SOFTWARE),
        ("worker_crashed", Cause.HARDWARE),
        ("no_progress", Cause.HARDWARE),
        ("clock_step", Cause.HARDWARE),
    ],
)
def test_idle_seconds_are_blamed_on_what_took_the_work_away(make: Any, kind: str, cause: Cause) -> None:
    rows = [*idle(make, 3, 4), make.incident(kind, 200_000)]
    for order in (rows, rows[::-1]):
        found = judged(make, order, make.ended())
        assert (found.state, found.cause) == (State.FAIL, cause)


def test_it_fails_whoever_it_was(make: Any) -> None:
    rows = idle(make, 3, 4)
    with_reason = [*rows, make.incident("worker_killed", 200_000)]
    assert judged(make, rows, make.ended()).state is judged(make, with_reason, make.ended()).state


def test_a_long_gone_incident_excuses_nothing(make: Any) -> None:
    rows = [*idle(make, 6, 7), make.incident("worker_killed", 200_000)]
    assert judged(make, rows, make.ended()).cause is Cause.HARDWARE


@given(bad=st.sets(st.integers(0, 9), min_size=1), taken=st.sets(st.integers(0, 9), max_size=3))
def test_bad_slots_follow_from_an_incident_without_a_break(make: Any, bad: set[int], taken: set[int]) -> None:
    """Slot by slot: begun in or beside an incident's slot, and from there on as long as slots are bad."""
    followed = set()
    for slot in range(10):
        begins = bool({slot - 1, slot, slot + 1} & taken)
        if slot in bad and (begins or slot - 1 in followed):
            followed.add(slot)
    rows = [*idle(make, *bad), *(make.incident("worker_killed", slot * 60_000 + 1) for slot in taken)]
    found = judged(make, rows, make.ended())
    expected = Cause.ENVIRONMENT if taken and 2 * len(followed) >= len(bad) else Cause.HARDWARE
    assert (found.state, found.cause) == (State.FAIL, expected)
