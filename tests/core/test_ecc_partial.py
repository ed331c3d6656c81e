"""A reading of the error counters that lacks one proves nothing, but the errors that it shows were there."""

from __future__ import annotations

from typing import Any

import pytest

from soak.core.records import Reading, State
from soak.core.slots import SlotFold, Work

UNREADABLE = Reading.unreadable("Query currently inaccessible")


def judged(make: Any, *readings: dict[str, Reading]) -> tuple[State, int]:
    """The ecc criterion after these readings, 10 s apart, and then clean ones; observed milliseconds."""
    protocol = make.protocol()
    device = make.device(ecc_baseline=make.counters(corrected=0, uncorrected=0))
    fold = SlotFold(protocol, device, 1, 0)
    clean = make.counters(corrected=0, uncorrected=0)
    for index in range(60):
        ecc = readings[index] if index < len(readings) else clean
        for second in range(1, 11):
            at_ms = index * 10_000 + second * 1_000
            fold.add(make.poll(at_ms, ecc=ecc if second == 10 else None), at_ms, Work(at_ms, 10.0))
    slots = fold.closed(protocol.duration_ms, at_end=True)
    judge = make.judge(device=device)
    for slot in slots:
        judge.fold(slot)
    found = make.by_name(judge.findings(make.ended()))["ecc"]
    return found.state, sum(slot.observed_ms for slot in slots)


def test_an_error_beside_a_counter_that_cannot_be_read_fails(make: Any) -> None:
    """An uncorrectable error makes the driver reset the card: the next whole reading begins at 0 again."""
    partial = make.counters(corrected=UNREADABLE, uncorrected=1)
    state, observed_ms = judged(make, partial)
    assert state is State.FAIL
    assert observed_ms < 600_000  # it stays no reading: the time is not observed


def test_an_error_beside_a_counter_that_is_absent_fails(make: Any) -> None:
    assert judged(make, make.counters(uncorrected=1))[0] is State.FAIL


@pytest.mark.parametrize("corrected", [0, UNREADABLE])
def test_without_an_error_a_partial_reading_is_none(make: Any, corrected: float | Reading) -> None:
    assert judged(make, make.counters(corrected=corrected, uncorrected=0))[0] is State.PASS
    last = [make.counters(corrected=0, uncorrected=0)] * 50 + [make.counters(corrected=UNREADABLE)] * 10
    assert judged(make, *last)[0] is State.UNKNOWN
