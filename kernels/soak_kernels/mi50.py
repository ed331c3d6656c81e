"""Attention for gfx906 (MI50) in Gluon (Triton 3.9), forward and backward, with LDS layouts of its own.

gfx906 has no matrix unit: a product is v_dot2_f32_f16 on registers, fed from LDS, and what decides is how few
other instructions there are and how few clocks the LDS takes. The registers hold one wave a SIMD, so nothing
but the order of instructions hides a latency.

* A thread multiplies pieces of 4 x 4 or 4 x 8 of scores and output, from LDS reads of 16 bytes.
* Every LDS buffer is swizzled by the rows that a thread takes together, so that such a read has no bank
  conflict. The operand right of a product over rows (V in P V) is transposed in registers on its way into
  LDS, so nothing is transposed in memory beforehand.
* In main loops operands are read from LDS one chunk ahead of the products (`sched_barrier` keeps the compiler
  from undoing it).
* Before each barrier gfx906 waits for every load that is under way. So a load is issued behind a barrier
  (`gl.barrier()` says where), and a product or the softmax comes before the next one.
* No masks in the main loop: the last tile begins at S - BLOCK and the columns that were done before are
  masked; so every load is inside its tensor (buffer instructions on gfx906 are bounded at 2 GB, not at the
  tensor).

Tensors, alignment of causal, numerics and determinism as in mi50_portable.py. Names: p_ pointer, b_ block in
registers, s_ block in shared memory (LDS), o_ offsets, m_ mask, i_ index; L_ a layout.
"""

# Inside @gluon.jit: no annotations, no conditional expressions over types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.amd.cdna3 import buffer_load

try:
    from triton.experimental.gluon.language.amd.hint import sched_barrier
except ImportError as error:
    raise ImportError(
        f"mi50 needs Triton 3.9 or newer, this is {triton.__version__}; take mi50_portable"
    ) from error

from soak_kernels import mi50_frame
from soak_kernels.launch import Call, Launch, Options, on_card
from soak_kernels.mi50_frame import Workspace, scale_log2

_LN_2 = gl.constexpr(0.6931471805599453)

# --- kernels


@gluon.jit
def _multiply(
    s_a, s_b, b_acc, K: gl.constexpr, CHUNK: gl.constexpr, LAYOUT: gl.constexpr, AHEAD: gl.constexpr
):
    """b_acc + a @ b over K, operands from LDS in chunks. AHEAD: read one chunk before it is needed, which
    hides the LDS and takes the registers of a chunk."""
    b_a = s_a.slice(0, CHUNK, 1).load(gl.DotOperandLayout(0, LAYOUT, 0))
    b_b = s_b.slice(0, CHUNK, 0).load(gl.DotOperandLayout(1, LAYOUT, 0))
    for c in gl.static_range(CHUNK, K + CHUNK, CHUNK):
        if AHEAD:
            if c < K:
                b_a_next = s_a.slice(c, CHUNK, 1).load(gl.DotOperandLayout(0, LAYOUT, 0))
                b_b_next = s_b.slice(c, CHUNK, 0).load(gl.DotOperandLayout(1, LAYOUT, 0))
            sched_barrier()  # the compiler would move the reads down again
            b_acc = gl.dot_fma(b_a, b_b, b_acc)
            if c < K:
                b_a = b_a_next
                b_b = b_b_next
        else:
            b_acc = gl.dot_fma(b_a, b_b, b_acc)
            sched_barrier()  # the compiler would read every chunk at once
            if c < K:
                b_a = s_a.slice(c, CHUNK, 1).load(gl.DotOperandLayout(0, LAYOUT, 0))
                b_b = s_b.slice(c, CHUNK, 0).load(gl.DotOperandLayout(1, LAYOUT, 0))
    return b_acc


