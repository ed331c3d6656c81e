"""What both attention kernels of gfx906 (mi50.py, mi50_portable.py) have around them: what they take, scratch
memory, and the small kernels that prepare a backward."""

# Inside @triton.jit: no annotations, no conditional expressions over types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from soak_kernels.launch import Call, Launch, Options

LOG2_E = 1.4426950408889634
_LN_2 = tl.constexpr(0.6931471805599453)
_LOG2_E = tl.constexpr(LOG2_E)
# A row past the end, or one that sees no key, gets this log-sum-exp: exp2(score - it) is exactly 0, and
# finite minus it stays finite.
_LSE_NEVER = tl.constexpr(1e30)

HEAD_DIMS = (64, 128)
PREPARE_BLOCK = 64  # rows a program of the small kernels
ROW_MULTIPLE = 128  # padded row counts are a multiple of it: every block of every tile divides it
SLICE_BYTES_MOST = 2**31 - 2**20  # buffer instructions reach 2 GB from a head's first element, tiles included


@triton.jit
def _store_lse(p_lse, b_max, b_sum, scale_log2, o_row, n_rows):
    """Natural logarithm of a row's sum of exponentials, in float64: with scores of 1e10 the backward needs
    its last digits."""
    b_lse = (b_max.to(tl.float64) * scale_log2 + tl.log2(b_sum).to(tl.float64)) * _LN_2
    tl.store(p_lse + o_row, b_lse, mask=o_row < n_rows)


