"""FlashAttention-2, forward and backward, in plain Triton: deterministic to the bit.

Layout [B, H, S, D], contiguous; softmax and every accumulation in float32. After Dao, "FlashAttention-2"
(arXiv 2307.08691), with two differences. dQ and dK/dV are separate kernels, each owning what it writes: no
atomics, so the same inputs give the same bits on the same card and build. And the row maximum is subtracted
before the scale is applied, because a fused s * scale - max rounds in one place only and exceeds 0 by
thousands when scores are near 65504^2 * 128.

One source serves two kinds of card by configuration (`tuning.TileConfig`). With matrix units the stationary
operand stays on chip and the head dimension is one step (chunk_qk == head_dim). Without (gfx906) it is
re-read in chunks, and the operand to the right of a product comes from a transposed, zero-padded copy in the
workspace.

Loads in a main loop carry no mask: a tile that reaches past the end clamps its row numbers (it re-reads the
last row) and the score, probability or store is masked instead. Names: p_ pointer, b_ block, o_ offsets, m_
mask, n_ count, i_ index.
"""

# Inside @triton.jit: no annotations, no conditional expressions over types, tuples that grow.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment
# ruff: noqa: RUF005, SIM108

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from soak_kernels.device import architecture
from soak_kernels.tuning import DTYPES, HEAD_DIMS, AttentionConfig, TileConfig, plan

LOG2_E = 1.4426950408889634
_LN_2 = tl.constexpr(0.6931471805599453)
_LOG2_E = tl.constexpr(LOG2_E)
# A row past the end gets this log-sum-exp: exp2(score - it) is exactly 0, and finite minus it stays finite.
_LSE_PAD = tl.constexpr(1e30)


# --- kernels
# ---------------------------------------------------------------------------------------------------------


@triton.jit
def _left(p_x, o_row, o_chunk, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr):
    """The operand left of a product over the head dimension, once per program; a placeholder where tiles
    re-read it."""
    if CHUNK == HEAD_DIM:
        b_x = tl.load(p_x + (o_row[:, None] * HEAD_DIM + o_chunk[None, :]))
    else:
        b_x = 0
    return b_x


