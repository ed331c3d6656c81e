"""What the attention kernels have around them: what they take, scratch memory, and the small kernels that
prepare a backward."""

# Inside @triton.jit: no annotations, no conditional expressions over types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real

import torch
import triton
import triton.language as tl

from soak_kernels.launch import Call, Launch, Options
from soak_kernels.shape import (
    DTYPES,
    HEAD_DIMS,
    ROW_MULTIPLE,
    SLICE_ELEMENTS_MOST,
    Shape,
    head_dims_in_words,
)

LOG2_E = 1.4426950408889634
_LN_2 = tl.constexpr(0.6931471805599453)
_LOG2_E = tl.constexpr(LOG2_E)
# A row past the end, or one that sees no key, gets this log-sum-exp: exp2(score - it) is exactly 0, and
# finite minus it stays finite.
_LSE_NEVER = tl.constexpr(1e30)

ALIGNMENT = 16  # bytes: what a wide load needs, and what the compiled code was told
SCALE_LEAST, SCALE_MOST = 2.0**-100, 2.0**100  # times or divided into a score, it stays a normal float32
PREPARE_BLOCK = 64  # rows a program of the small kernels
PREPARE_WARPS = 4


# --- kernels


@triton.jit
def _store_lse(p_lse, b_max, b_sum, scale_log2, o_row, n_rows):
    """Natural logarithm of a row's sum of exponentials, in float64: with scores of 1e10 the backward needs
    its last digits."""
    b_lse = (b_max.to(tl.float64) * scale_log2 + tl.log2(b_sum).to(tl.float64)) * _LN_2
    tl.store(p_lse + o_row, b_lse, mask=o_row < n_rows)