@gluon.jit
def _visible(
    n, last, seq_k, o_row, diagonal,
    BLOCK_N: gl.constexpr, L_S: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Which scores of the tile at min(n, last) count: keys from n on (the tile before had the others), below
    seq_k, and causally visible. One comparison a score: more would fill the scalar registers with masks."""
    o_key = gl.minimum(n, last) + gl.arange(0, BLOCK_N, gl.SliceLayout(0, L_S))
    o_key = gl.where(o_key >= n, o_key, 0x7FFFFFFF)
    o_last = gl.full_like(o_row, 0) + (seq_k - 1)
    if CAUSAL:
        o_last = gl.minimum(o_last, o_row + diagonal)
    return o_key[None, :] <= o_last[:, None]


@gluon.jit
def _forward_tile(
    s_q, s_k, s_p, s_v, b_k, n, b_max, b_sum, b_acc, p_k, p_v, o_k, o_v, o_row, last, seq_k, diagonal,
    scale_log2,
    HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CHUNK: gl.constexpr,
    LANES: gl.constexpr, L_S: gl.constexpr, L_O: gl.constexpr, CAUSAL: gl.constexpr, EDGE: gl.constexpr,
):  # fmt: skip
    """BLOCK_N keys, already in b_k, into the running softmax; the next ones into b_k. V is on its way while
    the softmax is computed, the next K while P V is: never both, since they would fill the registers."""
    s_k.store(b_k)
    b_s = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, L_S)
    b_s = _multiply(s_q, s_k.permute([1, 0]), b_s, HEAD_DIM, CHUNK, L_S, not EDGE)
    b_v = buffer_load(p_v + gl.minimum(n, last) * HEAD_DIM, o_v)
    if EDGE:
        b_s = gl.where(_visible(n, last, seq_k, o_row, diagonal, BLOCK_N, L_S, CAUSAL), b_s, float("-inf"))
    b_max_new = gl.maximum(b_max, gl.max(b_s, 1))
    b_top = b_max_new
    if EDGE:
        b_top = gl.where(b_max_new == float("-inf"), 0.0, b_max_new)  # no key yet: every P is 0, not NaN
    b_p = gl.exp2((b_s - b_top[:, None]) * scale_log2)
    b_decay = gl.exp2((b_max - b_top) * scale_log2)
    # A thread's own columns only: what lanes have in part is added up once, after the loops.
    b_decay_sum = gl.convert_layout(b_decay, gl.SliceLayout(1, b_sum.type.layout), assert_trivial=True)
    b_sum = b_sum * b_decay_sum[:, None] + gl.sum(gl.reshape(b_p, [BLOCK_M, LANES, BLOCK_N // LANES]), 2)
    s_v.store(b_v)
    s_p.store(b_p.to(gl.float16))
    gl.barrier()
    b_k = buffer_load(p_k + gl.minimum(n + BLOCK_N, last) * HEAD_DIM, o_k)
    b_decay_o = gl.convert_layout(b_decay, gl.SliceLayout(1, L_O), assert_trivial=True)
    b_acc = _multiply(s_p, s_v, b_acc * b_decay_o[:, None], BLOCK_N, CHUNK, L_O, not EDGE)
    return b_k, b_max_new, b_sum, b_acc


@gluon.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _forward_kernel(
    p_q, p_k, p_v, p_o, p_lse, scale_log2, seq_q, seq_k, group,
    HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CHUNK: gl.constexpr,
    LANES: gl.constexpr, L_S: gl.constexpr, L_O: gl.constexpr, L_ROWS: gl.constexpr, L_TURN: gl.constexpr,
    S_Q: gl.constexpr, S_K: gl.constexpr, S_P: gl.constexpr, S_V: gl.constexpr, ONE_BUFFER: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of O and LSE of one head. Grid: (row blocks * B * H,)."""
    n_blocks = gl.cdiv(seq_q, BLOCK_M)
    i_head = gl.program_id(0) // n_blocks
    i_block = gl.program_id(0) % n_blocks
    if CAUSAL:
        i_block = n_blocks - 1 - i_block  # the longest rows first, so that the last wave of programs is short
    i_kv = (i_head // group).to(gl.int64)
    i_head = i_head.to(gl.int64)
    p_q += i_head * seq_q * HEAD_DIM
    p_o += i_head * seq_q * HEAD_DIM
    p_lse += i_head * seq_q
    p_k += i_kv * seq_k * HEAD_DIM
    p_v += i_kv * seq_k * HEAD_DIM

    o_line = gl.minimum(i_block * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, L_ROWS)), seq_q - 1)
    o_dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, L_ROWS))
    s_q = gl.allocate_shared_memory(gl.float16, [BLOCK_M, HEAD_DIM], S_Q)
    s_q.store(buffer_load(p_q, o_line[:, None] * HEAD_DIM + o_dim[None, :]))
    s_k = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEAD_DIM], S_K)
    s_p = gl.allocate_shared_memory(gl.float16, [BLOCK_M, BLOCK_N], S_P)
    if ONE_BUFFER:
        s_v = s_k.reinterpret(gl.float16, [BLOCK_N, HEAD_DIM], S_V)
    else:
        s_v = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEAD_DIM], S_V)

    o_key = gl.minimum(gl.arange(0, BLOCK_N, gl.SliceLayout(1, L_ROWS)), seq_k - 1)
    o_k = o_key[:, None] * HEAD_DIM + o_dim[None, :]
    o_key = gl.minimum(gl.arange(0, BLOCK_N, gl.SliceLayout(1, L_TURN)), seq_k - 1)
    o_v = o_key[:, None] * HEAD_DIM + gl.arange(0, HEAD_DIM, gl.SliceLayout(0, L_TURN))[None, :]
    o_row = i_block * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, L_S))
    b_max = gl.full([BLOCK_M], float("-inf"), gl.float32, gl.SliceLayout(1, L_S))
    b_sum = gl.sum(
        gl.reshape(gl.zeros([BLOCK_M, BLOCK_N], gl.float32, L_S), [BLOCK_M, LANES, BLOCK_N // LANES]), 2
    )
    b_acc = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, L_O)

    diagonal = seq_k - seq_q
    last = gl.maximum(seq_k - BLOCK_N, 0)  # where the last tile begins
    end = seq_k
    inner = seq_k // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = gl.maximum(0, gl.minimum(seq_k, (i_block + 1) * BLOCK_M + diagonal))
        inner = gl.minimum(inner, gl.maximum(0, i_block * BLOCK_M + diagonal + 1) // BLOCK_N * BLOCK_N)
    b_k = buffer_load(p_k, o_k)
    for n in range(0, inner, BLOCK_N):
        b_k, b_max, b_sum, b_acc = _forward_tile(
            s_q, s_k, s_p, s_v, b_k, n, b_max, b_sum, b_acc, p_k, p_v, o_k, o_v, o_row, last, seq_k,
            diagonal, scale_log2,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, LANES, L_S, L_O, CAUSAL, False,
        )  # fmt: skip
    for n in range(inner, end, BLOCK_N):
        b_k, b_max, b_sum, b_acc = _forward_tile(
            s_q, s_k, s_p, s_v, b_k, n, b_max, b_sum, b_acc, p_k, p_v, o_k, o_v, o_row, last, seq_k,
            diagonal, scale_log2,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, LANES, L_S, L_O, CAUSAL, True,
        )  # fmt: skip

    b_sum = gl.convert_layout(gl.sum(b_sum, 1), gl.SliceLayout(1, L_S), assert_trivial=True)
    b_inverse = gl.where(b_sum == 0.0, 0.0, 1.0 / b_sum)
    b_inverse = gl.convert_layout(b_inverse, gl.SliceLayout(1, L_O), assert_trivial=True)
    o_out = i_block * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, L_O))
    o_out_dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, L_O))
    gl.store(
        p_o + (o_out[:, None] * HEAD_DIM + o_out_dim[None, :]), (b_acc * b_inverse[:, None]).to(gl.float16),
        mask=(o_out < seq_q)[:, None],
    )  # fmt: skip
    b_lse = (b_max.to(gl.float64) * scale_log2 + gl.log2(b_sum).to(gl.float64)) * _LN_2
    gl.store(p_lse + o_row, b_lse, mask=o_row < seq_q)


