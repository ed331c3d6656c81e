"""What both attention kernels of gfx906 (mi50.py, mi50_portable.py) have around them: what they take, and
scratch memory. What every kernel has is in frame.py."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from soak_kernels import frame
from soak_kernels.frame import gradients, outputs, scale_log2, transpose
from soak_kernels.launch import Launch
from soak_kernels.shape import ROW_MULTIPLE, Shape

__all__ = [
    "Workspace",
    "allocate",
    "checked",
    "fitting",
    "gradients",
    "outputs",
    "preprocess",
    "scale_log2",
    "transpose",
]

HEAD_DIMS = (64, 128)
DTYPES = ("float16",)  # gfx906 multiplies float16 only
SLICE_BYTES_MOST = 2**31 - 2**20  # buffer instructions reach 2 GB from a head's first element, tiles included


@dataclass(frozen=True)
class Workspace:
    """Scratch of one shape; every element that is read is written first, so it may hold anything.

    high, low (the log-sum-exp in two parts), delta: float32 [B*H, pad_q]. Transposed copies, float16, None
    where a kernel reads its operands as they are: k_t, v_t [B*Hkv, D, pad_k]; q_t, do_t [B*H, D, pad_q]."""

    shape: Shape
    high: torch.Tensor
    low: torch.Tensor
    delta: torch.Tensor
    k_t: torch.Tensor | None = None
    v_t: torch.Tensor | None = None
    q_t: torch.Tensor | None = None
    do_t: torch.Tensor | None = None


def allocate(q: torch.Tensor, shape: Shape, *, transposed: bool) -> Workspace:
    """Scratch on q's device for forward and backward."""
    rows = (shape.n_heads, shape.pad_q)
    high, low, delta = (q.new_empty(rows, dtype=torch.float32) for _ in range(3))
    if not transposed:
        return Workspace(shape, high, low, delta)
    keys = (shape.n_kv_heads, shape.head_dim, shape.pad_k)
    queries = (shape.n_heads, shape.head_dim, shape.pad_q)
    return Workspace(
        shape,
        high,
        low,
        delta,
        q.new_empty(keys),
        q.new_empty(keys),
        q.new_empty(queries),
        q.new_empty(queries),
    )


def fitting(space: Workspace | None, q: torch.Tensor, shape: Shape, *, transposed: bool) -> Workspace:
    """The caller's workspace if it fits, or a fresh one."""
    if space is None:
        return allocate(q, shape, transposed=transposed)
    frame.check_workspace((space.shape, q.dtype, space.high.device), q, shape)
    if transposed and space.k_t is None:
        raise ValueError("workspace is of mi50, without transposed copies; legal: mi50_portable's own")
    return space


def preprocess(
    o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor, scale: float, space: Workspace, launch: Launch
) -> None:
    """high, low and delta of the workspace from a forward's results."""
    frame.preprocess(o, do, lse, scale, (space.high, space.low, space.delta), launch)


def checked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, **like_q: torch.Tensor
) -> tuple[Shape, float]:
    """The shape and the scale to use, after every tensor was found legal; ValueError names the argument."""
    shape, scale = frame.checked(q, k, v, scale, head_dims=HEAD_DIMS, dtypes=DTYPES, like_q=like_q.items())
    if 2 * shape.head_dim * (max(shape.seq_q, shape.seq_k) + ROW_MULTIPLE) > SLICE_BYTES_MOST:
        raise ValueError(
            f"q and k have {shape.seq_q} and {shape.seq_k} rows; legal: a head of less than 2 GB"
        )
    return shape, scale