@triton.jit(do_not_specialize=["seq"])
def _transpose_kernel(p_x, p_xt, seq, pad, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """x [heads, S, D] -> xt [heads, D, S padded with zeros]. Grid: (pad / BLOCK * heads,)."""
    n_blocks = pad // BLOCK
    i_head = (tl.program_id(0) // n_blocks).to(tl.int64)
    o_row = tl.program_id(0) % n_blocks * BLOCK + tl.arange(0, BLOCK)
    o_dim = tl.arange(0, HEAD_DIM)
    b_x = tl.load(
        p_x + i_head * seq * HEAD_DIM + (o_row[:, None] * HEAD_DIM + o_dim[None, :]),
        mask=o_row[:, None] < seq, other=0.0,
    )  # fmt: skip
    tl.store(p_xt + i_head * pad * HEAD_DIM + (o_dim[:, None] * pad + o_row[None, :]), tl.trans(b_x))


@triton.jit(do_not_specialize=["seq"])
def _preprocess_kernel(
    p_o, p_do, p_lse, p_high, p_low, p_delta, scale_log2, seq, pad, HEAD_DIM: tl.constexpr,
    BLOCK: tl.constexpr
):  # fmt: skip
    """delta = rowsum(O * dO); LSE as high (in units of raw scores) and low (base 2), so that P = exp2((s -
    high) * scale - low). One float32 would not do: with scores of 1e10 its last place is thousands.

    All three [heads, pad], padded so that a row past the end contributes exactly 0. Grid: (pad / BLOCK *
    heads,)."""
    n_blocks = pad // BLOCK
    i_head = (tl.program_id(0) // n_blocks).to(tl.int64)
    o_row = tl.program_id(0) % n_blocks * BLOCK + tl.arange(0, BLOCK)
    o_dim = tl.arange(0, HEAD_DIM)
    m_row = o_row < seq
    o_x = i_head * seq * HEAD_DIM + o_row[:, None] * HEAD_DIM + o_dim[None, :]
    b_o = tl.load(p_o + o_x, mask=m_row[:, None], other=0.0).to(tl.float32)
    b_do = tl.load(p_do + o_x, mask=m_row[:, None], other=0.0).to(tl.float32)
    o_pad = i_head * pad + o_row
    tl.store(p_delta + o_pad, tl.sum(b_o * b_do, 1))
    b_lse = tl.load(p_lse + i_head * seq + o_row, mask=m_row, other=float("-inf"))
    m_seen = b_lse != float("-inf")  # a NaN counts as seen, and stays one
    b_lse2 = tl.where(m_seen, b_lse, 0.0) * _LOG2_E
    b_high = (b_lse2 / scale_log2).to(tl.float32)
    b_low = (b_lse2 - b_high.to(tl.float64) * scale_log2).to(tl.float32)
    tl.store(p_high + o_pad, b_high)
    tl.store(p_low + o_pad, tl.where(m_seen, b_low, _LSE_NEVER))


@dataclass(frozen=True)
class Shape:
    """What an attention is about: counts, and how many query heads share a key head."""

    batch: int
    heads: int
    kv_heads: int
    seq_q: int
    seq_k: int
    head_dim: int

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads

    @property
    def pad_q(self) -> int:
        return -(-self.seq_q // ROW_MULTIPLE) * ROW_MULTIPLE

    @property
    def pad_k(self) -> int:
        return -(-self.seq_k // ROW_MULTIPLE) * ROW_MULTIPLE


@dataclass(frozen=True)
class Workspace:
    """Scratch of one shape; every element that is read is written first, so it may hold anything.

    high, low (the log-sum-exp in two parts), delta: float32 [B*H, pad_q]. Transposed copies, float16, None
    where a kernel reads its operands as they are: k_t, v_t [B*Hkv, D, pad_k]; q_t, do_t [B*H, D, pad_q]."""

    high: torch.Tensor
    low: torch.Tensor
    delta: torch.Tensor
    k_t: torch.Tensor | None = None
    v_t: torch.Tensor | None = None
    q_t: torch.Tensor | None = None
    do_t: torch.Tensor | None = None


def allocate(q: torch.Tensor, shape: Shape, *, transposed: bool) -> Workspace:
    """Scratch on q's device for forward and backward."""
    rows = (shape.batch * shape.heads, shape.pad_q)
    high, low, delta = (q.new_empty(rows, dtype=torch.float32) for _ in range(3))
    if not transposed:
        return Workspace(high, low, delta)
    keys = (shape.batch * shape.kv_heads, shape.head_dim, shape.pad_k)
    queries = (shape.batch * shape.heads, shape.head_dim, shape.pad_q)
    return Workspace(
        high, low, delta, q.new_empty(keys), q.new_empty(keys), q.new_empty(queries), q.new_empty(queries)
    )


def transpose(x: torch.Tensor, x_t: torch.Tensor | None, launch: Launch) -> torch.Tensor:
    """x [B, heads, S, D] into x_t [B*heads, D, pad]."""
    assert x_t is not None  # allocated with `transposed`
    n_heads, head_dim, pad = x_t.shape
    launch(
        Call(
            _transpose_kernel, pad // PREPARE_BLOCK * n_heads,
            {"p_x": x, "p_xt": x_t, "seq": x.shape[2], "pad": pad},
            {"HEAD_DIM": head_dim, "BLOCK": PREPARE_BLOCK}, Options(num_warps=4),
        )
    )  # fmt: skip
    return x_t


def preprocess(
    o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor, scale: float, space: Workspace, launch: Launch
) -> None:
    """high, low and delta of the workspace from a forward's results."""
    n_heads, pad = space.high.shape
    launch(
        Call(
            _preprocess_kernel, pad // PREPARE_BLOCK * n_heads,
            {"p_o": o, "p_do": do, "p_lse": lse, "p_high": space.high, "p_low": space.low,
            "p_delta": space.delta,
             "scale_log2": scale_log2(scale), "seq": o.shape[2], "pad": pad},
            {"HEAD_DIM": o.shape[3], "BLOCK": PREPARE_BLOCK}, Options(num_warps=4),
        )
    )  # fmt: skip


def scale_log2(scale: float) -> float:
    """scale * log2(e), exactly the float32 that the kernels multiply with: they use it in float64 too, and
    the two must not differ."""
    return float(struct.unpack("f", struct.pack("f", scale * LOG2_E))[0])


def checked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, **like_q: torch.Tensor
) -> tuple[Shape, float]:
    """The shape and the scale to use, after every tensor was found legal; ValueError names the argument."""
    for name, x in {"q": q, "k": k, "v": v}.items():
        if x.dim() != 4 or 0 in x.shape:
            raise ValueError(
                f"{name} has shape {list(x.shape)}; legal: [batch, heads, rows, head_dim], each at least 1"
            )
    batch, heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"q has head_dim {head_dim}; legal values: {', '.join(map(str, HEAD_DIMS))}")
    if heads % kv_heads:
        raise ValueError(f"k has {kv_heads} heads; legal: a divisor of q's {heads}")
    if 2 * head_dim * (max(seq_q, seq_k) + ROW_MULTIPLE) > SLICE_BYTES_MOST:
        raise ValueError(f"q and k have {seq_q} and {seq_k} rows; legal: a head of less than 2 GB")
    keys = [batch, kv_heads, seq_k, head_dim]
    for name, x, legal in (("q", q, list(q.shape)), ("k", k, keys), ("v", v, keys)):
        check_tensor(name, x, legal, torch.float16, q.device)
    for name, x in like_q.items():
        check_tensor(name, x, list(q.shape), torch.float16, q.device)
    scale = head_dim**-0.5 if scale is None else scale
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}; legal values: finite and above 0")
    return Shape(batch, heads, kv_heads, seq_q, seq_k, head_dim), scale


def check_tensor(
    name: str, x: torch.Tensor, shape: list[int], dtype: torch.dtype, device: torch.device
) -> None:
    """ValueError where x is not contiguous, aligned, of this shape, type and device."""
    if list(x.shape) != shape:
        raise ValueError(f"{name} has shape {list(x.shape)}; legal: {shape}")
    if x.dtype != dtype:
        found, legal = (str(d).removeprefix("torch.") for d in (x.dtype, dtype))
        raise ValueError(f"{name} has dtype {found}; legal: {legal}")
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}; legal: {device}, where q is")
    if not x.is_contiguous():
        raise ValueError(
            f"{name} has strides {list(x.stride())}; legal: contiguous ({name}.contiguous() makes it so)"
        )
    if x.data_ptr() % 16:
        raise ValueError(f"{name} begins at an address that is no multiple of 16; legal: {name}.clone()")


def outputs(
    q: torch.Tensor, out: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse: what the caller gave, checked, or fresh ones."""
    rows = list(q.shape[:3])
    if out is None:
        return torch.empty_like(q), q.new_empty(rows, dtype=torch.float64)
    check_tensor("o", out[0], list(q.shape), torch.float16, q.device)
    check_tensor("lse", out[1], rows, torch.float64, q.device)
    return out


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv: what the caller gave, checked, or fresh ones; lse is checked too."""
    check_tensor("lse", lse, list(q.shape[:3]), torch.float64, q.device)
    if out is None:
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    for name, x, like in zip(("dq", "dk", "dv"), out, (q, k, v), strict=True):
        check_tensor(name, x, list(like.shape), torch.float16, q.device)
    return out