@gluon.jit
def _dq_tile(
    s_q, s_do, s_k, s_kt, s_v, s_ds, b_k, b_v, n, b_dq, b_high, b_low, b_delta, p_k, p_v, o_k, o_row, last,
    seq_k, diagonal, scale_log2,
    HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CHUNK: gl.constexpr,
    L_S: gl.constexpr, L_O: gl.constexpr, ONE_BUFFER: gl.constexpr, CAUSAL: gl.constexpr, EDGE: gl.constexpr,
):  # fmt: skip
    """BLOCK_N keys, already in b_k and b_v, into dQ: dS = P * (dO V^T - delta), dQ += dS K."""
    o_next = gl.minimum(n + BLOCK_N, last) * HEAD_DIM
    s_k.store(b_k)
    if not ONE_BUFFER:  # else K, then V, then K transposed
        s_v.store(b_v)
    gl.barrier()
    b_s = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, L_S)
    b_s = _multiply(s_q, s_k.permute([1, 0]), b_s, HEAD_DIM, CHUNK, L_S, not EDGE)
    if ONE_BUFFER:
        s_v.store(b_v)
        gl.barrier()
    b_dp = gl.zeros([BLOCK_M, BLOCK_N], gl.float32, L_S)
    b_dp = _multiply(s_do, s_v.permute([1, 0]), b_dp, HEAD_DIM, CHUNK, L_S, not EDGE)
    b_p = gl.exp2((b_s - b_high[:, None]) * scale_log2 - b_low[:, None])
    if EDGE:
        b_p = gl.where(_visible(n, last, seq_k, o_row, diagonal, BLOCK_N, L_S, CAUSAL), b_p, 0.0)
    s_ds.store((b_p * (b_dp - b_delta[:, None])).to(gl.float16))
    s_kt.store(b_k)
    gl.barrier()
    b_k = buffer_load(p_k + o_next, o_k)
    b_v = buffer_load(p_v + o_next, o_k)
    b_dq = _multiply(s_ds, s_kt, b_dq, BLOCK_N, CHUNK, L_O, not EDGE)
    return b_k, b_v, b_dq


