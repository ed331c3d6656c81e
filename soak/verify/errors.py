"""How far a result is from the float64 reference, in figures with limits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from soak_kernels.reference import reference

from soak.core.records import TensorError
from soak.load.gradient import Outputs, error_of
from soak.load.recipe import Inputs
from soak.verify.messages import Figure

_NOTHING = 1e-13  # what float64 makes of a zero (dQ and dK of rows that see one key) by rounding


def errors(
    inputs: Inputs, outputs: Outputs, *, causal: bool, names: tuple[str, ...] = Outputs._fields
) -> Mapping[str, TensorError]:
    """Of the named outputs, over every (batch, head)."""
    truth = reference(*inputs, causal=causal)
    return {
        name: error_of(name, *_held(getattr(outputs, name).detach().cpu(), getattr(truth, name)))
        for name in names
    }


def _held(result: torch.Tensor, truth: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both in float64, without what is no kernel's fault.

    The result moves towards the truth by the spacing of the smallest numbers of its type: of 1e-8 a float16
    holds no digit. What float64 makes of a zero by rounding is a zero; and the log-sum-exp of no key, -inf in
    both, is equal.
    """
    finest = torch.finfo(result.dtype)
    truth = torch.where(truth.abs() < _NOTHING, 0.0, truth)
    difference = result.double() - truth
    excess = difference.sign() * (difference.abs() - finest.smallest_normal * finest.eps).clamp(min=0.0)
    both_none = result.isneginf() & truth.isneginf()
    held = torch.where(both_none, 0.0, truth + excess)
    return held, torch.where(both_none, 0.0, truth)


def relative(name: str, error: TensorError, *, l2: float | None, largest: float | None) -> tuple[Figure, ...]:
    """`L2`: relative; `max`: the largest difference relative to the largest value."""
    scale = error.max_reference if error.max_reference > 0 else 1.0
    return (
        Figure(f"{name} L2", error.relative_l2, limit=l2),
        Figure(f"{name} max", error.max_abs / scale, limit=largest),
    )


def nonfinite(found: Mapping[str, TensorError]) -> str:
    """What has NaN or inf, in words; "" where nothing has."""
    wrong = [f"{e.n_nonfinite} of {e.n_elements} in {name}" for name, e in found.items() if e.n_nonfinite]
    return f"NaN or inf: {', '.join(wrong)}" if wrong else ""
