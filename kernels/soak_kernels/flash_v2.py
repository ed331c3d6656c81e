"""FlashAttention-2, forward and backward, in plain Triton: deterministic to the bit. The load of every card
with matrix units, and the kernels that the rest of the lineage shares.

Q outer, K and V inner, accumulators on chip, one division at the end. After Dao, "FlashAttention-2" (arXiv
2307.08691), with two differences. dQ and dK/dV are separate kernels, each owning what it writes: no atomics,
so the same inputs give the same bits on the same card and build. And the row maximum is subtracted before the
scale is applied, because a fused s * scale - max rounds in one place only and exceeds 0 by thousands when
scores are near 65504^2 * 128.

One source serves two kinds of card by configuration (`tuning.TileConfig`). With matrix units the stationary
operand stays on chip and the head dimension is one step (chunk_qk == head_dim). Without (gfx906) it is
re-read in chunks, and the operand to the right of a product comes from a transposed, zero-padded copy in the
workspace.

What only some shapes need costs the others nothing, because it is decided at compile time:

* `seq_k`, `pad_k` and `group` are None where there are as many keys as rows and a key head for each head.
* DIM < HEAD_DIM: the head dimension is between powers of two, tiles are padded with zeros.
* V_TRANSPOSED: V comes from a transposed copy (`flash_v2_vt`).

Loads in a main loop carry no mask for rows: a tile that reaches past the end clamps its row numbers (it
re-reads the last row) and the score, probability or store is masked instead. Causal is aligned at the bottom
right: row i sees keys 0 .. i + Sk - Sq; a row that sees none gives O = 0, LSE = -inf and no gradient. Names:
p_ pointer, b_ block, o_ offsets, m_ mask, n_ count, i_ index.
"""

# Inside @triton.jit: no annotations, no conditional expressions over types, tuples that grow.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment
# ruff: noqa: RUF005, SIM108 - Triton compiles neither (*tuple, x) nor a conditional expression of two types

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import triton
import triton.language as tl

from soak_kernels import frame, tuning
from soak_kernels.device import architecture
from soak_kernels.frame import _store_lse, scale_log2
from soak_kernels.launch import Call, Launch, Options, on_card
from soak_kernels.shape import Shape, padded
from soak_kernels.tuning import AttentionConfig, TileConfig

# --- kernels
# ---------------------------------------------------------------------------------------------------------


@triton.jit
def _rows(p_x, o_x, o_dim, DIM: tl.constexpr, HEAD_DIM: tl.constexpr):
    """x at the offsets o_x [rows, dims]; zeros beyond DIM where the head dimension is padded."""
    if DIM == HEAD_DIM:
        b_x = tl.load(p_x + o_x)
    else:
        b_x = tl.load(p_x + o_x, mask=(o_dim < DIM)[None, :], other=0.0)
    return b_x


@triton.jit
def _left(p_x, o_row, o_chunk, DIM: tl.constexpr, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr):
    """The operand left of a product over the head dimension, once per program; a placeholder where tiles
    re-read it."""
    if CHUNK == HEAD_DIM:
        b_x = _rows(p_x, o_row[:, None] * DIM + o_chunk[None, :], o_chunk, DIM, HEAD_DIM)
    else:
        b_x = 0
    return b_x