@gluon.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _dq_kernel(
    p_q, p_k, p_v, p_do, p_high, p_low, p_delta, p_dq, scale, scale_log2, seq_q, seq_k, pad_q, group,
    HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CHUNK: gl.constexpr,
    L_S: gl.constexpr, L_O: gl.constexpr, L_ROWS: gl.constexpr, L_TURN: gl.constexpr, S_KEPT: gl.constexpr,
    S_TILE: gl.constexpr, S_TURNED: gl.constexpr, S_P: gl.constexpr, ONE_BUFFER: gl.constexpr,
    CAUSAL: gl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of dQ of one head, the sum over keys in ascending order. Grid: (row blocks * B * H,)."""
    n_blocks = gl.cdiv(seq_q, BLOCK_M)
    i_head = gl.program_id(0) // n_blocks
    i_block = gl.program_id(0) % n_blocks
    if CAUSAL:
        i_block = n_blocks - 1 - i_block
    i_kv = (i_head // group).to(gl.int64)
    i_head = i_head.to(gl.int64)
    p_q += i_head * seq_q * HEAD_DIM
    p_do += i_head * seq_q * HEAD_DIM
    p_dq += i_head * seq_q * HEAD_DIM
    p_k += i_kv * seq_k * HEAD_DIM
    p_v += i_kv * seq_k * HEAD_DIM

    o_line = gl.minimum(i_block * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, L_ROWS)), seq_q - 1)
    o_q = o_line[:, None] * HEAD_DIM + gl.arange(0, HEAD_DIM, gl.SliceLayout(0, L_ROWS))[None, :]
    s_q = gl.allocate_shared_memory(gl.float16, [BLOCK_M, HEAD_DIM], S_KEPT)
    s_do = gl.allocate_shared_memory(gl.float16, [BLOCK_M, HEAD_DIM], S_KEPT)
    s_q.store(buffer_load(p_q, o_q))
    s_do.store(buffer_load(p_do, o_q))
    s_kt = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEAD_DIM], S_TURNED)
    if ONE_BUFFER:
        s_k = s_kt.reinterpret(gl.float16, [BLOCK_N, HEAD_DIM], S_TILE)
        s_v = s_k
    else:
        s_k = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEAD_DIM], S_TILE)
        s_v = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEAD_DIM], S_TILE)
    s_ds = gl.allocate_shared_memory(gl.float16, [BLOCK_M, BLOCK_N], S_P)

    o_key = gl.minimum(gl.arange(0, BLOCK_N, gl.SliceLayout(1, L_TURN)), seq_k - 1)
    o_k = o_key[:, None] * HEAD_DIM + gl.arange(0, HEAD_DIM, gl.SliceLayout(0, L_TURN))[None, :]
    o_row = i_block * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(1, L_S))
    b_high = gl.load(p_high + i_head * pad_q + o_row)
    b_low = gl.load(p_low + i_head * pad_q + o_row)
    b_delta = gl.load(p_delta + i_head * pad_q + o_row)
    b_dq = gl.zeros([BLOCK_M, HEAD_DIM], gl.float32, L_O)

    diagonal = seq_k - seq_q
    last = gl.maximum(seq_k - BLOCK_N, 0)
    end = seq_k
    inner = seq_k // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = gl.maximum(0, gl.minimum(seq_k, (i_block + 1) * BLOCK_M + diagonal))
        inner = gl.minimum(inner, gl.maximum(0, i_block * BLOCK_M + diagonal + 1) // BLOCK_N * BLOCK_N)
    b_k = buffer_load(p_k, o_k)
    b_v = buffer_load(p_v, o_k)
    for n in range(0, inner, BLOCK_N):
        b_k, b_v, b_dq = _dq_tile(
            s_q, s_do, s_k, s_kt, s_v, s_ds, b_k, b_v, n, b_dq, b_high, b_low, b_delta, p_k, p_v, o_k, o_row,
            last, seq_k, diagonal, scale_log2,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, L_S, L_O, ONE_BUFFER, CAUSAL, False,
        )  # fmt: skip
    for n in range(inner, end, BLOCK_N):
        b_k, b_v, b_dq = _dq_tile(
            s_q, s_do, s_k, s_kt, s_v, s_ds, b_k, b_v, n, b_dq, b_high, b_low, b_delta, p_k, p_v, o_k, o_row,
            last, seq_k, diagonal, scale_log2,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, L_S, L_O, ONE_BUFFER, CAUSAL, True,
        )  # fmt: skip
    _store(p_dq, b_dq * scale, i_block * BLOCK_M, seq_q, HEAD_DIM, BLOCK_M, L_O)


@gluon.jit
def _store(p_x, b_x, first, n_rows, HEAD_DIM: gl.constexpr, BLOCK: gl.constexpr, LAYOUT: gl.constexpr):
    """b_x [BLOCK, D] in float32 into the rows first, first + 1, ... below n_rows, as float16."""
    o_row = first + gl.arange(0, BLOCK, gl.SliceLayout(1, LAYOUT))
    o_x = o_row[:, None] * HEAD_DIM + gl.arange(0, HEAD_DIM, gl.SliceLayout(0, LAYOUT))[None, :]
    gl.store(p_x + o_x, b_x.to(gl.float16), mask=(o_row < n_rows)[:, None])


@gluon.jit
def _dkv_tile(
    s_k, s_v, s_q, s_qt, s_do, s_dot, s_p, s_ds, b_q, b_do, m, b_dk, b_dv, p_q, p_do, p_high, p_low, p_delta,
    o_q, o_key, last, diagonal, scale_log2,
    HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CHUNK: gl.constexpr,
    L_S: gl.constexpr, L_O: gl.constexpr, ONE_BUFFER: gl.constexpr, AHEAD: gl.constexpr, EDGE: gl.constexpr,
    DIAGONAL: gl.constexpr,
):  # fmt: skip
    """BLOCK_M rows, already in b_q and b_do, into dK and dV, transposed: P^T and dS^T are [keys, rows].

    Rows past the end need no mask: their padded log-sum-exp makes P exactly 0.
    """
    o_line = gl.arange(0, BLOCK_M, gl.SliceLayout(0, L_S))
    o_tile = gl.minimum(m, last)
    o_next = gl.minimum(m + BLOCK_M, last) * HEAD_DIM
    s_q.store(b_q)
    if not ONE_BUFFER:  # else Q, then dO, then dO transposed, then Q transposed
        s_do.store(b_do)
    gl.barrier()
    if ONE_BUFFER:
        b_do = buffer_load(p_do + o_tile * HEAD_DIM, o_q)
    b_high = buffer_load(p_high + o_tile, o_line)
    b_low = buffer_load(p_low + o_tile, o_line)
    b_s = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, L_S)
    b_s = _multiply(s_k, s_q.permute([1, 0]), b_s, HEAD_DIM, CHUNK, L_S, not EDGE)
    b_p = gl.exp2((b_s - b_high[None, :]) * scale_log2 - b_low[None, :])
    if EDGE:
        o_row = o_tile + o_line
        o_last_key = o_row + diagonal if DIAGONAL else gl.full_like(o_row, 0x7FFFFFFF)
        o_last_key = gl.where(o_row >= m, o_last_key, -1)  # what the tile before had: no key
        b_p = gl.where(o_key[:, None] <= o_last_key[None, :], b_p, 0.0)
    if ONE_BUFFER:
        s_do.store(b_do)
        gl.barrier()
    b_delta = buffer_load(p_delta + o_tile, o_line)  # here and no earlier: it holds registers
    b_dp = gl.zeros([BLOCK_N, BLOCK_M], gl.float32, L_S)
    b_dp = _multiply(s_v, s_do.permute([1, 0]), b_dp, HEAD_DIM, CHUNK, L_S, not EDGE)
    b_ds = b_p * (b_dp - b_delta[None, :])
    s_dot.store(b_do)
    s_p.store(b_p.to(gl.float16))
    if not ONE_BUFFER:
        s_qt.store(b_q)
        s_ds.store(b_ds.to(gl.float16))
    gl.barrier()
    if ONE_BUFFER:
        b_q = buffer_load(p_q + o_tile * HEAD_DIM, o_q)  # once more, since to keep it would hold registers
    else:
        b_q = buffer_load(p_q + o_next, o_q)
        b_do = buffer_load(p_do + o_next, o_q)
    b_dv = _multiply(s_p, s_dot, b_dv, BLOCK_M, CHUNK, L_O, AHEAD and not EDGE)
    if ONE_BUFFER:
        s_qt.store(b_q)
        s_ds.store(b_ds.to(gl.float16))
        gl.barrier()
        b_q = buffer_load(p_q + o_next, o_q)
    b_dk = _multiply(s_ds, s_qt, b_dk, BLOCK_M, CHUNK, L_O, AHEAD and not EDGE)
    return b_q, b_do, b_dk, b_dv


@gluon.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _dkv_kernel(
    p_q, p_k, p_v, p_do, p_high, p_low, p_delta, p_dk, p_dv, scale, scale_log2, seq_q, seq_k, pad_q, group,
    HEAD_DIM: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, CHUNK: gl.constexpr,
    L_S: gl.constexpr, L_O: gl.constexpr, L_ROWS: gl.constexpr, L_TURN: gl.constexpr, S_KEPT: gl.constexpr,
    S_TILE: gl.constexpr, S_TURNED: gl.constexpr, S_P: gl.constexpr, ONE_BUFFER: gl.constexpr,
    AHEAD: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """BLOCK_N rows of dK and dV of one key head, the sum over its group's heads and their rows in ascending
    order. Grid: (key blocks * B * Hkv,)."""
    n_blocks = gl.cdiv(seq_k, BLOCK_N)
    i_kv = (gl.program_id(0) // n_blocks).to(gl.int64)
    i_block = gl.program_id(0) % n_blocks  # causal: the first keys have the most rows, so they go first
    p_k += i_kv * seq_k * HEAD_DIM
    p_v += i_kv * seq_k * HEAD_DIM
    p_dk += i_kv * seq_k * HEAD_DIM
    p_dv += i_kv * seq_k * HEAD_DIM

    o_line = gl.minimum(i_block * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, L_ROWS)), seq_k - 1)
    o_k = o_line[:, None] * HEAD_DIM + gl.arange(0, HEAD_DIM, gl.SliceLayout(0, L_ROWS))[None, :]
    s_k = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEAD_DIM], S_KEPT)
    s_v = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEAD_DIM], S_KEPT)
    s_k.store(buffer_load(p_k, o_k))
    s_v.store(buffer_load(p_v, o_k))
    s_qt = gl.allocate_shared_memory(gl.float16, [BLOCK_M, HEAD_DIM], S_TURNED)
    if ONE_BUFFER:
        s_dot = s_qt
        s_q = s_qt.reinterpret(gl.float16, [BLOCK_M, HEAD_DIM], S_TILE)
        s_do = s_q
    else:
        s_dot = gl.allocate_shared_memory(gl.float16, [BLOCK_M, HEAD_DIM], S_TURNED)
        s_q = gl.allocate_shared_memory(gl.float16, [BLOCK_M, HEAD_DIM], S_TILE)
        s_do = gl.allocate_shared_memory(gl.float16, [BLOCK_M, HEAD_DIM], S_TILE)
    s_p = gl.allocate_shared_memory(gl.float16, [BLOCK_N, BLOCK_M], S_P)
    s_ds = s_p
    if not ONE_BUFFER:
        s_ds = gl.allocate_shared_memory(gl.float16, [BLOCK_N, BLOCK_M], S_P)

    o_line = gl.minimum(gl.arange(0, BLOCK_M, gl.SliceLayout(1, L_TURN)), seq_q - 1)
    o_q = o_line[:, None] * HEAD_DIM + gl.arange(0, HEAD_DIM, gl.SliceLayout(0, L_TURN))[None, :]
    o_key = i_block * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(1, L_S))
    b_dk = gl.zeros([BLOCK_N, HEAD_DIM], gl.float32, L_O)
    b_dv = gl.zeros([BLOCK_N, HEAD_DIM], gl.float32, L_O)

    diagonal = seq_k - seq_q
    last = gl.maximum(seq_q - BLOCK_M, 0)
    first = 0
    inner = 0
    if CAUSAL:
        first = gl.maximum(0, i_block * BLOCK_N - diagonal) // BLOCK_M * BLOCK_M
        inner = gl.cdiv(gl.maximum(0, (i_block + 1) * BLOCK_N - 1 - diagonal), BLOCK_M) * BLOCK_M
    tail = gl.maximum(seq_q // BLOCK_M * BLOCK_M, inner)
    for i_member in range(group):
        i_head = i_kv * group + i_member
        p_q_h = p_q + i_head * seq_q * HEAD_DIM
        p_do_h = p_do + i_head * seq_q * HEAD_DIM
        p_high_h = p_high + i_head * pad_q
        p_low_h = p_low + i_head * pad_q
        p_delta_h = p_delta + i_head * pad_q
        o_first = gl.minimum(first, last) * HEAD_DIM
        b_q = buffer_load(p_q_h + o_first, o_q)
        b_do = buffer_load(p_do_h + o_first, o_q)
        if CAUSAL:
            for m in range(first, gl.minimum(inner, seq_q), BLOCK_M):
                b_q, b_do, b_dk, b_dv = _dkv_tile(
                    s_k, s_v, s_q, s_qt, s_do, s_dot, s_p, s_ds, b_q, b_do, m, b_dk, b_dv, p_q_h, p_do_h,
                    p_high_h, p_low_h, p_delta_h, o_q, o_key, last, diagonal, scale_log2,
                    HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, L_S, L_O, ONE_BUFFER, AHEAD, True, True,
                )  # fmt: skip
        for m in range(inner, tail, BLOCK_M):
            b_q, b_do, b_dk, b_dv = _dkv_tile(
                s_k, s_v, s_q, s_qt, s_do, s_dot, s_p, s_ds, b_q, b_do, m, b_dk, b_dv, p_q_h, p_do_h,
                p_high_h, p_low_h, p_delta_h, o_q, o_key, last, diagonal, scale_log2,
                HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, L_S, L_O, ONE_BUFFER, AHEAD, False, False,
            )  # fmt: skip
        for m in range(tail, seq_q, BLOCK_M):
            b_q, b_do, b_dk, b_dv = _dkv_tile(
                s_k, s_v, s_q, s_qt, s_do, s_dot, s_p, s_ds, b_q, b_do, m, b_dk, b_dv, p_q_h, p_do_h,
                p_high_h, p_low_h, p_delta_h, o_q, o_key, last, diagonal, scale_log2,
                HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, L_S, L_O, ONE_BUFFER, AHEAD, True, False,
            )  # fmt: skip
    _store(p_dk, b_dk * scale, i_block * BLOCK_N, seq_k, HEAD_DIM, BLOCK_N, L_O)
    _store(p_dv, b_dv, i_block * BLOCK_N, seq_k, HEAD_DIM, BLOCK_N, L_O)


# --- launchers

_ROW_LANES, _COLUMN_LANES = 4, 16  # of a wave, over a tile
_TURN = 4  # rows and columns of a tile that a thread transposes on their way into LDS


@dataclass(frozen=True)
class Tile:
    """How one kernel is laid out; four warps take block_m / 4 (dkv: block_n / 4) rows each.

    block_m, block_n: rows of Q and of K/V a tile; scores, output: rows and columns of the scores (dkv:
    transposed) and of the output that a thread holds at a time; one_buffer: the tiles of a step take turns in
    one LDS buffer; ahead: the products into the output read LDS one chunk ahead too (dkv); reason: why this
    one."""

    block_m: int
    block_n: int
    scores: tuple[int, int]
    output: tuple[int, int]
    one_buffer: bool = False
    ahead: bool = True
    chunk: int = 8
    num_warps: int = 4
    reason: str = ""

    @property
    def name(self) -> str:
        kind = ("one" if self.one_buffer else "many") + (".ahead" if self.ahead else "")
        return f"gluon.{self.block_m}x{self.block_n}.chunk{self.chunk}.{kind}.w{self.num_warps}"


Tiles = Mapping[tuple[str, int], Tile]
_WIDE = "128 keys a tile: 4 x 8 scores a thread read LDS least, and the softmax's part is shared by more keys"
_SQUARE = "64 x 64: a tile of twice the size spills"
_ONE_BUFFER = "one buffer for the tiles of a step, since two and what stays would pass 64 KB"
# By pass and head dimension. What decided: no spill, then the bound and the modelled speed
# (soak kernels inspect --arch gfx906).
TILES: Tiles = {
    ("forward", 64): Tile(64, 128, (4, 8), (4, 4), reason=_WIDE),
    ("forward", 128): Tile(64, 128, (4, 8), (4, 8), one_buffer=True, reason=f"{_WIDE}; {_ONE_BUFFER}"),
    ("dq", 64): Tile(64, 64, (4, 4), (4, 4), reason=_SQUARE),
    ("dq", 128): Tile(64, 64, (4, 4), (4, 8), one_buffer=True, reason=f"{_SQUARE}; {_ONE_BUFFER}"),
    ("dkv", 64): Tile(64, 64, (4, 4), (4, 4), reason=_SQUARE),
    ("dkv", 128): Tile(
        64, 64, (4, 4), (4, 8), one_buffer=True, ahead=False,
        reason=f"{_SQUARE}; {_ONE_BUFFER}; dV and dK read no chunk ahead, which would spill 39",
    ),
}  # fmt: skip


def _constants(tile: Tile, pass_: str, head_dim: int, causal: bool) -> dict[str, Any]:
    """The constexprs of a kernel: sizes, and the layouts that follow from the tile.

    An LDS block that is read along its rows, 8 halves a thread and the rows of a thread one after the other,
    has no conflict if it is swizzled by 16 bytes every so many rows as a thread has."""
    warps = [tile.num_warps, 1]
    rows, columns = (tile.block_n, tile.block_m) if pass_ == "dkv" else (tile.block_m, tile.block_n)

    def read_along(shape: list[int], rows_of_thread: int, order: list[int]) -> Any:
        return gl.SwizzledSharedLayout(8, rows_of_thread, min(8, shape[order[0]] // 8), order)

    lanes_of_row = head_dim // _TURN
    shared = {
        "S_TURNED": read_along([columns, head_dim], tile.output[1], [0, 1]),
        "S_P": read_along([rows, columns], tile.scores[0], [1, 0]),
    }
    kept, tiles = (
        read_along([n, head_dim], thread, [1, 0])
        for n, thread in zip((rows, columns), tile.scores, strict=True)
    )
    constants: dict[str, Any] = {
        "HEAD_DIM": head_dim, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "CHUNK": tile.chunk,
        "L_S": gl.BlockedLayout(list(tile.scores), [_ROW_LANES, _COLUMN_LANES], warps, [1, 0]),
        "L_O": gl.BlockedLayout(list(tile.output), [_ROW_LANES, _COLUMN_LANES], warps, [1, 0]),
        "L_ROWS": gl.BlockedLayout([1, 8], [512 // head_dim, head_dim // 8], warps, [1, 0]),
        "L_TURN": gl.BlockedLayout([_TURN, _TURN], [64 // lanes_of_row, lanes_of_row], warps, [1, 0]),
        "CAUSAL": causal,
    }  # fmt: skip
    if pass_ == "forward":
        names = {"S_Q": kept, "S_K": tiles, "S_P": shared["S_P"], "S_V": shared["S_TURNED"]}
        return {**constants, **names, "LANES": _COLUMN_LANES, "ONE_BUFFER": tile.one_buffer}
    constants |= {"S_KEPT": kept, "S_TILE": tiles, **shared, "ONE_BUFFER": tile.one_buffer}
    return constants | ({"AHEAD": tile.ahead} if pass_ == "dkv" else {})


def allocate_workspace(q: torch.Tensor, k: torch.Tensor) -> Workspace:
    """The scratch that a backward of these shapes needs; reusable for ever."""
    shape, _ = mi50_frame.checked(q, k, k, None)
    return mi50_frame.allocate(q, shape, transposed=False)


def mi50_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    tiles: Tiles = TILES,
    launch: Launch = on_card,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O = softmax(scale * Q K^T) V and its log-sum-exp.

    q [B, H, Sq, D], k and v [B, Hkv, Sk, D], float16, D 64 or 128; scale: default 1 / sqrt(D). Returns o like
    q and lse float64 [B, H, Sq] (natural logarithm, -inf for a row that sees no key): the tensors of `out`
    where given. ValueError, naming the argument and what is legal, before a launch."""
    shape, scale = mi50_frame.checked(q, k, v, scale)
    o, lse = mi50_frame.outputs(q, k, v, out)
    tile = tiles["forward", shape.head_dim]
    launch(
        Call(
            _forward_kernel, -(-shape.seq_q // tile.block_m) * shape.batch * shape.heads,
            {"p_q": q, "p_k": k, "p_v": v, "p_o": o, "p_lse": lse, "scale_log2": scale_log2(scale),
             "seq_q": shape.seq_q, "seq_k": shape.seq_k, "group": shape.group},
            _constants(tile, "forward", shape.head_dim, causal), Options(num_warps=tile.num_warps),
        )
    )  # fmt: skip
    return o, lse


def mi50_backward(
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
    tiles: Tiles = TILES,
    launch: Launch = on_card,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK, dV for the gradient `do` of O; o and lse as the forward returned them for the same arguments.
    With `out` and `workspace` nothing is allocated."""
    shape, scale = mi50_frame.checked(q, k, v, scale, o=o, do=do)
    dq, dk, dv = mi50_frame.gradients(q, k, v, lse, do, out)
    space = mi50_frame.fitting(workspace, q, shape, transposed=False)
    mi50_frame.preprocess(o, do, lse, scale, space, launch)
    inputs = {"p_q": q, "p_k": k, "p_v": v, "p_do": do, "p_high": space.high, "p_low": space.low,
              "p_delta": space.delta}  # fmt: skip
    numbers = {"scale": scale, "scale_log2": scale_log2(scale), "seq_q": shape.seq_q, "seq_k": shape.seq_k,
               "pad_q": shape.pad_q, "group": shape.group}  # fmt: skip
    tile = tiles["dq", shape.head_dim]
    launch(
        Call(
            _dq_kernel, -(-shape.seq_q // tile.block_m) * shape.batch * shape.heads,
            {**inputs, "p_dq": dq, **numbers}, _constants(tile, "dq", shape.head_dim, causal),
            Options(num_warps=tile.num_warps),
        )
    )  # fmt: skip
    tile = tiles["dkv", shape.head_dim]
    launch(
        Call(
            _dkv_kernel, -(-shape.seq_k // tile.block_n) * shape.batch * shape.kv_heads,
            {**inputs, "p_dk": dk, "p_dv": dv, **numbers}, _constants(tile, "dkv", shape.head_dim, causal),
            Options(num_warps=tile.num_warps),
        )
    )  # fmt: skip
    return dq, dk, dv
