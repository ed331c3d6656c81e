"""gradient: every due check was made, and the load's own gradients were right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from soak.core.criteria.base import Card, Conclusion, Evidence, Standing, earliest
from soak.core.protocol import Limits
from soak.core.records import Cause, GradientCheck, State, TensorError

CHECKED = ("dq", "dk", "dv")  # O is reported, and covered by what follows from it


class Gradient:
    name: ClassVar[str] = "gradient"

    def __init__(self, card: Card) -> None:
        self._card = card
        self._made = 0  # bit k: check k was made
        self._worst = 0.0  # largest error as a share of its limit
        self._failed = ""
        self._first_ms: int | None = None

    def fold(self, record: Evidence) -> None:
        if not isinstance(record, GradientCheck):
            return
        self._made |= 1 << record.index
        broken = broken_limits(record, self._card.protocol.limits)
        self._worst = max([self._worst, *_shares(record, self._card.protocol.limits)])
        if broken:
            first = earliest(self._first_ms, record.at_ms)
            if first != self._first_ms:
                self._failed, self._first_ms = f"check {record.index}: {'; '.join(broken)}", first

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
            state, reason = State.UNKNOWN, f"{made} of {due} due checks were made"
        elif not self._made:
            state, reason = State.UNKNOWN, "no check was made yet"
        else:
            state, reason = State.PASS, f"{self._made.bit_count()} checks, all within the limits"
        return Conclusion(
            state,
            reason,
            value=self._worst if self._made else None,
            threshold=1.0,
            unit="of the limit, largest error",
            cause=Cause.HARDWARE if state is State.FAIL else None,
            at_ms=self._first_ms,
        )


def broken_limits(check: GradientCheck, limits: Limits) -> list[str]:
    """What is wrong with a check's figures, in words; written so that NaN, inf and emptiness fail."""
    by_name = {error.tensor: error for error in check.errors}
    broken = []
    for name in CHECKED:
        error, limit = by_name.get(name), _absolute(limits)[name]
        if error is None or error.n_elements == 0:
            broken.append(f"{name} was not compared")
            continue
        if error.n_nonfinite > 0:
            broken.append(f"{name} has {error.n_nonfinite} NaN or inf")
        elif not error.max_abs < limit:
            broken.append(f"{name} differs by {error.max_abs:.2e} (limit {limit:.0e})")
        elif not error.relative_l2 < limits.gradient_relative_l2:
            limit = limits.gradient_relative_l2
            broken.append(f"{name} differs by {error.relative_l2:.2e} in relative L2 (limit {limit:.0e})")
    return broken


def _absolute(limits: Limits) -> Mapping[str, float]:
    return {
        "dq": limits.gradient_max_abs_dq,
        "dk": limits.gradient_max_abs_dk,
        "dv": limits.gradient_max_abs_dv,
    }


def _shares(check: GradientCheck, limits: Limits) -> list[float]:
    def share(error: TensorError) -> float:
        worst = max(
            error.max_abs / _absolute(limits)[error.tensor], error.relative_l2 / limits.gradient_relative_l2
        )
        return worst if worst < float("inf") else float("inf")  # NaN too is as bad as can be

    return [share(error) for error in check.errors if error.tensor in CHECKED]