@triton.jit(do_not_specialize=["seq"])
def _transpose_kernel(p_x, p_xt, seq, pad, DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """x [heads, S, DIM] -> xt [heads, HEAD_DIM, pad], with zeros beyond x. Grid: (pad / BLOCK * heads,)."""
    n_blocks = pad // BLOCK
    i_head = (tl.program_id(0) // n_blocks).to(tl.int64)
    o_row = tl.program_id(0) % n_blocks * BLOCK + tl.arange(0, BLOCK)
    o_dim = tl.arange(0, HEAD_DIM)
    m_x = o_row[:, None] < seq
    if DIM < HEAD_DIM:
        m_x = m_x & (o_dim[None, :] < DIM)
    b_x = tl.load(p_x + i_head * seq * DIM + (o_row[:, None] * DIM + o_dim[None, :]), mask=m_x, other=0.0)
    tl.store(p_xt + i_head * pad * HEAD_DIM + (o_dim[:, None] * pad + o_row[None, :]), tl.trans(b_x))


@triton.jit(do_not_specialize=["seq"])
def _preprocess_kernel(
    p_o, p_do, p_lse, p_high, p_low, p_delta, scale_log2, seq, pad,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
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
    m_x = m_row[:, None]
    if DIM < HEAD_DIM:
        m_x = m_x & (o_dim[None, :] < DIM)
    o_x = i_head * seq * DIM + o_row[:, None] * DIM + o_dim[None, :]
    b_o = tl.load(p_o + o_x, mask=m_x, other=0.0).to(tl.float32)
    b_do = tl.load(p_do + o_x, mask=m_x, other=0.0).to(tl.float32)
    o_pad = i_head * pad + o_row
    tl.store(p_delta + o_pad, tl.sum(b_o * b_do, 1))
    b_lse = tl.load(p_lse + i_head * seq + o_row, mask=m_row, other=float("-inf"))
    m_seen = b_lse != float("-inf")  # a NaN counts as seen, and stays one
    b_lse2 = tl.where(m_seen, b_lse, 0.0) * _LOG2_E
    b_high = (b_lse2 / scale_log2).to(tl.float32)
    b_low = (b_lse2 - b_high.to(tl.float64) * scale_log2).to(tl.float32)
    tl.store(p_high + o_pad, b_high)
    tl.store(p_low + o_pad, tl.where(m_seen, b_low, _LSE_NEVER))


# --- launchers


def transpose(x: torch.Tensor, x_t: torch.Tensor | None, launch: Launch) -> torch.Tensor:
    """x [B, heads, S, D] into x_t [B*heads, padded D, padded S], with zeros beyond x."""
    assert x_t is not None  # allocated for a kernel that takes it
    n_heads, width, pad = x_t.shape
    launch(
        Call(
            _transpose_kernel, pad // PREPARE_BLOCK * n_heads,
            {"p_x": x, "p_xt": x_t, "seq": x.shape[2], "pad": pad},
            {"DIM": x.shape[3], "HEAD_DIM": width, "BLOCK": PREPARE_BLOCK}, Options(PREPARE_WARPS),
        )
    )  # fmt: skip
    return x_t


def preprocess(
    o: torch.Tensor, do: torch.Tensor, lse: torch.Tensor, scale: float, rows: Sequence[torch.Tensor],
    launch: Launch,
) -> None:  # fmt: skip
    """Into rows = (high, low, delta), float32 [B*H, padded Sq], what a backward needs of a forward's
    results."""
    high, low, delta = rows
    n_heads, pad = high.shape
    launch(
        Call(
            _preprocess_kernel, pad // PREPARE_BLOCK * n_heads,
            {"p_o": o, "p_do": do, "p_lse": lse, "p_high": high, "p_low": low, "p_delta": delta,
             "scale_log2": scale_log2(scale), "seq": o.shape[2], "pad": pad},
            {"DIM": o.shape[3], "HEAD_DIM": 1 << (o.shape[3] - 1).bit_length(), "BLOCK": PREPARE_BLOCK},
            Options(PREPARE_WARPS),
        )
    )  # fmt: skip


def scale_log2(scale: float) -> float:
    """scale * log2(e), exactly the float32 that the kernels multiply with: they use it in float64 too, and
    the two must not differ."""
    return float(struct.unpack("f", struct.pack("f", scale * LOG2_E))[0])


# --- what is legal


def checked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None,
    *,
    head_dims: tuple[int, ...] = HEAD_DIMS,
    dtypes: tuple[str, ...] = DTYPES,
    like_q: Iterable[tuple[str, torch.Tensor]] = (),
) -> tuple[Shape, float]:
    """The shape and the scale to use, after every tensor was found legal; ValueError names the argument."""
    shape = shape_of(q, k, v)
    check_kind(q, shape, head_dims, dtypes)
    queries = (shape.batch, shape.heads, shape.seq_q, shape.head_dim)
    keys = (shape.batch, shape.kv_heads, shape.seq_k, shape.head_dim)
    for name, x, legal in (("q", q, queries), ("k", k, keys), ("v", v, keys)):
        check_tensor(name, x, legal, q.dtype, q.device)
    for name, x in like_q:
        check_tensor(name, x, queries, q.dtype, q.device)
    return shape, checked_scale(scale, shape.head_dim)


def shape_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Shape:
    """Of three tensors whose shapes belong together; ValueError where they do not."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise ValueError(f"{name} is of type {type(x).__name__}; legal: torch.Tensor")
        if x.layout is not torch.strided or x.is_nested:
            layout = "nested" if x.is_nested else str(x.layout)
            raise ValueError(f"{name} has the layout {layout}; legal: torch.strided ({name}.to_dense())")
        if x.dim() != 4 or not x.numel():
            raise ValueError(
                f"{name} has shape {list(x.shape)}; legal: [batch, heads, rows, head_dim], each at least 1"
            )
    batch, heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    if heads % kv_heads:
        raise ValueError(f"k has {kv_heads} heads; legal: a divisor of q's {heads}")
    keys = (batch, kv_heads, seq_k, head_dim)
    for name, x in (("k", k), ("v", v)):
        if x.shape != keys:
            raise ValueError(f"{name} has shape {list(x.shape)}; legal: {list(keys)}")
    return Shape(batch, heads, kv_heads, seq_q, seq_k, head_dim)


def check_kind(
    q: torch.Tensor, shape: Shape, head_dims: tuple[int, ...] = HEAD_DIMS, dtypes: tuple[str, ...] = DTYPES
) -> None:
    """ValueError for a head dimension, type or length that no kernel (or not this one) has."""
    if shape.head_dim not in head_dims:
        raise ValueError(f"q has head_dim {shape.head_dim}; legal values: {head_dims_in_words(head_dims)}")
    if dtype_name(q) not in dtypes:
        raise ValueError(f"q has dtype {dtype_name(q)}; legal values: {', '.join(dtypes)}")
    if (max(shape.seq_q, shape.seq_k) + ROW_MULTIPLE) * shape.padded_dim > SLICE_ELEMENTS_MOST:
        raise ValueError(
            f"q and k have {shape.seq_q} and {shape.seq_k} rows; legal: a head of fewer than 2^31 elements"
        )


def checked_scale(scale: float | None, head_dim: int) -> float:
    """1 / sqrt(head_dim) where none is given; ValueError where float32 could not carry it through a row."""
    if scale is None:
        return float(head_dim**-0.5)
    if isinstance(scale, torch.Tensor) and scale.numel() == 1 and not (scale.is_complex() or scale.is_meta):
        scale = float(scale.detach())
    if not isinstance(scale, Real) or isinstance(scale, bool) or not SCALE_LEAST <= scale <= SCALE_MOST:
        raise ValueError(f"scale is {scale!r}; legal values: a number from 2^-100 to 2^100")
    return float(scale)


def check_tensor(
    name: str, x: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> None:
    """ValueError where x is not contiguous, aligned, of this shape, type and device."""
    if x.shape != tuple(shape):
        raise ValueError(f"{name} has shape {list(x.shape)}; legal: {list(shape)}")
    if x.dtype != dtype:
        raise ValueError(f"{name} has dtype {dtype_name(x)}; legal: {str(dtype).removeprefix('torch.')}")
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}; legal: {device}, where q is")
    if not x.is_contiguous():
        raise ValueError(
            f"{name} has strides {list(x.stride())}; legal: contiguous ({name}.contiguous() makes it so)"
        )
    if x.data_ptr() % ALIGNMENT:
        raise ValueError(
            f"{name} begins at an address that is no multiple of {ALIGNMENT}; legal: {name}.clone()"
        )


def check_workspace(made_for: tuple[Shape, torch.dtype, torch.device], q: torch.Tensor, shape: Shape) -> None:
    """ValueError where scratch was allocated for another shape, type or device."""
    if made_for != (shape, q.dtype, q.device):
        raise ValueError("workspace is of another shape, type or device; legal: allocate(q, k, config)")


def check_apart(written: Mapping[str, torch.Tensor], read: Mapping[str, torch.Tensor]) -> None:
    """ValueError where a tensor that is written shares memory with any other: what one program writes,
    another still reads. Tensors that are only read may."""
    before: list[tuple[int, int, str]] = []
    for name, x in (*read.items(), *written.items()):
        begin = x.data_ptr()
        end = begin + x.nbytes
        if name in written:
            for other_begin, other_end, other in before:
                if begin < other_end and other_begin < end:
                    raise ValueError(f"{name} overlaps {other} in memory; legal: a tensor of its own")
        before.append((begin, end, name))


def outputs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse: what the caller gave, checked, or fresh ones."""
    rows = q.shape[:3]
    if out is None:
        return torch.empty_like(q), q.new_empty(rows, dtype=torch.float64)
    o, lse = out
    check_tensor("o", o, q.shape, q.dtype, q.device)
    check_tensor("lse", lse, rows, torch.float64, q.device)
    check_apart({"o": o, "lse": lse}, {"q": q, "k": k, "v": v})
    return o, lse


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv: what the caller gave, checked, or fresh ones; lse is checked too."""
    check_tensor("lse", lse, q.shape[:3], torch.float64, q.device)
    if out is None:
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    for name, x, like in zip(("dq", "dk", "dv"), out, (q, k, v), strict=True):
        check_tensor(name, x, like.shape, q.dtype, q.device)
    dq, dk, dv = out
    check_apart({"dq": dq, "dk": dk, "dv": dv}, {"q": q, "k": k, "v": v, "do": do})
    return out


def dtype_name(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
