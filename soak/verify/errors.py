"""How far a result is from the float64 reference, head by head, in figures with limits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from soak_kernels.reference import reference_slice

from soak.core.records import TensorError
from soak.load.gradient import Outputs, error_of
from soak.load.recipe import Inputs
from soak.verify.messages import Figure


def errors(
    inputs: Inputs, outputs: Outputs, *, causal: bool, names: tuple[str, ...] = Outputs._fields
) -> Mapping[str, TensorError]:
    """Of the named outputs, over every (batch, head)."""
    results: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    truths: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    batch, heads = inputs.q.shape[:2]
    for b in range(batch):
        for h in range(heads):
            truth = reference_slice(*(x[b, h] for x in inputs), causal=causal)
            for name in names:
                result = getattr(outputs, name)[b, h].detach().cpu()
                expected = getattr(truth, name)
                truths[name].append(expected)
                results[name].append(_held(result, expected))
    return {name: error_of(name, torch.stack(results[name]), torch.stack(truths[name])) for name in names}


def _held(result: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """The result in float64, moved towards the truth by the spacing of the smallest numbers of its type: of a
    truth of 1e-8 a float16 holds no digit, and that is no kernel's fault. A log-sum-exp of no key is -inf in
    both."""
    finest = torch.finfo(result.dtype)
    difference = result.double() - truth
    excess = difference.sign() * (difference.abs() - finest.smallest_normal * finest.eps).clamp(min=0.0)
    return torch.where(result == truth, truth.nan_to_num(neginf=0.0), truth + excess)


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
