"""`attention`: the public function, differentiable, over whichever kernel suits the tensors and the card."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import torch
import triton

from soak_kernels import frame, members
from soak_kernels.device import architecture
from soak_kernels.members import MEMBERS, Card, Choice, Operation, operation
from soak_kernels.preflight import wrong_on
from soak_kernels.shape import Shape

_LOG = logging.getLogger(__name__)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    kernel: str = "auto",
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * Q K^T) V, with the conventions of torch's scaled_dot_product_attention.

    q [B, H, Sq, D]; k, v [B, Hkv, Sk, D]: float16, bfloat16 or float32, D a multiple of 16 from 32 to 256, Sq
    and Sk at least 1. Any strides may be read, overlapping ones (`expand`) too: what is not contiguous, or
    does not begin at a multiple of 16 bytes, is copied first (`copied` says which). Hkv is H, or with
    enable_gqa a divisor of it: heads h * H / Hkv and up share key head h.

    is_causal: aligned at the bottom right, as torch's `causal_lower_right` (its own `is_causal` aligns at the
    top left, which is the same where Sq = Sk): row i sees keys 0 .. i + Sk - Sq. A row that sees no key gives
    0 and no gradient. scale: default 1 / sqrt(D).

    kernel: "auto" or a name of `KERNELS`; `choose` tells which one "auto" takes and why, and a choice that is
    not the preferred one is logged once. return_lse: also the log-sum-exp of the scaled scores, float64 [B,
    H, Sq], natural logarithm, -inf for a row that sees no key, without a gradient.

    Differentiable in q, k, v (once); deterministic: the same inputs on the same card and build give the same
    bits, forward and backward. Raises ValueError, naming the argument and what is legal, before anything is
    launched.
    """
    _check_flags(is_causal=is_causal, return_lse=return_lse)
    shape = _checked(q, k, v, enable_gqa)
    scale = frame.checked_scale(scale, shape.head_dim)
    choice, card = _chosen(q, shape, kernel)
    used = operation(choice.kernel)
    tensors = (aligned(q), aligned(k), aligned(v))
    o, lse = _Attention.apply(*tensors, is_causal, scale, used, card)  # type: ignore[no-untyped-call]  # torch's
    return (o, lse) if return_lse else o


def choose(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    enable_gqa: bool = False,
    kernel: str = "auto",
) -> Choice:
    """The kernel that `attention` uses for these tensors, why, and which were refused; errors as there."""
    return _chosen(q, _checked(q, k, v, enable_gqa), kernel)[0]


def copied(**tensors: torch.Tensor) -> tuple[str, ...]:
    """The names of those that `attention` copies before a kernel reads them."""
    return tuple(name for name, x in tensors.items() if x.is_neg() or not _is_aligned(x))


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x, or a contiguous copy that begins where a wide load can."""
    x = x.resolve_neg()  # a lazy minus is in no memory that a kernel reads
    return x if _is_aligned(x) else x.clone(memory_format=torch.contiguous_format)


def _is_aligned(x: torch.Tensor) -> bool:
    return x.is_contiguous() and x.data_ptr() % frame.ALIGNMENT == 0


def _check_flags(**flags: bool) -> None:
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{name} is {flag!r}; legal values: True, False")


def _checked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, enable_gqa: bool) -> Shape:
    _check_flags(enable_gqa=enable_gqa)
    shape = frame.shape_of(q, k, v)
    frame.check_kind(q, shape)
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise ValueError(
                f"{name} has dtype {frame.dtype_name(x)}; legal: {frame.dtype_name(q)}, as q has"
            )
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}; legal: {q.device}, where q is")
    if shape.group > 1 and not enable_gqa:
        raise ValueError(
            f"k has {shape.kv_heads} heads and q {shape.heads}; "
            "legal: as many, or a divisor with enable_gqa=True"
        )
    if q.device.type == "cpu" and q.dtype == torch.bfloat16:
        raise ValueError(
            "q has dtype bfloat16 on the CPU, where Triton's interpreter has none; legal: float16, float32"
        )
    if q.device.type != "cuda" and not (q.device.type == "cpu" and triton.knobs.runtime.interpret):
        raise ValueError(
            f"q is on {q.device}; legal: a GPU, or the CPU with TRITON_INTERPRET=1 set before triton"
        )
    return shape


def _chosen(q: torch.Tensor, shape: Shape, kernel: str) -> tuple[Choice, Card]:
    if not isinstance(kernel, str):
        raise ValueError(f"kernel is {kernel!r}; legal values: auto, {', '.join(MEMBERS)}")
    card = card_of(q.device)
    return proven(card, shape, q.device, dtype=frame.dtype_name(q), kernel=kernel), card


@lru_cache(maxsize=256)
def proven(card: Card, shape: Shape, device: torch.device, *, dtype: str, kernel: str = "auto") -> Choice:
    """`members.choose`, where a kernel that `auto` prefers is run on the card first and held against float64;
    one that fails is refused with what it did."""
    failed: list[tuple[str, str]] = []
    while True:
        choice = members.choose(card, shape, dtype=dtype, kernel=kernel, failed=tuple(failed))
        wrong = wrong_on(choice.kernel, device, shape.head_dim, dtype) if choice.unproven else None
        if wrong is None:
            if choice.refused:
                _LOG.warning("attention on %s uses %s", card.arch, choice)
            return choice
        failed.append((choice.kernel, wrong))


@lru_cache(maxsize=64)
def card_of(device: torch.device) -> Card:
    """What a choice wants to know; initialises the device's runtime."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    n_processors = None
    if device.type == "cuda":
        n_processors = torch.cuda.get_device_properties(device).multi_processor_count
    return Card(architecture(device), (version[0], version[1]), n_processors)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        scale: float,
        used: Operation,
        card: Card,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        config = used.plan(
            card.arch, frame.shape_of(q, k, v), causal=causal, dtype=frame.dtype_name(q),
            n_processors=card.n_processors,
        )  # fmt: skip
        workspace = used.allocate(q, k, config)
        o, lse = used.forward(q, k, v, causal=causal, scale=scale, workspace=workspace)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale, ctx.used, ctx.config = causal, scale, used, config
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, do: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        workspace = ctx.used.allocate(q, k, ctx.config)
        dq, dk, dv = ctx.used.backward(
            q, k, v, o, lse, aligned(do), causal=ctx.causal, scale=ctx.scale, workspace=workspace
        )
        return dq, dk, dv, None, None, None, None


KERNELS = tuple(MEMBERS)
