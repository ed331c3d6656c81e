"""gradient: every due check made, every figure a figure and within its limit (A16, A17, A18 ii)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from soak.core.criteria import broken_limits
from soak.core.records import Cause, Finding, State

NAN, INF = float("nan"), float("inf")


def judged(make: Any, checks: list[Any], standing: Any, **card: Any) -> Finding:
    judge = make.judge(**card)
    for check in checks:
        judge.fold(check)
    found: Finding = make.by_name(judge.findings(standing))["gradient"]
    return found


def all_checks(make: Any, **of_the_second: Any) -> list[Any]:
    return [make.check(0), make.check(1, **of_the_second), make.check(2)]


def test_every_check_within_the_limits_passes(make: Any) -> None:
    found = judged(make, all_checks(make), make.ended())
    assert (found.state, found.reason) == (State.PASS, "3 checks, all within the limits")
    assert found.value == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"dq": {"max_abs": 1e-3}}, "dq differs by 1.00e-03 (limit 1e-03)"),  # not less than the limit
        ({"dk": {"max_abs": 1.1e-3}}, "dk differs by"),
        ({"dv": {"max_abs": 5e-3}}, "dv differs by"),
        ({"dq": {"relative_l2": 2e-3}}, "dq differs by 2.00e-03 in relative L2"),
        ({"dk": {"relative_l2": 1.0}}, "dk differs by"),
        ({"dv": {"relative_l2": 1.0}}, "dv differs by"),
        # what passes `error > limit` and must not (A16)
        ({"dq": {"n_nonfinite": 1}}, "dq has 1 NaN or inf"),
        ({"dk": {"n_nonfinite": 4096, "max_abs": 0.0}}, "dk has 4096 NaN or inf"),
        ({"dq": {"max_abs": NAN}}, "dq differs by nan"),
        ({"dq": {"max_abs": INF}}, "dq differs by inf"),
        ({"dq": {"relative_l2": NAN}}, "dq differs by nan in relative L2"),
        ({"dv": {"relative_l2": INF}}, "dv differs by inf in relative L2"),
        ({"dq": {"max_abs": -0.5}}, "dq differs by -5.00e-01"),  # a signed maximum of negative errors
        ({"dq": {"relative_l2": -1e-4}}, "dq differs by"),
        ({"dv": {"n_elements": 0, "max_abs": 0.0, "relative_l2": 0.0}}, "dv was not compared"),
        ({"dk": None}, "dk was not compared"),
    ],
)
def test_a_check_fails(make: Any, figures: Any, words: str) -> None:
    (broken,) = broken_limits(make.check(1, **figures), make.protocol().limits)
    assert broken.startswith(words)
    found = judged(make, all_checks(make, **figures), make.standing(250_000))
    assert found.state is State.FAIL
    assert found.reason.startswith(f"check 1: {words}")
    assert found.at_ms == 205_000
    ours = "not compared" in words  # a tensor that our own program left out says nothing about the card
    assert found.cause is (Cause.SOFTWARE if ours else Cause.HARDWARE)
    assert found.value is not None
    assert found.value >= 1.0


def test_an_empty_check_fails(make: Any) -> None:
    check = make.check(0, errors=())
    assert len(broken_limits(check, make.protocol().limits)) == 3
    assert judged(make, [check], make.standing(10_000)).state is State.FAIL


def test_a_bad_figure_is_not_hidden_by_a_good_one_of_the_same_tensor(make: Any) -> None:
    good, bad = make.tensor("dq"), make.tensor("dq", max_abs=1.0)
    rest = (make.tensor("dk"), make.tensor("dv"))
    for errors in ((good, bad, *rest), (bad, good, *rest)):
        assert judged(make, [make.check(0, errors=errors)], make.standing(1)).state is State.FAIL


def test_the_output_is_reported_and_not_judged(make: Any) -> None:
    assert judged(make, all_checks(make, o={"max_abs": 1.0}), make.ended()).state is State.PASS


def test_the_worst_figure_is_a_share_of_its_limit(make: Any) -> None:
    assert judged(make, all_checks(make, dv={"max_abs": 4.5e-3}), make.ended()).value == pytest.approx(0.9)
    assert judged(make, all_checks(make, dq={"max_abs": 3e-3}), make.ended()).value == pytest.approx(3)
    for figures in ({"dq": {"relative_l2": NAN}}, {"dk": {"n_nonfinite": 1}}, {"dv": None}):
        value = judged(make, all_checks(make, **figures), make.ended()).value
        assert value is not None
        assert math.isinf(value)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_check_is_unknown(make: Any, missing: int) -> None:
    found = judged(make, [c for c in all_checks(make) if c.index != missing], make.ended())
    assert (found.state, found.reason) == (State.UNKNOWN, "2 of 3 due checks were made")


def test_no_check_is_unknown(make: Any) -> None:
    assert judged(make, [], make.standing(0)).reason == "no check was made yet"
    assert judged(make, [], make.ended()).state is State.UNKNOWN


def test_a_check_twice_is_one_check(make: Any) -> None:
    found = judged(make, [make.check(0), make.check(0), make.check(2)], make.ended())
    assert found.state is State.UNKNOWN


def test_a_check_from_beyond_the_end_is_not_one_that_was_due(make: Any) -> None:
    found = judged(make, [make.check(0), make.check(1), make.check(3)], make.ended())
    assert found.state is State.UNKNOWN


def test_a_check_is_missing_when_its_own_interval_is_over(make: Any) -> None:
    """Until then it is at work: `pass` so far."""
    made = [make.check(0)]
    assert judged(make, made, make.standing(399_999)).state is State.PASS
    assert judged(make, made, make.standing(400_000)).state is State.UNKNOWN
    assert judged(make, [make.check(0), make.check(1)], make.standing(400_000)).state is State.PASS


def test_what_an_interruption_cut_short_is_not_due(make: Any) -> None:
    made = [make.check(0), make.check(1)]
    assert judged(make, made, make.ended(590_000)).state is State.PASS
    assert judged(make, made, make.ended(600_000)).state is State.UNKNOWN


def test_a_failure_after_the_last_sample_counts(make: Any) -> None:
    """20 s before the end, and later still (A18 ii)."""
    late = make.check(2, dq={"max_abs": 1.0}, at_ms=615_000)
    found = judged(make, [make.check(0), make.check(1), late], make.ended())
    assert (found.state, found.at_ms) == (State.FAIL, 615_000)


def test_the_first_failure_is_named_whatever_the_order(make: Any) -> None:
    bad = {"dq": {"max_abs": 1.0}}
    checks = [make.check(0), make.check(1, **bad), make.check(2, **bad)]
    for order in (checks, checks[::-1]):
        found = judged(make, order, make.ended())
        assert found.at_ms == 205_000
        assert found.reason.startswith("check 1")


@pytest.mark.parametrize("std", [(1.0, 1.0), (0.5, 0.1), (0.25, 1.0)])
def test_limits_mean_nothing_for_inputs_of_another_scale(make: Any, std: tuple[float, float]) -> None:
    """Neither a pass nor a fail (A17)."""
    for figures in ({}, {"dq": {"max_abs": 1.0}}):
        found = judged(make, all_checks(make, input_std=std, **figures), make.ended())
        assert found.state is State.UNKNOWN
        assert found.reason == "2 of 3 due checks were made, 1 with inputs of another scale than the recipe's"
