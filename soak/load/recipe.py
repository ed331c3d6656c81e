"""The inputs of a rotation: q, k, v ~ N(0, 0.5^2) and dO ~ N(0, 1). Absolute limits mean something only for
these.

To draw a rotation's inputs again (to replay a check): seed a `torch.Generator` of the load's kind of device
with the rotation's seed, then for q, k, v, dO in this order fill a float32 tensor of batch * heads * seq_len
* head_dim elements with `normal_`, multiply by the standard deviation, round to the load's dtype, and read it
as [batch, heads, seq_len, head_dim]. `soak.core.protocol.Protocol.shape` gives seed and seq_len.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

QKV_STD = 0.5
DO_STD = 1.0


class Inputs(NamedTuple):
    """Each [batch, heads, seq_len, head_dim], contiguous."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor


class InputScaleError(ValueError):
    """Inputs of another scale than the recipe's: the limits of the gradient check would mean nothing."""


def draw_inputs(
    seed: int,
    *,
    batch: int,
    heads: int,
    seq_len: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Inputs:
    """The inputs of the rotation with this seed; the same on equal devices."""
    size = (batch, heads, seq_len, head_dim)
    inputs = Inputs(*(torch.empty(size, dtype=dtype, device=device) for _ in Inputs._fields))
    fill_inputs(seed, inputs, torch.empty(size, dtype=torch.float32, device=device))
    return inputs


def fill_inputs(seed: int, inputs: Inputs, scratch: torch.Tensor) -> None:
    """Draws into tensors that are there. `scratch`: float32 on their device, at least as many elements as
    one."""
    generator = torch.Generator(device=scratch.device).manual_seed(seed)
    for tensor, std in zip(inputs, (QKV_STD, QKV_STD, QKV_STD, DO_STD), strict=True):
        drawn = scratch.view(-1)[: tensor.numel()].normal_(generator=generator).mul_(std)
        tensor.copy_(drawn.view(tensor.shape))


def require_recipe_scale(inputs: Inputs) -> None:
    """Refuses inputs whose scale is not the recipe's.

    The allowance is five standard errors of a standard deviation over that many elements, and at least 2 %.
    Raises InputScaleError.
    """
    for name, tensor, std in zip(Inputs._fields, inputs, (QKV_STD, QKV_STD, QKV_STD, DO_STD), strict=True):
        measured = tensor.double().square().mean().sqrt().item()
        allowance = max(0.02, 5.0 / math.sqrt(2.0 * max(tensor.numel(), 1)))
        if not abs(measured / std - 1.0) <= allowance:
            raise InputScaleError(
                f"{name} has a standard deviation of {measured:.4g}, the recipe says {std}: the limits of "
                "the gradient check hold for the recipe's inputs only; draw them with it"
            )
