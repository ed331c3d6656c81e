"""What the compiler child can do; runs without the interpreter (see conftest.py)."""

from __future__ import annotations

from typing import Any

import torch
from soak_kernels.compile import compile_all, compile_call
from soak_kernels.frame import shape_of
from soak_kernels.launch import Call
from soak_kernels.members import operation


def rows(arch: str) -> list[dict[str, Any]]:
    """Every product kernel of `arch` in the type of the product, float16."""
    return [row.as_dict() for row in compile_all(arch)]


def refusal(arch: str) -> str:
    try:
        compile_all(arch)
    except ValueError as error:
        return str(error)
    return "accepted"


def lineage(
    kernel: str, arch: str, seq: list[int], heads: list[int], head_dim: int, causal: bool, dtype: str
) -> list[dict[str, Any]]:
    """What one member launches for such tensors, forward and backward, compiled."""
    kind = getattr(torch, dtype)
    q = torch.empty((1, heads[0], seq[0], head_dim), dtype=kind)
    k = torch.empty((1, heads[1], seq[1], head_dim), dtype=kind)
    used, calls = operation(kernel), list[Call]()
    config = used.plan(arch, shape_of(q, k, k), causal=causal, dtype=dtype)
    rest: dict[str, Any] = {
        "causal": causal,
        "workspace": used.allocate(q, k, config),
        "launch": calls.append,
    }
    o, lse = used.forward(q, k, k, **rest)
    used.backward(q, k, k, o, lse, q, **rest)
    return [{"kernel": call.kernel.__name__, **compile_call(call, arch)} for call in calls]
