"""gradient: every due check was made, and the load's own gradients were right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from soak.core.criteria.base import Card, Conclusion, Evidence, Standing, earliest
from soak.core.protocol import Limits
from soak.core.records import Cause, GradientCheck, State, TensorError

CHECKED = ("dq", "dk", "dv")  # O is reported, and covered by what follows from it
RECIPE_STD = (0.5, 1.0)  # of q, k, v and of dO: the inputs for which the limits mean something
NOT_COMPARED = "was not compared"


class Gradient:
    name: ClassVar[str] = "gradient"

    def __init__(self, card: Card) -> None:
        self._card = card
        self._made = 0  # bit k: check k was made
        self._worst = 0.0  # largest error as a share of its limit
        self._n_other_scale = 0
        self._failed = ""
        self._cause: Cause | None = None
        self._first_ms: int | None = None

    def fold(self, record: Evidence) -> None:
        if not isinstance(record, GradientCheck):
            return
        if record.input_std != RECIPE_STD:
            self._n_other_scale += 1
            return
        self._made |= 1 << record.index
        broken = broken_limits(record, self._card.protocol.limits)
        self._worst = max(self._worst, _worst_share(record, self._card.protocol.limits))
        if broken:
            first = earliest(self._first_ms, record.at_ms)
            if first != self._first_ms:
                self._failed, self._first_ms = f"check {record.index}: {'; '.join(broken)}", first
                ours = all(words.endswith(NOT_COMPARED) for words in broken)
                self._cause = Cause.SOFTWARE if ours else Cause.HARDWARE

    def conclude(self, standing: Standing) -> Conclusion:
        protocol = self._card.protocol
        complete = standing.is_complete(protocol) and standing.ended
        due = (
            protocol.n_checks(protocol.duration_ms)
            if complete
            else protocol.n_checks_settled(standing.elapsed_ms)
        )
        made = (self._made & ((1 << due) - 1)).bit_count()
        if self._failed:
            state, reason = State.FAIL, self._failed
        elif made < due:
            state, reason = State.UNKNOWN, f"{made} of {due} due checks were made{self._beside()}"
        elif not self._made:
            state, reason = State.UNKNOWN, f"no check was made yet{self._beside()}"
        else:
            state, reason = State.PASS, f"{self._made.bit_count()} checks, all within the limits"
        return Conclusion(
            state,
            reason,
            value=self._worst if self._made else None,
            threshold=1.0,
            unit="of the limit, largest error",
            cause=self._cause,
            at_ms=self._first_ms,
        )

    def _beside(self) -> str:
        n = self._n_other_scale
        return f", {n} with inputs of another scale than the recipe's" if n else ""


def broken_limits(check: GradientCheck, limits: Limits) -> list[str]:
    """What is wrong with a check's figures, in words; written so that NaN, inf and emptiness fail."""
    broken = []
    for name in CHECKED:
        errors = [error for error in check.errors if error.tensor == name]
        found = [
            _broken_limit(error, _absolute(limits)[name], limits.gradient_relative_l2) for error in errors
        ]
        broken += [words for words in found if words] if errors else [f"{name} {NOT_COMPARED}"]
    return broken


def _broken_limit(error: TensorError, absolute: float, relative_l2: float) -> str:
    if error.n_elements <= 0:
        return f"{error.tensor} {NOT_COMPARED}"
    if error.n_nonfinite > 0:
        return f"{error.tensor} has {error.n_nonfinite} NaN or inf"
    if not 0 <= error.max_abs < absolute:  # a largest difference below 0 is none
        return f"{error.tensor} differs by {error.max_abs:.2e} (limit {absolute:.0e})"
    if not 0 <= error.relative_l2 < relative_l2:
        return f"{error.tensor} differs by {error.relative_l2:.2e} in relative L2 (limit {relative_l2:.0e})"
    return ""


def _absolute(limits: Limits) -> Mapping[str, float]:
    return {
        "dq": limits.gradient_max_abs_dq,
        "dk": limits.gradient_max_abs_dk,
        "dv": limits.gradient_max_abs_dv,
    }


def _worst_share(check: GradientCheck, limits: Limits) -> float:
    """The largest error as a share of its limit; inf where there is no sound figure."""
    shares = [
        share
        for error in check.errors
        if error.tensor in CHECKED
        for share in (
            error.max_abs / _absolute(limits)[error.tensor],
            error.relative_l2 / limits.gradient_relative_l2,
        )
    ]
    sound = len(shares) >= 2 * len(CHECKED) and all(0 <= share < math.inf for share in shares)
    sound = sound and all(e.n_elements > 0 and not e.n_nonfinite for e in check.errors if e.tensor in CHECKED)
    return max(shares) if sound else math.inf
