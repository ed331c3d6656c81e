"""utilisation: who is blamed for bad seconds; the verdict is a FAIL whoever it was."""

from __future__ import annotations

from typing import Any

import pytest

from soak.core.records import Cause, Finding, State


def judged(make: Any, bad_slots: list[int], incidents: list[tuple[int, str]]) -> Finding:
    judge = make.judge()
    for at_slot, kind in incidents:
        judge.fold(make.incident(kind, at_ms=at_slot * 60_000 + 30_000))
    for index in range(10):
        bad_ms = 30_000 if index in bad_slots else 0
        judge.fold(make.slot(index, bad_ms=bad_ms, first_bad_ms=index * 60_000 if bad_ms else None))
    found: Finding = make.by_name(judge.findings(make.ended()))["utilisation"]
    assert found.state is State.FAIL
    return found


@pytest.mark.parametrize(
    ("bad_slots", "incidents", "cause"),
    [
        ([3], [(3, "worker_stopped")], Cause.ENVIRONMENT),
        ([3], [(2, "worker_killed")], Cause.ENVIRONMENT),  # it was started again in the next slot
        ([3, 4, 5, 6], [(3, "worker_stopped")], Cause.ENVIRONMENT),  # stopped for long, told once
        ([3, 4, 5, 6], [(4, "host_starved"), (5, "host_starved")], Cause.ENVIRONMENT),  # told late
        ([7], [(7, "worker_error")], Cause.SOFTWARE),
        ([3, 6, 7, 8, 9], [(3, "worker_stopped")], Cause.HARDWARE),  # an incident does not excuse the rest
        ([6], [(3, "worker_stopped")], Cause.HARDWARE),
        ([3], [(3, "worker_crashed")], Cause.HARDWARE),
        ([3], [], Cause.HARDWARE),
    ],
)
def test_a_card_is_not_blamed_for_what_took_its_work_away(
    make: Any, bad_slots: list[int], incidents: list[tuple[int, str]], cause: Cause
) -> None:
    assert judged(make, bad_slots, incidents).cause is cause
