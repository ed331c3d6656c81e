"""The gradient check: slices of the load's own outputs against float64, computed by an independent path.

The reference is `soak_kernels.reference`: explicit formulas in plain products on the CPU, a block of rows at
a time. No autograd, no attention kernel, no BLAS on the card.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from soak_kernels.reference import reference_slice

from soak.core.criteria import broken_limits
from soak.core.protocol import Limits
from soak.core.records import GradientCheck, TensorError
from soak.load.recipe import Inputs, draw_inputs, require_recipe_scale

N_SLICES = 4


class Outputs(NamedTuple):
    """What a step made of one head: o, dq, dk, dv [seq_len, head_dim], lse [seq_len] (natural logarithm)."""

    o: torch.Tensor
    lse: torch.Tensor
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


class Slice(NamedTuple):
    """One (batch, head) of a step: its inputs, each [seq_len, head_dim], and what the load made of them."""

    inputs: Inputs
    outputs: Outputs


CHECKED = ("o", "dq", "dk", "dv")


def choose_slices(seed: int, index: int, *, batch: int, heads: int) -> tuple[tuple[int, int], ...]:
    """Four different random (batch, head) of check `index`, all of them where there are fewer; sorted."""
    drawn = hashlib.blake2b(f"soak/check/{seed}/{index}".encode(), digest_size=8).digest()
    picked = random.Random(int.from_bytes(drawn, "little")).sample(
        range(batch * heads), min(N_SLICES, batch * heads)
    )
    return tuple(divmod(number, heads) for number in sorted(picked))


def compare(slices: Sequence[Slice], *, causal: bool) -> tuple[TensorError, ...]:
    """The errors of O, dQ, dK, dV over all slices. Raises InputScaleError for inputs that are not the
    recipe's."""
    if slices:
        require_recipe_scale(
            Inputs(*(torch.stack(tensors) for tensors in zip(*(s.inputs for s in slices), strict=True)))
        )
    tallies = {name: _Tally() for name in CHECKED}
    for each in slices:
        expected = reference_slice(*each.inputs, causal=causal)
        for name in CHECKED:
            tallies[name].add(getattr(each.outputs, name), getattr(expected, name))
    return tuple(tally.error(name) for name, tally in tallies.items())


def error_of(name: str, result: torch.Tensor, expected: torch.Tensor) -> TensorError:
    """The error of one tensor of any shape against its float64 reference of the same shape."""
    tally = _Tally()
    tally.add(result, expected)
    return tally.error(name)


class _Tally:
    """Sums of one tensor's errors over slices; pairs with a NaN or inf are counted and left out of the
    sums."""

    def __init__(self) -> None:
        self.n_elements = self.n_nonfinite = self.n_compared = 0
        self.max_abs = self.max_reference = self.squares = self.reference_squares = 0.0

    def add(self, result: torch.Tensor, expected: torch.Tensor) -> None:
        assert result.shape == expected.shape, (result.shape, expected.shape)
        result = result.double()
        finite = torch.isfinite(result) & torch.isfinite(expected)
        result, expected = result[finite], expected[finite]
        self.n_elements += finite.numel()
        self.n_nonfinite += finite.numel() - result.numel()
        self.n_compared += result.numel()
        if result.numel() == 0:
            return
        difference = (result - expected).abs()
        self.max_abs = max(self.max_abs, difference.max().item())
        self.max_reference = max(self.max_reference, expected.abs().max().item())
        self.squares += difference.square().sum().item()
        self.reference_squares += expected.square().sum().item()

    def error(self, name: str) -> TensorError:
        """Where the reference is zero everywhere (dQ and dK at seq_len 1) relative L2 is the error's own
        RMS."""
        if self.n_compared == 0:
            return TensorError(name, self.n_elements, self.n_nonfinite, math.nan, math.nan, math.nan)
        whole = self.reference_squares or float(self.n_compared)
        return TensorError(
            name,
            self.n_elements,
            self.n_nonfinite,
            max_abs=self.max_abs,
            relative_l2=math.sqrt(self.squares / whole),
            max_reference=self.max_reference,
        )


class SelfTestError(Exception):
    """The gradient check does not tell right from wrong here."""


def self_test(
    attention: Callable[[Inputs, bool], Outputs], limits: Limits, *, head_dim: int, dtype: torch.dtype
) -> str:
    """Shows that the check passes the load's own kernel and rejects damage; says what was shown.

    `attention` computes one head from inputs [1, 1, seq_len, head_dim]. Raises SelfTestError.
    """
    seq_len = 96
    inputs = draw_inputs(0x50A4, batch=1, heads=1, seq_len=seq_len, head_dim=head_dim, dtype=dtype)
    head = Inputs(*(tensor[0, 0] for tensor in inputs))
    right = attention(inputs, True)

    def broken(outputs: Outputs) -> list[str]:
        errors = compare([Slice(head, outputs)], causal=True)
        return broken_limits(GradientCheck(0, "", 0, 0, 0, 0, seq_len, True, 0, (), errors), limits)

    if found := broken(right):
        raise SelfTestError(
            f"the kernel's gradients are wrong on {seq_len} rows at the start: {'; '.join(found)}"
        )
    damages = 0
    for name in ("dq", "dk", "dv"):
        tensor: torch.Tensor = getattr(right, name)
        largest = {
            "dq": limits.gradient_max_abs_dq,
            "dk": limits.gradient_max_abs_dk,
            "dv": limits.gradient_max_abs_dv,
        }
        for what, damaged in (
            ("zeroed", torch.zeros_like(tensor)),
            ("one element corrupted", _corrupted(tensor, 2.0 * largest[name])),
            ("one element NaN", _corrupted(tensor, math.nan)),
        ):
            damages += 1
            if not broken(right._replace(**{name: damaged})):
                raise SelfTestError(
                    f"the gradient check lets {name} pass with {what}: its limits are too wide"
                )
    return f"the gradient check rejected {damages} of {damages} damaged gradients"


def _corrupted(tensor: torch.Tensor, by: float) -> torch.Tensor:
    damaged = tensor.clone()
    damaged[tensor.shape[0] // 3, 0] += by
    return damaged