@triton.jit
def _product(
    b_left, p_left, p_right, p_right_t, o_left, o_right, o_right_t, o_chunk, seq_pad, shift,
    HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr, TRANSPOSED: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    """left [ROWS, D] times right [COLS, D] transposed, float32 [ROWS, COLS]; `shift` is a run-time zero (see
    callers)."""
    b_s = tl.zeros([ROWS, COLS], tl.float32)
    o_base = o_left[:, None] * HEAD_DIM + o_chunk[None, :] + shift
    for c in tl.static_range(0, HEAD_DIM // CHUNK):
        if CHUNK == HEAD_DIM:
            b_a = b_left
        else:
            b_a = tl.load(p_left + o_base + c * CHUNK)
        if TRANSPOSED:
            b_b = tl.load(p_right_t + ((o_chunk[:, None] + c * CHUNK) * seq_pad + o_right_t[None, :]))
        else:
            b_b = tl.trans(tl.load(p_right + (o_right[:, None] * HEAD_DIM + o_chunk[None, :] + c * CHUNK)))
        b_s = tl.dot(b_a, b_b, b_s, input_precision="ieee")
    return b_s


@triton.jit
def _zeros(ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr):
    """Accumulators [ROWS, D] as a tuple of [ROWS, CHUNK] pieces."""
    b_acc = ()
    for _ in tl.static_range(0, HEAD_DIM // CHUNK):
        b_acc = b_acc + (tl.zeros([ROWS, CHUNK], tl.float32),)
    return b_acc


@triton.jit
def _accumulate(b_acc, b_p, p_x, o_row, o_piece, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr):
    """b_acc + b_p @ x[o_row], piece by piece."""
    b_out = ()
    for c in tl.static_range(0, HEAD_DIM // CHUNK):
        b_x = tl.load(p_x + (o_row[:, None] * HEAD_DIM + o_piece[None, :] + c * CHUNK))
        b_out = b_out + (tl.dot(b_p, b_x, b_acc[c], input_precision="ieee"),)
    return b_out


@triton.jit
def _store(p_x, b_acc, b_factor, o_row, o_piece, n_rows, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr):
    """Write b_acc * b_factor (a value per row) to the rows below n_rows."""
    for c in tl.static_range(0, HEAD_DIM // CHUNK):
        tl.store(
            p_x + (o_row[:, None] * HEAD_DIM + o_piece[None, :] + c * CHUNK),
            (b_acc[c] * b_factor[:, None]).to(p_x.dtype.element_ty),
            mask=o_row[:, None] < n_rows,
        )


@triton.jit
def _forward_tile(
    p_q, p_k, p_kt, p_v, b_q, b_max, b_sum, b_acc, n, o_row, o_row_in, o_col, o_chunk, o_piece,
    scale_log2, seq_len, seq_pad, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK_QK: tl.constexpr,
    CHUNK_PV: tl.constexpr,
    TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """One block of keys into the running softmax. EDGE: the block crosses the diagonal or the end."""
    o_key = n + o_col
    o_key_in = o_key
    if EDGE:
        o_key_in = tl.minimum(o_key, seq_len - 1)
    # n * zero is 0, but not to the compiler: without it the loads of Q leave the loop and fill every register
    # of gfx906.
    b_s = _product(
        b_q, p_q, p_k, p_kt, o_row_in, o_key_in, o_key, o_chunk, seq_pad, n * zero,
        HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    if EDGE:
        m_key = o_key[None, :] < seq_len
        if CAUSAL:
            m_key = m_key & (o_key[None, :] <= o_row[:, None])
        b_s = tl.where(m_key, b_s, float("-inf"))
    b_max_new = tl.maximum(b_max, tl.max(b_s, 1))
    b_p = tl.exp2((b_s - b_max_new[:, None]) * scale_log2)
    b_decay = tl.exp2((b_max - b_max_new) * scale_log2)
    b_sum = b_sum * b_decay + tl.sum(b_p, 1)
    b_p = b_p.to(p_v.dtype.element_ty)
    b_out = ()
    for c in tl.static_range(0, HEAD_DIM // CHUNK_PV):
        b_v = tl.load(p_v + (o_key_in[:, None] * HEAD_DIM + o_piece[None, :] + c * CHUNK_PV))
        b_out = b_out + (tl.dot(b_p, b_v, b_acc[c] * b_decay[:, None], input_precision="ieee"),)
    return b_max_new, b_sum, b_out


@triton.jit(do_not_specialize=["seq_len"])
def _forward_kernel(
    p_q, p_k, p_kt, p_v, p_o, p_lse, scale_log2, seq_len, seq_pad, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK_QK: tl.constexpr,
    CHUNK_PV: tl.constexpr,
    TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of O and LSE of one (batch, head). Grid: (row blocks * B * H,)."""
    n_blocks = tl.cdiv(seq_len, BLOCK_M)
    i_slice = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_block = tl.program_id(0) % n_blocks
    if CAUSAL:
        i_block = n_blocks - 1 - i_block  # the longest rows first, so that the last wave of programs is short
    p_q += i_slice * seq_len * HEAD_DIM
    p_k += i_slice * seq_len * HEAD_DIM
    p_v += i_slice * seq_len * HEAD_DIM
    p_o += i_slice * seq_len * HEAD_DIM
    p_lse += i_slice * seq_len
    if TRANSPOSED:
        p_kt += i_slice * seq_pad * HEAD_DIM

    o_row = i_block * BLOCK_M + tl.arange(0, BLOCK_M)
    o_row_in = tl.minimum(o_row, seq_len - 1)
    o_col = tl.arange(0, BLOCK_N)
    o_chunk = tl.arange(0, CHUNK_QK)
    o_piece = tl.arange(0, CHUNK_PV)
    b_q = _left(p_q, o_row_in, o_chunk, HEAD_DIM, CHUNK_QK)
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_acc = _zeros(BLOCK_M, HEAD_DIM, CHUNK_PV)

    if CAUSAL:
        end = tl.minimum(seq_len, (i_block + 1) * BLOCK_M)
        inner = i_block * BLOCK_M // BLOCK_N * BLOCK_N
    else:
        end = seq_len
        inner = seq_len // BLOCK_N * BLOCK_N
    for n in tl.range(0, inner, BLOCK_N):
        b_max, b_sum, b_acc = _forward_tile(
            p_q, p_k, p_kt, p_v, b_q, b_max, b_sum, b_acc, n, o_row, o_row_in, o_col, o_chunk, o_piece,
            scale_log2, seq_len, seq_pad, zero,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, CAUSAL, False,
        )  # fmt: skip
    for n in tl.range(inner, end, BLOCK_N):
        b_max, b_sum, b_acc = _forward_tile(
            p_q, p_k, p_kt, p_v, b_q, b_max, b_sum, b_acc, n, o_row, o_row_in, o_col, o_chunk, o_piece,
            scale_log2, seq_len, seq_pad, zero,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, CAUSAL, True,
        )  # fmt: skip

    _store(p_o, b_acc, 1.0 / b_sum, o_row, o_piece, seq_len, HEAD_DIM, CHUNK_PV)
    b_lse = (b_max.to(tl.float64) * scale_log2 + tl.log2(b_sum).to(tl.float64)) * _LN_2
    tl.store(p_lse + o_row, b_lse, mask=o_row < seq_len)


@triton.jit(do_not_specialize=["seq_len"])
def _transpose_kernel(p_x, p_xt, seq_len, seq_pad, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):
    """x [B*H, S, D] -> xt [B*H, D, S padded with zeros]. Grid: (seq_pad / BLOCK * B * H,)."""
    n_blocks = seq_pad // BLOCK
    i_slice = (tl.program_id(0) // n_blocks).to(tl.int64)
    o_row = tl.program_id(0) % n_blocks * BLOCK + tl.arange(0, BLOCK)
    o_dim = tl.arange(0, HEAD_DIM)
    p_x += i_slice * seq_len * HEAD_DIM
    p_xt += i_slice * seq_pad * HEAD_DIM
    b_x = tl.load(
        p_x + (o_row[:, None] * HEAD_DIM + o_dim[None, :]), mask=o_row[:, None] < seq_len, other=0.0
    )
    tl.store(p_xt + (o_dim[:, None] * seq_pad + o_row[None, :]), tl.trans(b_x))


@triton.jit(do_not_specialize=["seq_len"])
def _preprocess_kernel(
    p_o, p_do, p_lse, p_high, p_low, p_delta, scale_log2, seq_len, seq_pad,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(O * dO); LSE as high (in units of raw scores) and low (base 2), so that P = exp2((s -
    high) * scale - low).

    One float32 would not do: with scores of 1e10 its last place is thousands. All are padded so that a row
    past the end contributes exactly 0. Grid: (seq_pad / BLOCK * B * H,).
    """
    n_blocks = seq_pad // BLOCK
    i_slice = (tl.program_id(0) // n_blocks).to(tl.int64)
    o_row = tl.program_id(0) % n_blocks * BLOCK + tl.arange(0, BLOCK)
    o_dim = tl.arange(0, HEAD_DIM)
    m_row = o_row < seq_len
    o_x = i_slice * seq_len * HEAD_DIM + o_row[:, None] * HEAD_DIM + o_dim[None, :]
    b_o = tl.load(p_o + o_x, mask=m_row[:, None], other=0.0).to(tl.float32)
    b_do = tl.load(p_do + o_x, mask=m_row[:, None], other=0.0).to(tl.float32)
    o_pad = i_slice * seq_pad + o_row
    tl.store(p_delta + o_pad, tl.sum(b_o * b_do, 1))
    b_lse2 = tl.load(p_lse + i_slice * seq_len + o_row, mask=m_row, other=0.0) * _LOG2_E
    b_high = (b_lse2 / scale_log2).to(tl.float32)
    b_low = (b_lse2 - b_high.to(tl.float64) * scale_log2).to(tl.float32)
    tl.store(p_high + o_pad, b_high)
    tl.store(p_low + o_pad, tl.where(m_row, b_low, _LSE_PAD))


@triton.jit
def _probability(b_s, b_high, b_low, scale_log2):
    """P from a score and its row's log-sum-exp, at most 1; a NaN stays one.

    The bound matters where scores are huge: this product may add up in another order than the forward's, and
    one last place of a score of 1e11 is an exponent of thousands.
    """
    b_x = (b_s - b_high) * scale_log2 - b_low
    return tl.exp2(tl.minimum(b_x, 0.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _dq_tile(
    p_q, p_k, p_kt, p_v, p_vt, p_do, b_q, b_do, b_high, b_low, b_delta, b_dq, n, o_row, o_row_in, o_col,
    o_chunk, o_piece,
    scale_log2, seq_len, seq_pad, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK_QK: tl.constexpr,
    CHUNK_PV: tl.constexpr,
    TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """One block of keys into dQ: dS = P * (dO V^T - delta), dQ += dS K."""
    o_key = n + o_col
    o_key_in = o_key
    if EDGE:
        o_key_in = tl.minimum(o_key, seq_len - 1)
    b_s = _product(
        b_q, p_q, p_k, p_kt, o_row_in, o_key_in, o_key, o_chunk, seq_pad, n * zero,
        HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    b_dp = _product(
        b_do, p_do, p_v, p_vt, o_row_in, o_key_in, o_key, o_chunk, seq_pad, n * zero,
        HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    b_p = _probability(b_s, b_high[:, None], b_low[:, None], scale_log2)
    if EDGE:
        m_key = o_key[None, :] < seq_len
        if CAUSAL:
            m_key = m_key & (o_key[None, :] <= o_row[:, None])
        b_p = tl.where(m_key, b_p, 0.0)
    b_ds = (b_p * (b_dp - b_delta[:, None])).to(p_k.dtype.element_ty)
    return _accumulate(b_dq, b_ds, p_k, o_key_in, o_piece, HEAD_DIM, CHUNK_PV)


@triton.jit(do_not_specialize=["seq_len"])
def _dq_kernel(
    p_q, p_k, p_kt, p_v, p_vt, p_do, p_high, p_low, p_delta, p_dq, scale, scale_log2, seq_len, seq_pad, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK_QK: tl.constexpr,
    CHUNK_PV: tl.constexpr,
    TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of dQ of one (batch, head), the sum over keys in ascending order. Grid: (row blocks * B *
    H,)."""
    n_blocks = tl.cdiv(seq_len, BLOCK_M)
    i_slice = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_block = tl.program_id(0) % n_blocks
    if CAUSAL:
        i_block = n_blocks - 1 - i_block
    p_q += i_slice * seq_len * HEAD_DIM
    p_k += i_slice * seq_len * HEAD_DIM
    p_v += i_slice * seq_len * HEAD_DIM
    p_do += i_slice * seq_len * HEAD_DIM
    p_dq += i_slice * seq_len * HEAD_DIM
    if TRANSPOSED:
        p_kt += i_slice * seq_pad * HEAD_DIM
        p_vt += i_slice * seq_pad * HEAD_DIM

    o_row = i_block * BLOCK_M + tl.arange(0, BLOCK_M)
    o_row_in = tl.minimum(o_row, seq_len - 1)
    o_col = tl.arange(0, BLOCK_N)
    o_chunk = tl.arange(0, CHUNK_QK)
    o_piece = tl.arange(0, CHUNK_PV)
    b_high = tl.load(p_high + i_slice * seq_pad + o_row)
    b_low = tl.load(p_low + i_slice * seq_pad + o_row)
    b_delta = tl.load(p_delta + i_slice * seq_pad + o_row)
    b_q = _left(p_q, o_row_in, o_chunk, HEAD_DIM, CHUNK_QK)
    b_do = _left(p_do, o_row_in, o_chunk, HEAD_DIM, CHUNK_QK)
    b_dq = _zeros(BLOCK_M, HEAD_DIM, CHUNK_PV)

    if CAUSAL:
        end = tl.minimum(seq_len, (i_block + 1) * BLOCK_M)
        inner = i_block * BLOCK_M // BLOCK_N * BLOCK_N
    else:
        end = seq_len
        inner = seq_len // BLOCK_N * BLOCK_N
    for n in tl.range(0, inner, BLOCK_N):
        b_dq = _dq_tile(
            p_q, p_k, p_kt, p_v, p_vt, p_do, b_q, b_do, b_high, b_low, b_delta, b_dq, n, o_row, o_row_in,
            o_col, o_chunk, o_piece,
            scale_log2, seq_len, seq_pad, zero,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, CAUSAL, False,
        )  # fmt: skip
    for n in tl.range(inner, end, BLOCK_N):
        b_dq = _dq_tile(
            p_q, p_k, p_kt, p_v, p_vt, p_do, b_q, b_do, b_high, b_low, b_delta, b_dq, n, o_row, o_row_in,
            o_col, o_chunk, o_piece,
            scale_log2, seq_len, seq_pad, zero,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, CAUSAL, True,
        )  # fmt: skip

    _store(p_dq, b_dq, tl.zeros([BLOCK_M], tl.float32) + scale, o_row, o_piece, seq_len, HEAD_DIM, CHUNK_PV)


@triton.jit
def _dkv_tile(
    p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_k, b_v, b_dk, b_dv, m, o_key, o_key_in,
    o_line, o_chunk, o_piece,
    scale_log2, seq_len, seq_pad, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK_QK: tl.constexpr,
    CHUNK_PV: tl.constexpr,
    TRANSPOSED: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """One block of rows into dK and dV: everything transposed, [keys, rows], so that P^T is left operand as
    it comes.

    Rows past the end need no mask: their padded log-sum-exp makes P exactly 0.
    """
    o_row = m + o_line
    o_row_in = tl.minimum(o_row, seq_len - 1)
    b_s = _product(
        b_k, p_k, p_q, p_qt, o_key_in, o_row_in, o_row, o_chunk, seq_pad, m * zero,
        HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_N, BLOCK_M,
    )  # fmt: skip
    b_p = _probability(b_s, tl.load(p_high + o_row)[None, :], tl.load(p_low + o_row)[None, :], scale_log2)
    if DIAGONAL:
        b_p = tl.where(o_key[:, None] <= o_row[None, :], b_p, 0.0)
    b_dv = _accumulate(b_dv, b_p.to(p_do.dtype.element_ty), p_do, o_row_in, o_piece, HEAD_DIM, CHUNK_PV)
    b_dp = _product(
        b_v, p_v, p_do, p_dot, o_key_in, o_row_in, o_row, o_chunk, seq_pad, m * zero,
        HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_N, BLOCK_M,
    )  # fmt: skip
    b_ds = (b_p * (b_dp - tl.load(p_delta + o_row)[None, :])).to(p_q.dtype.element_ty)
    b_dk = _accumulate(b_dk, b_ds, p_q, o_row_in, o_piece, HEAD_DIM, CHUNK_PV)
    return b_dk, b_dv


@triton.jit(do_not_specialize=["seq_len"])
def _dkv_kernel(
    p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, p_dk, p_dv, scale, scale_log2, seq_len,
    seq_pad, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK_QK: tl.constexpr,
    CHUNK_PV: tl.constexpr,
    TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_N rows of dK and dV of one (batch, head), the sum over rows in ascending order. Grid: (key blocks
    * B * H,)."""
    n_blocks = tl.cdiv(seq_len, BLOCK_N)
    i_slice = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_block = (
        tl.program_id(0) % n_blocks
    )  # causal: the first keys have the most rows, so this is longest first
    p_q += i_slice * seq_len * HEAD_DIM
    p_k += i_slice * seq_len * HEAD_DIM
    p_v += i_slice * seq_len * HEAD_DIM
    p_do += i_slice * seq_len * HEAD_DIM
    p_dk += i_slice * seq_len * HEAD_DIM
    p_dv += i_slice * seq_len * HEAD_DIM
    p_high += i_slice * seq_pad
    p_low += i_slice * seq_pad
    p_delta += i_slice * seq_pad
    if TRANSPOSED:
        p_qt += i_slice * seq_pad * HEAD_DIM
        p_dot += i_slice * seq_pad * HEAD_DIM

    o_key = i_block * BLOCK_N + tl.arange(0, BLOCK_N)
    o_key_in = tl.minimum(o_key, seq_len - 1)
    o_line = tl.arange(0, BLOCK_M)
    o_chunk = tl.arange(0, CHUNK_QK)
    o_piece = tl.arange(0, CHUNK_PV)
    b_k = _left(p_k, o_key_in, o_chunk, HEAD_DIM, CHUNK_QK)
    b_v = _left(p_v, o_key_in, o_chunk, HEAD_DIM, CHUNK_QK)
    b_dk = _zeros(BLOCK_N, HEAD_DIM, CHUNK_PV)
    b_dv = _zeros(BLOCK_N, HEAD_DIM, CHUNK_PV)

    inner = 0
    if CAUSAL:
        first = i_block * BLOCK_N // BLOCK_M * BLOCK_M
        inner = tl.cdiv((i_block + 1) * BLOCK_N, BLOCK_M) * BLOCK_M
        for m in tl.range(first, tl.minimum(inner, seq_len), BLOCK_M):
            b_dk, b_dv = _dkv_tile(
                p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_k, b_v, b_dk, b_dv,
                m, o_key, o_key_in, o_line, o_chunk, o_piece, scale_log2, seq_len, seq_pad, zero,
                HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, True,
            )  # fmt: skip
    for m in tl.range(inner, seq_len, BLOCK_M):
        b_dk, b_dv = _dkv_tile(
            p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_k, b_v, b_dk, b_dv,
            m, o_key, o_key_in, o_line, o_chunk, o_piece, scale_log2, seq_len, seq_pad, zero,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, False,
        )  # fmt: skip

    b_one = tl.full([BLOCK_N], 1.0, tl.float32)
    _store(p_dk, b_dk, b_one * scale, o_key, o_piece, seq_len, HEAD_DIM, CHUNK_PV)
    _store(p_dv, b_dv, b_one, o_key, o_piece, seq_len, HEAD_DIM, CHUNK_PV)


# --- launchers
# -------------------------------------------------------------------------------------------------------

PREPARE_BLOCK = 64  # rows a program of the transpose and preprocess kernels
PREPARE_WARPS = 4


@dataclass(frozen=True)
class Workspace:
    """Scratch of one shape and configuration; every element that is read is written first, so it may hold
    anything.

    high, low (the log-sum-exp in two parts), delta: float32 [B*H, S_pad]. k_t, v_t, q_t, do_t: [B*H, D,
    S_pad] in the inputs' type, or None where the configuration reads the tensors as they are.
    """

    seq_pad: int
    high: torch.Tensor
    low: torch.Tensor
    delta: torch.Tensor
    k_t: torch.Tensor | None
    v_t: torch.Tensor | None
    q_t: torch.Tensor | None
    do_t: torch.Tensor | None


def allocate_workspace(q: torch.Tensor, config: AttentionConfig) -> Workspace:
    """The scratch that forward and backward of q's shape, type and device need under `config`; reusable for
    ever."""
    batch, heads, seq_len, head_dim = q.shape
    multiple = max(config.row_multiple, PREPARE_BLOCK)
    seq_pad = -(-seq_len // multiple) * multiple

    def rows() -> torch.Tensor:
        return torch.empty((batch * heads, seq_pad), dtype=torch.float32, device=q.device)

    def columns(used: bool) -> torch.Tensor | None:
        if not used:
            return None
        return torch.empty((batch * heads, head_dim, seq_pad), dtype=q.dtype, device=q.device)

    return Workspace(
        seq_pad=seq_pad,
        high=rows(),
        low=rows(),
        delta=rows(),
        k_t=columns(config.forward.transposed or config.dq.transposed),
        v_t=columns(config.dq.transposed),
        q_t=columns(config.dkv.transposed),
        do_t=columns(config.dkv.transposed),
    )


def attention_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    config: AttentionConfig,
    scale: float | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    workspace: Workspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O = softmax(scale * Q K^T) V and its log-sum-exp, launched on the current stream.

    q, k, v: [B, H, S, D], contiguous, one shape, one type of float16, bfloat16, float32; scale: default 1 /
    sqrt(D).
    Returns o like q and lse float64 [B, H, S] (natural logarithm of the sum of exponentials of the scaled
    scores; float64 because the backward needs its last digits when scores are huge); they are the tensors of
    `out` where given. With `out` and `workspace` nothing is allocated.
    Raises ValueError, naming the argument and what is legal, before anything is launched.
    """
    scale = _checked(config, scale, q=q, k=k, v=v)
    o, lse = out if out is not None else (torch.empty_like(q), q.new_empty(q.shape[:3], dtype=torch.float64))
    _check_like(q, q.dtype, o=o)
    _check_like_rows(q, lse=lse)
    space = _checked_workspace(workspace, q, config)
    tile = config.forward
    with torch.cuda.device_of(q):  # Triton launches on the current device, which need not be q's
        k_t = _transposed(k, space.k_t, space) if tile.transposed else k
        _forward_kernel[(_n_blocks(q, tile.block_m),)](
            p_q=q, p_k=k, p_kt=k_t, p_v=v, p_o=o, p_lse=lse, scale_log2=_scale_log2(scale),
            seq_len=q.shape[2], seq_pad=space.seq_pad, zero=0, **_constants(tile, q.shape[3], causal),
        )  # fmt: skip
    return o, lse


def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool,
    config: AttentionConfig,
    scale: float | None = None,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    workspace: Workspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK, dV for the gradient `do` of O; o and lse as `attention_forward` returned them for the same
    arguments.

    All [B, H, S, D], contiguous, one type; lse float64 [B, H, S]. `out` = (dq, dk, dv). The rest as in
    `attention_forward`.
    """
    scale = _checked(config, scale, q=q, k=k, v=v, o=o, do=do)
    _check_like_rows(q, lse=lse)
    dq, dk, dv = out if out is not None else (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v))
    _check_like(q, q.dtype, dq=dq, dk=dk, dv=dv)
    space = _checked_workspace(workspace, q, config)
    seq_len, head_dim = q.shape[2:]
    with torch.cuda.device_of(q):
        _preprocess_kernel[(space.seq_pad // PREPARE_BLOCK * q.shape[0] * q.shape[1],)](
            p_o=o, p_do=do, p_lse=lse, p_high=space.high, p_low=space.low, p_delta=space.delta,
            scale_log2=_scale_log2(scale), seq_len=seq_len, seq_pad=space.seq_pad,
            HEAD_DIM=head_dim, BLOCK=PREPARE_BLOCK, num_warps=PREPARE_WARPS,
        )  # fmt: skip
        tile = config.dq
        k_t = _transposed(k, space.k_t, space) if tile.transposed else k
        v_t = _transposed(v, space.v_t, space) if tile.transposed else v
        _dq_kernel[(_n_blocks(q, tile.block_m),)](
            p_q=q, p_k=k, p_kt=k_t, p_v=v, p_vt=v_t, p_do=do, p_high=space.high, p_low=space.low,
            p_delta=space.delta, p_dq=dq,
            scale=scale, scale_log2=_scale_log2(scale), seq_len=seq_len, seq_pad=space.seq_pad, zero=0,
            **_constants(tile, head_dim, causal),
        )  # fmt: skip
        tile = config.dkv
        q_t = _transposed(q, space.q_t, space) if tile.transposed else q
        do_t = _transposed(do, space.do_t, space) if tile.transposed else do
        _dkv_kernel[(_n_blocks(q, tile.block_n),)](
            p_q=q, p_qt=q_t, p_k=k, p_v=v, p_do=do, p_dot=do_t, p_high=space.high, p_low=space.low,
            p_delta=space.delta, p_dk=dk, p_dv=dv,
            scale=scale, scale_log2=_scale_log2(scale), seq_len=seq_len, seq_pad=space.seq_pad, zero=0,
            **_constants(tile, head_dim, causal),
        )  # fmt: skip
    return dq, dk, dv


def _scale_log2(scale: float) -> float:
    # Exactly the float32 that the kernels multiply with: they also use it in float64, and the two must not
    # differ.
    return float(struct.unpack("f", struct.pack("f", scale * LOG2_E))[0])


def _n_blocks(q: torch.Tensor, block: int) -> int:
    # One axis: the others of a CUDA grid end at 65,535, and B * H is beyond it for short sequences.
    return -(-q.shape[2] // block) * q.shape[0] * q.shape[1]


def _constants(tile: TileConfig, head_dim: int, causal: bool) -> dict[str, Any]:
    return {
        "HEAD_DIM": head_dim,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "CHUNK_QK": tile.chunk_qk,
        "CHUNK_PV": tile.chunk_pv,
        "TRANSPOSED": tile.transposed,
        "CAUSAL": causal,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }


def _transposed(x: torch.Tensor, x_t: torch.Tensor | None, space: Workspace) -> torch.Tensor:
    assert x_t is not None  # _checked_workspace
    _transpose_kernel[(space.seq_pad // PREPARE_BLOCK * x.shape[0] * x.shape[1],)](
        p_x=x, p_xt=x_t, seq_len=x.shape[2], seq_pad=space.seq_pad,
        HEAD_DIM=x.shape[3], BLOCK=PREPARE_BLOCK, num_warps=PREPARE_WARPS,
    )  # fmt: skip
    return x_t


def _checked(config: AttentionConfig, scale: float | None, **tensors: torch.Tensor) -> float:
    """The scale to use, after every input was found legal."""
    q = tensors["q"]
    if q.dim() != 4 or 0 in q.shape:
        raise ValueError(
            f"q has shape {list(q.shape)}; legal: [batch, heads, seq_len, head_dim], each at least 1"
        )
    head_dim = q.shape[3]
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"q has head_dim {head_dim}; legal values: {', '.join(map(str, HEAD_DIMS))}")
    if _dtype_name(q) not in DTYPES:
        raise ValueError(f"q has dtype {_dtype_name(q)}; legal values: {', '.join(DTYPES)}")
    if (q.shape[2] + 256) * head_dim >= 2**31:
        raise ValueError(
            f"q has seq_len {q.shape[2]}; legal: a (batch, head) slice of fewer than 2^31 elements"
        )
    if q.device.type != "cuda" and not triton.knobs.runtime.interpret:
        raise ValueError(
            f"q is on {q.device}; legal: a GPU, or the CPU with TRITON_INTERPRET=1 set before triton"
        )
    for name, x in tensors.items():
        _check_like(q, q.dtype, **{name: x})
    for tile in (config.forward, config.dq, config.dkv):
        if head_dim % tile.chunk_qk or head_dim % tile.chunk_pv:
            raise ValueError(f"config has tile {tile.name}; legal: chunks that divide head_dim {head_dim}")
    scale = head_dim**-0.5 if scale is None else scale
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}; legal values: finite and above 0")
    return scale


def _check_like(model: torch.Tensor, dtype: torch.dtype, **tensors: torch.Tensor) -> None:
    _check_shaped(list(model.shape), dtype, model.device, **tensors)


def _check_like_rows(model: torch.Tensor, **tensors: torch.Tensor) -> None:
    _check_shaped(list(model.shape[:3]), torch.float64, model.device, **tensors)


def _check_shaped(
    shape: list[int], dtype: torch.dtype, device: torch.device, **tensors: torch.Tensor
) -> None:
    for name, x in tensors.items():
        if list(x.shape) != shape:
            raise ValueError(f"{name} has shape {list(x.shape)}; legal: {shape}, as q demands")
        if x.dtype != dtype:
            raise ValueError(f"{name} has dtype {_dtype_name(x)}; legal: {str(dtype).removeprefix('torch.')}")
        if x.device != device:
            raise ValueError(f"{name} is on {x.device}; legal: {device}, where q is")
        if not x.is_contiguous():
            raise ValueError(
                f"{name} has strides {list(x.stride())}; legal: contiguous ({name}.contiguous() makes it so)"
            )


def _checked_workspace(space: Workspace | None, q: torch.Tensor, config: AttentionConfig) -> Workspace:
    if space is None:
        return allocate_workspace(q, config)
    multiple = max(config.row_multiple, PREPARE_BLOCK)
    seq_pad = -(-q.shape[2] // multiple) * multiple
    rows = [q.shape[0] * q.shape[1], seq_pad]
    needs = {
        "k_t": config.forward.transposed or config.dq.transposed,
        "v_t": config.dq.transposed,
        "q_t": config.dkv.transposed,
        "do_t": config.dkv.transposed,
    }
    fits = space.seq_pad == seq_pad and list(space.low.shape) == rows and space.low.device == q.device
    for name, needed in needs.items():
        x_t = getattr(space, name)
        fits = fits and (
            not needed or (x_t is not None and x_t.shape[1] == q.shape[3] and x_t.dtype == q.dtype)
        )
    if not fits:
        raise ValueError(
            "workspace is of another shape, type or configuration; legal: allocate_workspace(q, config)"
        )
    return space


def _dtype_name(x: torch.Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


# --- autograd
# --------------------------------------------------------------------------------------------------------


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        scale: float,
        config: AttentionConfig,
    ) -> torch.Tensor:
        o, lse = attention_forward(q, k, v, causal=causal, config=config, scale=scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale, ctx.config = causal, scale, config
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, do: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = attention_backward(
            q, k, v, o, lse, do.contiguous(), causal=ctx.causal, config=ctx.config, scale=ctx.scale
        )
        return dq, dk, dv, None, None, None


# --- public function
# -------------------------------------------------------------------------------------------------


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """softmax(scale * Q K^T) V, differentiable, with the conventions of torch's scaled_dot_product_attention.

    q, k, v: [B, H, S, D] of one shape, head_dim 64 or 128, float16, bfloat16 or float32; copied if not
    contiguous.
    scale: default 1 / sqrt(D). Raises ValueError, naming the argument and what is legal, before anything is
    launched.
    """
    if q.dim() != 4 or 0 in q.shape:
        raise ValueError(
            f"q has shape {list(q.shape)}; legal: [batch, heads, seq_len, head_dim], each at least 1"
        )
    config = plan(
        architecture(q.device),
        head_dim=q.shape[3],
        seq_len=q.shape[2],
        causal=is_causal,
        dtype=_dtype_name(q),
    )
    scale = q.shape[3] ** -0.5 if scale is None else scale
    o: torch.Tensor = _Attention.apply(
        q.contiguous(), k.contiguous(), v.contiguous(), is_causal, scale, config
    )
    return o
