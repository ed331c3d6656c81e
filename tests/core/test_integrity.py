"""integrity: every rotation compared with its golden digests, often enough, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest

from soak.core.records import Cause, Finding, State


def judged(make: Any, rows: list[Any], standing: Any, **card: Any) -> Finding:
    judge = make.judge(**card)
    for row in rows:
        judge.fold(row)
    found: Finding = make.by_name(judge.findings(standing))["integrity"]
    return found


def rotations(make: Any, third: Any = None) -> list[Any]:
    rows = [make.integrity(index) for index in range(6) if index != 3]
    return rows + ([third] if third is not None else [])


def test_all_bit_equal_pass(make: Any) -> None:
    found = judged(make, rotations(make, make.integrity(3)), make.ended())
    assert (found.state, found.value, found.threshold) == (State.PASS, 0.0, 0.0)
    assert found.reason == "60 comparisons, all bit-equal"


@pytest.mark.parametrize(
    ("n_due", "n", "state"),
    [
        (10, 9, State.PASS),  # 90 %
        (10, 8, State.UNKNOWN),
        (1, 1, State.PASS),
        (1, 0, State.UNKNOWN),
        (0, 0, State.UNKNOWN),  # a rotation without a comparison proves nothing
        (1000, 900, State.PASS),
        (1000, 899, State.UNKNOWN),
    ],
)
def test_a_rotation_needs_nine_tenths_of_its_comparisons(make: Any, n_due: int, n: int, state: State) -> None:
    found = judged(make, rotations(make, make.integrity(3, n_due, n)), make.ended())
    assert found.state is state
    if state is State.UNKNOWN:
        assert found.reason == "5 of 6 rotations were compared often enough"


def test_a_missing_rotation_is_unknown(make: Any) -> None:
    assert judged(make, rotations(make), make.ended()).state is State.UNKNOWN
    assert judged(make, [], make.ended()).state is State.UNKNOWN
    assert judged(make, [], make.standing(0)).reason == "no comparison was made yet"


@pytest.mark.parametrize("made", [10, 1])
def test_any_mismatch_fails(make: Any, made: int) -> None:
    found = judged(make, rotations(make, make.integrity(3, 10, made, mismatches=1)), make.standing(400_000))
    assert (found.state, found.cause, found.at_ms) == (State.FAIL, Cause.HARDWARE, 399_000)
    assert found.value == 1.0


def test_a_mismatch_in_the_rotation_in_progress_fails_at_once(make: Any) -> None:
    judge = make.judge()
    judge.fold(make.integrity(0))
    open_row = make.integrity(1, 3, 3, mismatches=1)
    assert make.by_name(judge.findings(make.standing(120_000), [open_row]))["integrity"].state is State.FAIL
    assert make.by_name(judge.findings(make.standing(120_000)))["integrity"].state is State.PASS  # not kept


def test_the_rotation_in_progress_is_not_due_before_the_end(make: Any) -> None:
    rows = [make.integrity(index) for index in range(5)]
    assert judged(make, rows, make.standing(599_999)).state is State.PASS
    assert judged(make, rows, make.ended(599_999)).state is State.PASS  # cut short by an interruption
    assert judged(make, rows, make.ended(600_000)).state is State.UNKNOWN
    assert judged(make, [*rows, make.integrity(5)], make.ended(600_000)).state is State.PASS


def test_a_shorter_last_rotation_is_due_too(make: Any) -> None:
    protocol = make.protocol(duration_ms=660_000)
    rows = [make.integrity(index) for index in range(6)]
    assert judged(make, rows, make.ended(660_000), protocol=protocol).state is State.UNKNOWN
    rows.append(make.integrity(6, 1, 1))
    assert judged(make, rows, make.ended(660_000), protocol=protocol).state is State.PASS


@pytest.mark.parametrize(("proved", "state"), [(True, State.PASS), (None, State.PASS), (False, State.FAIL)])
def test_a_gradient_check_whose_outputs_lack_the_golden_digest_is_a_mismatch(
    make: Any, proved: bool | None, state: State
) -> None:
    """The same inputs gave other bits, if only a check happened to look."""
    rows = [*rotations(make, make.integrity(3)), make.check(1, golden_proved=proved)]
    found = judged(make, rows, make.ended())
    assert found.state is state
    assert found.at_ms == (205_000 if state is State.FAIL else None)