@triton.jit
def _product(
    b_left, p_left, p_right, p_right_t, o_left, o_right, o_right_t, o_chunk, pad, shift,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr, TRANSPOSED: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """left [ROWS, D] times right [COLS, D] transposed, float32 [ROWS, COLS]; `shift` is a run-time zero (see
    callers)."""
    b_s = tl.zeros([ROWS, COLS], tl.float32)
    o_base = o_left[:, None] * DIM + o_chunk[None, :] + shift
    for c in tl.static_range(0, HEAD_DIM // CHUNK):
        if CHUNK == HEAD_DIM:
            b_a = b_left
        else:
            b_a = _rows(p_left, o_base + c * CHUNK, o_chunk + c * CHUNK, DIM, HEAD_DIM)
        if TRANSPOSED:
            b_b = tl.load(p_right_t + ((o_chunk[:, None] + c * CHUNK) * pad + o_right_t[None, :]))
        else:
            o_b = o_right[:, None] * DIM + o_chunk[None, :] + c * CHUNK
            b_b = tl.trans(_rows(p_right, o_b, o_chunk + c * CHUNK, DIM, HEAD_DIM))
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
def _accumulate(
    b_acc, b_p, p_x, o_row, o_piece, DIM: tl.constexpr, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr
):
    """b_acc + b_p @ x[o_row], piece by piece."""
    b_out = ()
    for c in tl.static_range(0, HEAD_DIM // CHUNK):
        o_x = o_row[:, None] * DIM + o_piece[None, :] + c * CHUNK
        b_x = _rows(p_x, o_x, o_piece + c * CHUNK, DIM, HEAD_DIM)
        b_out = b_out + (tl.dot(b_p, b_x, b_acc[c], input_precision="ieee"),)
    return b_out


@triton.jit
def _store(
    p_x, b_acc, b_factor, o_row, o_piece, n_rows,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Write b_acc * b_factor (a value per row) to the rows below n_rows."""
    for c in tl.static_range(0, HEAD_DIM // CHUNK):
        m_x = o_row[:, None] < n_rows
        if DIM < HEAD_DIM:
            m_x = m_x & (o_piece[None, :] + c * CHUNK < DIM)
        tl.store(
            p_x + (o_row[:, None] * DIM + o_piece[None, :] + c * CHUNK),
            (b_acc[c] * b_factor[:, None]).to(p_x.dtype.element_ty),
            mask=m_x,
        )


@triton.jit
def _forward_tile(
    p_q, p_k, p_kt, p_v, p_vt, b_q, b_max, b_sum, b_acc, n, o_last, o_row_in, o_col, o_chunk, o_piece,
    scale_log2, n_keys, pad, zero,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK_QK: tl.constexpr, CHUNK_PV: tl.constexpr, TRANSPOSED: tl.constexpr, V_TRANSPOSED: tl.constexpr,
    CAUSAL: tl.constexpr, EDGE: tl.constexpr, MAY_BE_EMPTY: tl.constexpr,
):  # fmt: skip
    """One block of keys into the running softmax. EDGE: the block crosses the diagonal or the end;
    MAY_BE_EMPTY: there are rows that see none of its keys and none before; o_last: the last key of each
    row."""
    o_key = n + o_col
    o_key_in = o_key
    if EDGE:
        o_key_in = tl.minimum(o_key, n_keys - 1)
    # n * zero is 0, but not to the compiler: without it the loads of Q leave the loop and fill every register
    # of gfx906.
    b_s = _product(
        b_q, p_q, p_k, p_kt, o_row_in, o_key_in, o_key, o_chunk, pad, n * zero,
        DIM, HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    if EDGE:
        m_key = o_key[None, :] < n_keys
        if CAUSAL:
            m_key = m_key & (o_key[None, :] <= o_last[:, None])
        b_s = tl.where(m_key, b_s, float("-inf"))
    b_max_new = tl.maximum(b_max, tl.max(b_s, 1))
    b_top = b_max_new
    if MAY_BE_EMPTY:
        b_top = tl.where(b_max_new == float("-inf"), 0.0, b_max_new)  # no key yet: every P is 0, not NaN
    b_p = tl.exp2((b_s - b_top[:, None]) * scale_log2)
    b_decay = tl.exp2((b_max - b_top) * scale_log2)
    b_sum = b_sum * b_decay + tl.sum(b_p, 1)
    b_p = b_p.to(p_v.dtype.element_ty)
    b_out = ()
    for c in tl.static_range(0, HEAD_DIM // CHUNK_PV):
        if V_TRANSPOSED:
            b_v = tl.trans(tl.load(p_vt + ((o_piece[:, None] + c * CHUNK_PV) * pad + o_key[None, :])))
        else:
            o_v = o_key_in[:, None] * DIM + o_piece[None, :] + c * CHUNK_PV
            b_v = _rows(p_v, o_v, o_piece + c * CHUNK_PV, DIM, HEAD_DIM)
        b_out = b_out + (tl.dot(b_p, b_v, b_acc[c] * b_decay[:, None], input_precision="ieee"),)
    return b_max_new, b_sum, b_out


@triton.jit
def _keys(seq_q, pad_q, seq_k, pad_k):
    """How many keys there are, and their padded count: those of the rows where none are given."""
    if seq_k is None:
        n_keys = seq_q
        pad = pad_q
    else:
        n_keys = seq_k
        pad = pad_k
    return n_keys, pad


@triton.jit
def _range_of_keys(
    i_block, seq_q, seq_k, n_keys, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr
):
    """For BLOCK_M rows: below `inner` every block of keys is visible to all of them, from `end` on none is to
    any."""
    if CAUSAL:
        if seq_k is None:
            end = tl.minimum(n_keys, (i_block + 1) * BLOCK_M)
            inner = i_block * BLOCK_M // BLOCK_N * BLOCK_N
        else:
            diagonal = seq_k - seq_q
            end = tl.maximum(0, tl.minimum(n_keys, (i_block + 1) * BLOCK_M + diagonal))
            seen = tl.minimum(n_keys, tl.maximum(0, i_block * BLOCK_M + diagonal + 1))
            inner = seen // BLOCK_N * BLOCK_N
    else:
        end = n_keys
        inner = n_keys // BLOCK_N * BLOCK_N
    return inner, end


@triton.jit
def _key_head(i_head, group):
    """The key head of a head, both counted over the batch."""
    if group is None:
        i_kv = i_head
    else:
        i_kv = i_head // group
    return i_kv


@triton.jit
def _first_head(i_kv, group):
    """The first of the heads that share a key head."""
    if group is None:
        i_slice = i_kv
    else:
        i_slice = i_kv * group
    return i_slice


@triton.jit
def _last_key(o_row, seq_q, seq_k):
    """The last key that each row sees under the causal mask."""
    if seq_k is None:
        o_last = o_row
    else:
        o_last = o_row + (seq_k - seq_q)
    return o_last


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _forward_kernel(
    p_q, p_k, p_kt, p_v, p_vt, p_o, p_lse, scale_log2, seq_q, pad_q, zero, seq_k, pad_k, group,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK_QK: tl.constexpr, CHUNK_PV: tl.constexpr, TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr,
    V_TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of O and LSE of one (batch, head). Grid: (row blocks * B * H,)."""
    n_keys, pad = _keys(seq_q, pad_q, seq_k, pad_k)
    n_blocks = tl.cdiv(seq_q, BLOCK_M)
    i_slice = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_kv = _key_head(i_slice, group)
    i_block = tl.program_id(0) % n_blocks
    if CAUSAL:
        i_block = n_blocks - 1 - i_block  # the longest rows first, so that the last wave of programs is short
    p_q += i_slice * seq_q * DIM
    p_k += i_kv * n_keys * DIM
    p_v += i_kv * n_keys * DIM
    p_o += i_slice * seq_q * DIM
    p_lse += i_slice * seq_q
    if TRANSPOSED:
        p_kt += i_kv * pad * HEAD_DIM
    if V_TRANSPOSED:
        p_vt += i_kv * pad * HEAD_DIM

    o_row = i_block * BLOCK_M + tl.arange(0, BLOCK_M)
    o_last = _last_key(o_row, seq_q, seq_k)
    o_row_in = tl.minimum(o_row, seq_q - 1)
    o_col = tl.arange(0, BLOCK_N)
    o_chunk = tl.arange(0, CHUNK_QK)
    o_piece = tl.arange(0, CHUNK_PV)
    b_q = _left(p_q, o_row_in, o_chunk, DIM, HEAD_DIM, CHUNK_QK)
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_acc = _zeros(BLOCK_M, HEAD_DIM, CHUNK_PV)

    inner, end = _range_of_keys(i_block, seq_q, seq_k, n_keys, BLOCK_M, BLOCK_N, CAUSAL)
    for n in tl.range(0, inner, BLOCK_N):
        b_max, b_sum, b_acc = _forward_tile(
            p_q, p_k, p_kt, p_v, p_vt, b_q, b_max, b_sum, b_acc, n, o_last, o_row_in, o_col, o_chunk, o_piece,
            scale_log2, n_keys, pad, zero,
            DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, V_TRANSPOSED, CAUSAL, False,
            False,
        )  # fmt: skip
    for n in tl.range(inner, end, BLOCK_N):
        b_max, b_sum, b_acc = _forward_tile(
            p_q, p_k, p_kt, p_v, p_vt, b_q, b_max, b_sum, b_acc, n, o_last, o_row_in, o_col, o_chunk, o_piece,
            scale_log2, n_keys, pad, zero,
            DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, V_TRANSPOSED, CAUSAL, True,
            CAUSAL and seq_k is not None,
        )  # fmt: skip

    b_inverse = 1.0 / b_sum
    if seq_k is not None:
        b_inverse = tl.where(b_sum == 0.0, 0.0, b_inverse)
    _store(p_o, b_acc, b_inverse, o_row, o_piece, seq_q, DIM, HEAD_DIM, CHUNK_PV)
    _store_lse(p_lse, b_max, b_sum, scale_log2, o_row, seq_q)


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
    p_q, p_k, p_kt, p_v, p_vt, p_do, b_q, b_do, b_high, b_low, b_delta, b_dq, n, o_last, o_row_in, o_col,
    o_chunk, o_piece,
    scale_log2, n_keys, pad, zero,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK_QK: tl.constexpr, CHUNK_PV: tl.constexpr, TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr,
    EDGE: tl.constexpr,
):  # fmt: skip
    """One block of keys into dQ: dS = P * (dO V^T - delta), dQ += dS K."""
    o_key = n + o_col
    o_key_in = o_key
    if EDGE:
        o_key_in = tl.minimum(o_key, n_keys - 1)
    b_s = _product(
        b_q, p_q, p_k, p_kt, o_row_in, o_key_in, o_key, o_chunk, pad, n * zero,
        DIM, HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    b_dp = _product(
        b_do, p_do, p_v, p_vt, o_row_in, o_key_in, o_key, o_chunk, pad, n * zero,
        DIM, HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    b_p = _probability(b_s, b_high[:, None], b_low[:, None], scale_log2)
    if EDGE:
        m_key = o_key[None, :] < n_keys
        if CAUSAL:
            m_key = m_key & (o_key[None, :] <= o_last[:, None])
        b_p = tl.where(m_key, b_p, 0.0)
    b_ds = (b_p * (b_dp - b_delta[:, None])).to(p_k.dtype.element_ty)
    return _accumulate(b_dq, b_ds, p_k, o_key_in, o_piece, DIM, HEAD_DIM, CHUNK_PV)


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _dq_kernel(
    p_q, p_k, p_kt, p_v, p_vt, p_do, p_high, p_low, p_delta, p_dq, scale, scale_log2, seq_q, pad_q, zero,
    seq_k, pad_k, group,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK_QK: tl.constexpr, CHUNK_PV: tl.constexpr, TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of dQ of one (batch, head), the sum over keys in ascending order. Grid: (row blocks * B *
    H,)."""
    n_keys, pad = _keys(seq_q, pad_q, seq_k, pad_k)
    n_blocks = tl.cdiv(seq_q, BLOCK_M)
    i_slice = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_kv = _key_head(i_slice, group)
    i_block = tl.program_id(0) % n_blocks
    if CAUSAL:
        i_block = n_blocks - 1 - i_block
    p_q += i_slice * seq_q * DIM
    p_k += i_kv * n_keys * DIM
    p_v += i_kv * n_keys * DIM
    p_do += i_slice * seq_q * DIM
    p_dq += i_slice * seq_q * DIM
    if TRANSPOSED:
        p_kt += i_kv * pad * HEAD_DIM
        p_vt += i_kv * pad * HEAD_DIM

    o_row = i_block * BLOCK_M + tl.arange(0, BLOCK_M)
    o_last = _last_key(o_row, seq_q, seq_k)
    o_row_in = tl.minimum(o_row, seq_q - 1)
    o_col = tl.arange(0, BLOCK_N)
    o_chunk = tl.arange(0, CHUNK_QK)
    o_piece = tl.arange(0, CHUNK_PV)
    b_high = tl.load(p_high + i_slice * pad_q + o_row)
    b_low = tl.load(p_low + i_slice * pad_q + o_row)
    b_delta = tl.load(p_delta + i_slice * pad_q + o_row)
    b_q = _left(p_q, o_row_in, o_chunk, DIM, HEAD_DIM, CHUNK_QK)
    b_do = _left(p_do, o_row_in, o_chunk, DIM, HEAD_DIM, CHUNK_QK)
    b_dq = _zeros(BLOCK_M, HEAD_DIM, CHUNK_PV)

    inner, end = _range_of_keys(i_block, seq_q, seq_k, n_keys, BLOCK_M, BLOCK_N, CAUSAL)
    for n in tl.range(0, inner, BLOCK_N):
        b_dq = _dq_tile(
            p_q, p_k, p_kt, p_v, p_vt, p_do, b_q, b_do, b_high, b_low, b_delta, b_dq, n, o_last, o_row_in,
            o_col, o_chunk, o_piece,
            scale_log2, n_keys, pad, zero,
            DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, CAUSAL, False,
        )  # fmt: skip
    for n in tl.range(inner, end, BLOCK_N):
        b_dq = _dq_tile(
            p_q, p_k, p_kt, p_v, p_vt, p_do, b_q, b_do, b_high, b_low, b_delta, b_dq, n, o_last, o_row_in,
            o_col, o_chunk, o_piece,
            scale_log2, n_keys, pad, zero,
            DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, CAUSAL, True,
        )  # fmt: skip

    _store(
        p_dq, b_dq, tl.zeros([BLOCK_M], tl.float32) + scale, o_row, o_piece, seq_q, DIM, HEAD_DIM, CHUNK_PV
    )


@triton.jit
def _dkv_tile(
    p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_k, b_v, b_dk, b_dv, m, o_first, o_key_in,
    o_line, o_chunk, o_piece,
    scale_log2, seq_q, pad_q, zero,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK_QK: tl.constexpr, CHUNK_PV: tl.constexpr, TRANSPOSED: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """One block of rows into dK and dV: everything transposed, [keys, rows], so that P^T is left operand as
    it comes.

    Rows past the end need no mask: their padded log-sum-exp makes P exactly 0.
    """
    o_row = m + o_line
    o_row_in = tl.minimum(o_row, seq_q - 1)
    b_s = _product(
        b_k, p_k, p_q, p_qt, o_key_in, o_row_in, o_row, o_chunk, pad_q, m * zero,
        DIM, HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_N, BLOCK_M,
    )  # fmt: skip
    b_p = _probability(b_s, tl.load(p_high + o_row)[None, :], tl.load(p_low + o_row)[None, :], scale_log2)
    if DIAGONAL:
        b_p = tl.where(o_first[:, None] <= o_row[None, :], b_p, 0.0)
    b_dv = _accumulate(b_dv, b_p.to(p_do.dtype.element_ty), p_do, o_row_in, o_piece, DIM, HEAD_DIM, CHUNK_PV)
    b_dp = _product(
        b_v, p_v, p_do, p_dot, o_key_in, o_row_in, o_row, o_chunk, pad_q, m * zero,
        DIM, HEAD_DIM, CHUNK_QK, TRANSPOSED, BLOCK_N, BLOCK_M,
    )  # fmt: skip
    b_ds = (b_p * (b_dp - tl.load(p_delta + o_row)[None, :])).to(p_q.dtype.element_ty)
    b_dk = _accumulate(b_dk, b_ds, p_q, o_row_in, o_piece, DIM, HEAD_DIM, CHUNK_PV)
    return b_dk, b_dv


@triton.jit
def _dkv_head(
    p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_k, b_v, b_dk, b_dv, i_block, o_key, o_key_in,
    o_line, o_chunk, o_piece,
    scale_log2, seq_q, pad_q, zero, seq_k,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK_QK: tl.constexpr, CHUNK_PV: tl.constexpr, TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """All rows of one head into dK and dV, in ascending order."""
    inner = 0
    if CAUSAL:
        if seq_k is None:
            o_first = o_key
            first = i_block * BLOCK_N // BLOCK_M * BLOCK_M
            inner = tl.cdiv((i_block + 1) * BLOCK_N, BLOCK_M) * BLOCK_M
        else:
            diagonal = seq_k - seq_q
            o_first = o_key - diagonal
            first = tl.maximum(0, i_block * BLOCK_N - diagonal) // BLOCK_M * BLOCK_M
            inner = tl.cdiv(tl.maximum(0, (i_block + 1) * BLOCK_N - 1 - diagonal), BLOCK_M) * BLOCK_M
        for m in tl.range(first, tl.minimum(inner, seq_q), BLOCK_M):
            b_dk, b_dv = _dkv_tile(
                p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_k, b_v, b_dk, b_dv,
                m, o_first, o_key_in, o_line, o_chunk, o_piece, scale_log2, seq_q, pad_q, zero,
                DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, True,
            )  # fmt: skip
    for m in tl.range(inner, seq_q, BLOCK_M):
        b_dk, b_dv = _dkv_tile(
            p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_k, b_v, b_dk, b_dv,
            m, o_key, o_key_in, o_line, o_chunk, o_piece, scale_log2, seq_q, pad_q, zero,
            DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, False,
        )  # fmt: skip
    return b_dk, b_dv


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _dkv_kernel(
    p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, p_dk, p_dv, scale, scale_log2, seq_q, pad_q,
    zero, seq_k, pad_k, group,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK_QK: tl.constexpr, CHUNK_PV: tl.constexpr, TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_N rows of dK and dV of one key head, the sum over its group's heads and their rows in ascending
    order. Grid: (key blocks * B * Hkv,)."""
    n_keys, _ = _keys(seq_q, pad_q, seq_k, pad_k)
    n_blocks = tl.cdiv(n_keys, BLOCK_N)
    i_kv = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_block = (
        tl.program_id(0) % n_blocks
    )  # causal: the first keys have the most rows, so this is longest first
    i_slice = _first_head(i_kv, group)
    p_q += i_slice * seq_q * DIM
    p_k += i_kv * n_keys * DIM
    p_v += i_kv * n_keys * DIM
    p_do += i_slice * seq_q * DIM
    p_dk += i_kv * n_keys * DIM
    p_dv += i_kv * n_keys * DIM
    p_high += i_slice * pad_q
    p_low += i_slice * pad_q
    p_delta += i_slice * pad_q
    if TRANSPOSED:
        p_qt += i_slice * pad_q * HEAD_DIM
        p_dot += i_slice * pad_q * HEAD_DIM

    o_key = i_block * BLOCK_N + tl.arange(0, BLOCK_N)
    o_key_in = tl.minimum(o_key, n_keys - 1)
    o_line = tl.arange(0, BLOCK_M)
    o_chunk = tl.arange(0, CHUNK_QK)
    o_piece = tl.arange(0, CHUNK_PV)
    b_k = _left(p_k, o_key_in, o_chunk, DIM, HEAD_DIM, CHUNK_QK)
    b_v = _left(p_v, o_key_in, o_chunk, DIM, HEAD_DIM, CHUNK_QK)
    b_dk = _zeros(BLOCK_N, HEAD_DIM, CHUNK_PV)
    b_dv = _zeros(BLOCK_N, HEAD_DIM, CHUNK_PV)

    if group is None:
        b_dk, b_dv = _dkv_head(
            p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_k, b_v, b_dk, b_dv, i_block, o_key,
            o_key_in, o_line, o_chunk, o_piece, scale_log2, seq_q, pad_q, zero, seq_k,
            DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, CAUSAL,
        )  # fmt: skip
    else:
        for _ in tl.range(0, group):
            b_dk, b_dv = _dkv_head(
                p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_k, b_v, b_dk, b_dv, i_block,
                o_key, o_key_in, o_line, o_chunk, o_piece, scale_log2, seq_q, pad_q, zero, seq_k,
                DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, CAUSAL,
            )  # fmt: skip
            p_q += seq_q * DIM  # the next head of the group; one head's offset fits 32 bits
            p_do += seq_q * DIM
            p_high += pad_q
            p_low += pad_q
            p_delta += pad_q
            if TRANSPOSED:
                p_qt += pad_q * HEAD_DIM
                p_dot += pad_q * HEAD_DIM

    b_one = tl.full([BLOCK_N], 1.0, tl.float32)
    _store(p_dk, b_dk, b_one * scale, o_key, o_piece, n_keys, DIM, HEAD_DIM, CHUNK_PV)
    _store(p_dv, b_dv, b_one, o_key, o_piece, n_keys, DIM, HEAD_DIM, CHUNK_PV)


# --- launchers


@dataclass(frozen=True)
class Workspace:
    """Scratch of one shape and configuration; every element that is read is written first, so it may hold
    anything.

    high, low (the log-sum-exp in two parts), delta: float32 [B*H, pad_q]. Transposed copies in the inputs'
    type, None where the configuration reads the tensors as they are: k_t, v_t [B*Hkv, padded D, pad_k]; q_t,
    do_t [B*H, padded D, pad_q].
    """

    config: AttentionConfig
    shape: Shape
    dtype: torch.dtype
    high: torch.Tensor
    low: torch.Tensor
    delta: torch.Tensor
    k_t: torch.Tensor | None
    v_t: torch.Tensor | None
    q_t: torch.Tensor | None
    do_t: torch.Tensor | None


def plan(
    arch: str, shape: Shape, *, causal: bool, dtype: str, n_processors: int | None = None
) -> AttentionConfig:
    """The tiles for this shape and why; the same for any number of processors."""
    del n_processors
    return tuning.plan(arch, head_dim=shape.head_dim, seq_len=shape.seq_k, causal=causal, dtype=dtype)


def allocate(q: torch.Tensor, k: torch.Tensor, config: AttentionConfig) -> Workspace:
    """The scratch that forward and backward of these shapes, type and device need under `config`; reusable
    for ever. Raises ValueError for tensors that no kernel takes."""
    shape, _ = frame.checked(q, k, k, None)
    for tile in (config.forward, config.dq, config.dkv):
        if shape.padded_dim % tile.chunk_qk or shape.padded_dim % tile.chunk_pv:
            raise ValueError(f"config has tile {tile.name}; legal: chunks that divide {shape.padded_dim}")

    def rows() -> torch.Tensor:
        return q.new_empty((shape.n_heads, shape.pad_q), dtype=torch.float32)

    def columns(used: bool, n_heads: int, pad: int) -> torch.Tensor | None:
        return q.new_empty((n_heads, shape.padded_dim, pad)) if used else None

    return Workspace(
        config, shape, q.dtype, rows(), rows(), rows(),
        k_t=columns(config.forward.transposed or config.dq.transposed, shape.n_kv_heads, shape.pad_k),
        v_t=columns(config.forward.v_transposed or config.dq.transposed, shape.n_kv_heads, shape.pad_k),
        q_t=columns(config.dkv.transposed, shape.n_heads, shape.pad_q),
        do_t=columns(config.dkv.transposed, shape.n_heads, shape.pad_q),
    )  # fmt: skip


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    workspace: Workspace | None = None,
    launch: Launch = on_card,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O = softmax(scale * Q K^T) V and its log-sum-exp, launched on the current stream.

    q [B, H, Sq, D], k and v [B, Hkv, Sk, D], contiguous, one type of float16, bfloat16, float32; scale:
    default 1 / sqrt(D).
    Returns o like q and lse float64 [B, H, Sq] (natural logarithm of the sum of exponentials of the scaled
    scores, -inf for a row that sees no key; float64 because the backward needs its last digits when scores
    are huge); they are the tensors of `out` where given. With `out` and `workspace` nothing is allocated.
    Raises ValueError, naming the argument and what is legal, before anything is launched.
    """
    shape, scale = frame.checked(q, k, v, scale)
    o, lse = frame.outputs(q, k, v, out)
    space = _fitting(workspace, q, k, causal, shape)
    tile = space.config.forward
    k_t = frame.transpose(k, space.k_t, launch) if tile.transposed else k
    v_t = frame.transpose(v, space.v_t, launch) if tile.v_transposed else None
    launch(
        Call(
            _forward_kernel, -(-shape.seq_q // tile.block_m) * shape.n_heads,
            {"p_q": q, "p_k": k, "p_kt": k_t, "p_v": v, "p_vt": v_t, "p_o": o, "p_lse": lse,
             "scale_log2": scale_log2(scale), **counts(shape)},
            {**constants(tile, shape.head_dim, causal), "V_TRANSPOSED": tile.v_transposed}, _options(tile),
        )
    )  # fmt: skip
    return o, lse


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    workspace: Workspace | None = None,
    launch: Launch = on_card,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK, dV for the gradient `do` of O; o and lse as a forward returned them for the same arguments.
    `out` = (dq, dk, dv). The rest as in `forward`."""
    shape, scale = frame.checked(q, k, v, scale, like_q=(("o", o), ("do", do)))
    dq, dk, dv = frame.gradients(q, k, v, lse, do, out)
    space = _fitting(workspace, q, k, causal, shape)
    frame.preprocess(o, do, lse, scale, (space.high, space.low, space.delta), launch)
    rows = {"p_high": space.high, "p_low": space.low, "p_delta": space.delta}
    numbers = {"scale": scale, "scale_log2": scale_log2(scale), **counts(shape)}
    tile = space.config.dq
    k_t = frame.transpose(k, space.k_t, launch) if tile.transposed else k
    v_t = frame.transpose(v, space.v_t, launch) if tile.transposed else v
    launch(
        Call(
            _dq_kernel, -(-shape.seq_q // tile.block_m) * shape.n_heads,
            {"p_q": q, "p_k": k, "p_kt": k_t, "p_v": v, "p_vt": v_t, "p_do": do, **rows, "p_dq": dq,
             **numbers},
            constants(tile, shape.head_dim, causal), _options(tile),
        )
    )  # fmt: skip
    tile = space.config.dkv
    q_t = frame.transpose(q, space.q_t, launch) if tile.transposed else q
    do_t = frame.transpose(do, space.do_t, launch) if tile.transposed else do
    launch(
        Call(
            _dkv_kernel, -(-shape.seq_k // tile.block_n) * shape.n_kv_heads,
            {"p_q": q, "p_qt": q_t, "p_k": k, "p_v": v, "p_do": do, "p_dot": do_t, **rows, "p_dk": dk,
             "p_dv": dv, **numbers},
            constants(tile, shape.head_dim, causal), _options(tile),
        )
    )  # fmt: skip
    return dq, dk, dv


class HasBackward(Protocol):
    """The scratch of a member that differs from this one in its forward alone."""

    @property
    def backward(self) -> Workspace: ...


def shared_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    workspace: HasBackward | None = None,
    launch: Launch = on_card,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`backward` for a member with scratch of its own: it needs O and the log-sum-exp, not how they came
    about (which loop was outer, how keys were dealt out)."""
    space = None if workspace is None else workspace.backward
    return backward(q, k, v, o, lse, do, causal=causal, scale=scale, out=out, workspace=space, launch=launch)


def counts(shape: Shape) -> dict[str, int | None]:
    """The kernels' arguments about rows, keys and heads; None where the kernel is to be compiled without."""
    square = shape.is_square
    return {
        "seq_q": shape.seq_q, "pad_q": shape.pad_q, "zero": 0,
        "seq_k": None if square else shape.seq_k, "pad_k": None if square else shape.pad_k,
        "group": None if square else shape.group,
    }  # fmt: skip


def constants(tile: TileConfig, head_dim: int, causal: bool) -> dict[str, Any]:
    """The constexprs that all three kernels have."""
    return {
        "DIM": head_dim,
        "HEAD_DIM": padded(head_dim),
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "CHUNK_QK": tile.chunk_qk,
        "CHUNK_PV": tile.chunk_pv,
        "TRANSPOSED": tile.transposed,
        "CAUSAL": causal,
    }


def _options(tile: TileConfig) -> Options:
    return Options(tile.num_warps, tile.num_stages)


def _fitting(
    space: Workspace | None, q: torch.Tensor, k: torch.Tensor, causal: bool, shape: Shape
) -> Workspace:
    """The caller's workspace if it fits, or a fresh one."""
    if space is None:
        arch = architecture(q.device)
        return allocate(q, k, plan(arch, shape, causal=causal, dtype=frame.dtype_name(q)))
    check_workspace(space, q, shape)
    return space


def check_workspace(space: Workspace, q: torch.Tensor, shape: Shape) -> None:
    """ValueError where this scratch was allocated for another shape, type or device."""
    frame.check_workspace((space.shape, space.dtype, space.high.device), q, shape)
