"""FlashAttention for sm_90, forward and backward, in Gluon: a warpgroup that loads and two that compute.
Deterministic to the bit.

The first warpgroup of a program never computes: through the tensor memory accelerator it fills shared memory
with tiles, ahead of time. The other two have 64 rows each and multiply with wgmma. Between them are barriers
in pairs: `ready_x` (the tile is there) and `free_x` (it was read). Programs stay: as many as the card has
processors, each taking the next tile of the result from a counter in global memory, so that neighbours work
on the same head and find its keys in the second-level cache. Which program computes a tile does not change a
bit of it.

The forward lets its two warpgroups take turns: while one runs its softmax the other has the tensor cores. It
issues the scores of the next block together with P V of this one. The backward is two kernels without
atomics: dQ owns rows, dK/dV owns keys and has its scores transposed, so that P^T and dS^T are left operands
from registers.

Any number of rows: past the end of a head the accelerator reads zeros and writes nothing. Forward and dQ
mask keys past the end; dK/dV needs no mask, since rows past the end have P = 0 by their padded log-sum-exp
(`frame.preprocess`). There are as many keys as rows; key heads may be fewer. The numbers are those of
flash_v2: a row's maximum is subtracted before the scale is applied.

Names: d_ tensor descriptor, s_ shared memory, p_ pointer, o_ offsets, n_ count, i_ index; LS, LO: register
layouts of scores and of accumulators, LP: of a left operand.
"""

# Inside @gluon.jit: no annotations.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: RUF005, SIM102 - Triton compiles no [n, *shape], and a constexpr's `if` must stand alone

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from soak_kernels import frame
from soak_kernels.launch import Call, Launch, Options, on_card
from soak_kernels.shape import COORDINATES, Shape

# Triton 3.6 and 3.9 name both otherwise.
_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

HEAD_DIMS = (64, 128)
DTYPES = ("float16", "bfloat16")
ROWS = 64  # of one warpgroup: what a wgmma has
BLOCK_M = 128  # rows of Q (dK/dV: keys) a program, two warpgroups
BLOCK_N = 128  # keys a step of forward and dQ
HEADS_TOGETHER = 16  # causal: heads whose tiles of equal length are handed out together

_ROWS = gl.constexpr(ROWS)
_BLOCK_M = gl.constexpr(BLOCK_M)
_BLOCK_N = gl.constexpr(BLOCK_N)
_LN_2 = gl.constexpr(0.6931471805599453)


# --- which tile of the result is next


@gluon.jit
def _tile(i_tile, n_blocks, together, LAST_FIRST: gl.constexpr, CAUSAL: gl.constexpr):
    """The head and the block of rows (or keys) of a tile. Causal: the longest first, `together` heads at a
    time."""
    if CAUSAL:
        i_group = i_tile // (together * n_blocks)
        rest = i_tile - i_group * (together * n_blocks)
        i_block = rest // together
        i_head = i_group * together + (rest - i_block * together)
        if LAST_FIRST:
            i_block = n_blocks - 1 - i_block
    else:
        i_head = i_tile // n_blocks
        i_block = i_tile - i_head * n_blocks
    return i_head, i_block


@gluon.jit
def _hand_out(i_head, i_block, i, s_tile, ready_tile, free_tile):
    """The loader tells both warpgroups its i-th tile, through one of two slots; head -1: there is none."""
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    tile = gl.full([1], i_head, gl.int64, L) * 0x100000000 + i_block
    mbarrier.wait(free_tile.index(i & 1), ((i >> 1) & 1) ^ 1)
    s_tile.index(i & 1).store(tile)
    mbarrier.arrive(ready_tile.index(i & 1), count=1)


@gluon.jit
def _take(i, s_tile, ready_tile, free_tile):
    """The head and the block of the i-th tile."""
    L: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    mbarrier.wait(ready_tile.index(i & 1), (i >> 1) & 1)
    tile = gl.max(s_tile.index(i & 1).load(L), axis=0)
    mbarrier.arrive(free_tile.index(i & 1), count=1)
    return (tile >> 32).to(gl.int32), tile.to(gl.int32)


@gluon.jit
def _next_tile(p_counter):
    return gl.atomic_add(p_counter, 1, sem="relaxed") + gl.num_programs(0)


@gluon.jit
def _finish(p_counter):
    """The last program to run out of tiles clears the counters for the next launch."""
    n_done = gl.atomic_add(p_counter + 1, 1)
    if n_done == gl.num_programs(0) - 1:
        gl.store(p_counter, 0)
        gl.store(p_counter + 1, 0)


@gluon.jit
def _barriers(N: gl.constexpr, COUNT: gl.constexpr):
    s_barriers = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(s_barriers.index(i), count=COUNT)
    return s_barriers


@gluon.jit
def _buffers(desc, N: gl.constexpr):
    return gl.allocate_shared_memory(desc.dtype, [N] + desc.block_type.shape, desc.layout)


@gluon.jit
def _matrix(s_x, i):
    """The i-th buffer [1, rows, D] as [rows, D]."""
    return s_x.index(i).reshape([s_x.shape[2], s_x.shape[3]])


@gluon.jit
def _fetch(desc, s_x, ready, free, i, phase, i_head, row):
    """Wait until both warpgroups are done with buffer i, then have it filled with desc[i_head, row:]."""
    mbarrier.wait(free.index(i), phase)
    mbarrier.expect(ready.index(i), desc.block_type.nbytes)
    _load(desc, [i_head, row, 0], ready.index(i), s_x.index(i))


# --- forward


@gluon.jit
def _forward_loads(
    d_q, d_k, d_v, s_q, s_k, s_v, ready_q, free_q, ready_k, free_k, ready_v, free_v,
    s_tile, ready_tile, free_tile, p_counter, seq, n_tiles, group, together,
    STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    n_blocks = gl.cdiv(seq, _BLOCK_M)
    i_step = 0
    i = 0
    i_tile = gl.program_id(0)
    while i_tile < n_tiles:
        i_head, i_block = _tile(i_tile, n_blocks, together, True, CAUSAL)
        _hand_out(i_head, i_block, i, s_tile, ready_tile, free_tile)
        i_kv = i_head // group
        q_phase = ((i >> 1) & 1) ^ 1
        for w in gl.static_range(2):
            _fetch(
                d_q, s_q, ready_q, free_q, (i & 1) * 2 + w, q_phase, i_head, i_block * _BLOCK_M + w * _ROWS
            )
        n_steps = n_blocks
        if CAUSAL:
            n_steps = i_block + 1
        for step in range(n_steps):
            i_stage = i_step % STAGES
            phase = ((i_step // STAGES) & 1) ^ 1
            row = (n_steps - 1 - step) * _BLOCK_N
            _fetch(d_k, s_k, ready_k, free_k, i_stage, phase, i_kv, row)
            _fetch(d_v, s_v, ready_v, free_v, i_stage, phase, i_kv, row)
            i_step += 1
        i += 1
        i_tile = _next_tile(p_counter)
    _hand_out(-1, 0, i, s_tile, ready_tile, free_tile)
    _finish(p_counter)


@gluon.jit
def _forward_computes(
    d_o, p_lse, s_q, s_k, s_v, ready_q, free_q, ready_k, free_k, ready_v, free_v, turn,
    s_tile, ready_tile, free_tile, seq, scale_log2, W: gl.constexpr,
    HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Rows W * 64 and on of each tile, keys from the last block to the first."""
    LS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _BLOCK_N, 16])
    LO: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    LP: gl.constexpr = gl.DotOperandLayout(0, LO, 2)
    LR: gl.constexpr = gl.SliceLayout(1, LS)
    n_blocks = gl.cdiv(seq, _BLOCK_M)
    i_step = 0
    i_turn = 0
    i = 0
    o_line = W * _ROWS + gl.arange(0, _ROWS, layout=LR)
    o_column = gl.arange(0, _BLOCK_N, layout=gl.SliceLayout(0, LS))
    i_head, i_block = _take(0, s_tile, ready_tile, free_tile)
    while i_head >= 0:
        i_q = (i & 1) * 2 + W
        q = _matrix(s_q, i_q)
        n_steps = n_blocks
        if CAUSAL:
            n_steps = i_block + 1
        mbarrier.wait(ready_q.index(i_q), (i >> 1) & 1)
        i_stage = i_step % STAGES
        mbarrier.wait(ready_k.index(i_stage), (i_step // STAGES) & 1)
        zero = gl.zeros([_ROWS, _BLOCK_N], gl.float32, LS)
        s = warpgroup_mma(q, _matrix(s_k, i_stage).permute((1, 0)), zero, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(free_k.index(i_stage), count=1)
        # The first step has the last keys: the end of the head, and the diagonal.
        o_row = i_block * _BLOCK_M + o_line
        seen = (o_column < seq - (n_steps - 1) * _BLOCK_N)[None, :]
        if CAUSAL:
            seen = seen & (o_line[:, None] >= o_column[None, :])
        s = gl.where(seen, s, -float("inf"))
        top = gl.max(s, axis=1)
        p = gl.exp2((s - top[:, None]) * scale_log2)
        total = gl.sum(p, axis=1)
        # The tile before has left its buffer by now, which was its Q's: the loader may have it back.
        tma.store_wait(0)
        mbarrier.arrive(free_q.index(i_q ^ 2), count=1, pred=i > 0)
        o = gl.zeros([_ROWS, HEAD_DIM], gl.float32, LO)
        mbarrier.wait(ready_v.index(i_stage), (i_step // STAGES) & 1)
        for _ in range(1, n_steps):
            left = gl.convert_layout(p.to(d_o.dtype), LP)
            i_next = (i_step + 1) % STAGES
            phase = ((i_step + 1) // STAGES) & 1
            mbarrier.wait(ready_k.index(i_next), phase)
            mbarrier.wait(turn.index(W), (i_turn & 1) ^ (1 - W))
            s = warpgroup_mma(q, _matrix(s_k, i_next).permute((1, 0)), zero, use_acc=False, is_async=True)
            o = warpgroup_mma(left, _matrix(s_v, i_stage), o, is_async=True)
            mbarrier.arrive(turn.index(1 - W), count=1)
            i_turn += 1
            s = warpgroup_mma_wait(1, deps=[s])
            mbarrier.arrive(free_k.index(i_next), count=1)
            top_new = gl.maximum(top, gl.max(s, axis=1))
            decay = gl.exp2((top - top_new) * scale_log2)
            p = gl.exp2((s - top_new[:, None]) * scale_log2)
            total = total * decay + gl.sum(p, axis=1)
            top = top_new
            # p among the dependences keeps LLVM from moving this wait above the softmax. The assembler would
            # still, unless a basic block ends here: the wait for the next V, a loop, does that.
            mbarrier.wait(ready_v.index(i_next), phase)
            o, p, left = warpgroup_mma_wait(0, deps=[o, p, left])
            mbarrier.arrive(free_v.index(i_stage), count=1)
            o = o * gl.convert_layout(decay, gl.SliceLayout(1, LO))[:, None]
            i_step += 1
            i_stage = i_next
        left = gl.convert_layout(p.to(d_o.dtype), LP)
        o = warpgroup_mma(left, _matrix(s_v, i_stage), o, is_async=True)
        lse = (top.to(gl.float64) * scale_log2 + gl.log2(total).to(gl.float64)) * _LN_2
        gl.store(p_lse + i_head.to(gl.int64) * seq + o_row, lse, mask=o_row < seq)
        o, left = warpgroup_mma_wait(0, deps=[o, left])
        mbarrier.arrive(free_v.index(i_stage), count=1)
        o = o * gl.convert_layout(1.0 / total, gl.SliceLayout(1, LO))[:, None]
        q.store(o.to(d_o.dtype))
        fence_async_shared()
        _store(d_o, [i_head, i_block * _BLOCK_M + W * _ROWS, 0], s_q.index(i_q))
        i_step += 1
        i += 1
        i_head, i_block = _take(i, s_tile, ready_tile, free_tile)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["seq", "n_tiles", "group", "together"])
def _forward_kernel(
    d_q, d_k, d_v, d_o, p_lse, p_counter, scale_log2, seq, n_tiles, group, together,
    HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """O and LSE, a tile of 128 rows at a time. Grid: any number of programs."""
    s_q = _buffers(d_q, 4)
    s_k = _buffers(d_k, STAGES)
    s_v = _buffers(d_v, STAGES)
    s_tile = gl.allocate_shared_memory(gl.int64, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready_q = _barriers(4, 1)
    free_q = _barriers(4, 1)
    ready_k = _barriers(STAGES, 1)
    free_k = _barriers(STAGES, 2)
    ready_v = _barriers(STAGES, 1)
    free_v = _barriers(STAGES, 2)
    ready_tile = _barriers(2, 1)
    free_tile = _barriers(2, 2)
    turn = _barriers(2, 1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_forward_loads, (
                d_q, d_k, d_v, s_q, s_k, s_v, ready_q, free_q, ready_k, free_k, ready_v, free_v,
                s_tile, ready_tile, free_tile, p_counter, seq, n_tiles, group, together, STAGES, CAUSAL,
            )),
            (_forward_computes, (
                d_o, p_lse, s_q, s_k, s_v, ready_q, free_q, ready_k, free_k, ready_v, free_v, turn,
                s_tile, ready_tile, free_tile, seq, scale_log2, gl.constexpr(0),
                HEAD_DIM, STAGES, CAUSAL,
            )),
            (_forward_computes, (
                d_o, p_lse, s_q, s_k, s_v, ready_q, free_q, ready_k, free_k, ready_v, free_v, turn,
                s_tile, ready_tile, free_tile, seq, scale_log2, gl.constexpr(1),
                HEAD_DIM, STAGES, CAUSAL,
            )),
        ],
        [4, 4],
        [240, 240],
    )  # fmt: skip


# --- backward


@gluon.jit
def _probability(s, high, low, scale_log2):
    """P from a score and its row's log-sum-exp, at most 1; a NaN stays one (see flash_v2)."""
    x = (s - high) * scale_log2 - low
    return gl.exp2(gl.minimum(x, 0.0, propagate_nan=tl.PropagateNan.ALL))


@gluon.jit
def _dq_loads(
    d_q, d_k, d_v, d_do, s_q, s_do, s_k, s_v, ready_q, free_q, ready_k, free_k, ready_v, free_v,
    s_tile, ready_tile, free_tile, p_counter, seq, n_tiles, group, together,
    STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    n_blocks = gl.cdiv(seq, _BLOCK_M)
    i_step = 0
    i = 0
    i_tile = gl.program_id(0)
    while i_tile < n_tiles:
        i_head, i_block = _tile(i_tile, n_blocks, together, True, CAUSAL)
        _hand_out(i_head, i_block, i, s_tile, ready_tile, free_tile)
        i_kv = i_head // group
        for w in gl.static_range(2):
            row = i_block * _BLOCK_M + w * _ROWS
            mbarrier.wait(free_q.index(w), (i & 1) ^ 1)
            mbarrier.expect(ready_q.index(w), 2 * d_q.block_type.nbytes)
            _load(d_q, [i_head, row, 0], ready_q.index(w), s_q.index(w))
            _load(d_do, [i_head, row, 0], ready_q.index(w), s_do.index(w))
        n_steps = n_blocks
        if CAUSAL:
            n_steps = i_block + 1
        for step in range(n_steps):
            i_stage = i_step % STAGES
            phase = ((i_step // STAGES) & 1) ^ 1
            _fetch(d_k, s_k, ready_k, free_k, i_stage, phase, i_kv, step * _BLOCK_N)
            _fetch(d_v, s_v, ready_v, free_v, i_stage, phase, i_kv, step * _BLOCK_N)
            i_step += 1
        i += 1
        i_tile = _next_tile(p_counter)
    _hand_out(-1, 0, i, s_tile, ready_tile, free_tile)
    _finish(p_counter)


@gluon.jit
def _dq_computes(
    d_dq, p_high, p_low, p_delta, s_q, s_do, s_dq, s_k, s_v,
    ready_q, free_q, ready_k, free_k, ready_v, free_v,
    s_tile, ready_tile, free_tile, seq, pad, scale, scale_log2, W: gl.constexpr,
    HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Rows W * 64 and on of each tile, keys in ascending order."""
    LS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _BLOCK_N, 16])
    LO: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    LP: gl.constexpr = gl.DotOperandLayout(0, LO, 2)
    LR: gl.constexpr = gl.SliceLayout(1, LS)
    n_blocks = gl.cdiv(seq, _BLOCK_M)
    i_step = 0
    i = 0
    q = _matrix(s_q, W)
    do = _matrix(s_do, W)
    o_line = W * _ROWS + gl.arange(0, _ROWS, layout=LR)
    o_column = gl.arange(0, _BLOCK_N, layout=gl.SliceLayout(0, LS))
    i_head, i_block = _take(0, s_tile, ready_tile, free_tile)
    while i_head >= 0:
        n_steps = n_blocks
        if CAUSAL:
            n_steps = i_block + 1
        o_statistics = i_head.to(gl.int64) * pad + i_block * _BLOCK_M + o_line
        high = gl.load(p_high + o_statistics)[:, None]
        low = gl.load(p_low + o_statistics)[:, None]
        delta = gl.load(p_delta + o_statistics)[:, None]
        zero = gl.zeros([_ROWS, _BLOCK_N], gl.float32, LS)
        dq = gl.zeros([_ROWS, HEAD_DIM], gl.float32, LO)
        mbarrier.wait(ready_q.index(W), i & 1)
        for step in range(n_steps):
            i_stage = i_step % STAGES
            phase = (i_step // STAGES) & 1
            mbarrier.wait(ready_k.index(i_stage), phase)
            k = _matrix(s_k, i_stage)
            s = warpgroup_mma(q, k.permute((1, 0)), zero, use_acc=False, is_async=True)
            mbarrier.wait(ready_v.index(i_stage), phase)
            dp = warpgroup_mma(do, _matrix(s_v, i_stage).permute((1, 0)), zero, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(1, deps=[s])
            if step == n_steps - 1:
                seen = (o_column < seq - step * _BLOCK_N)[None, :]
                if CAUSAL:
                    seen = seen & (o_line[:, None] >= o_column[None, :])
                s = gl.where(seen, s, -float("inf"))
            p = _probability(s, high, low, scale_log2)
            mbarrier.wait(ready_v.index(i_stage), phase)  # ends a basic block, as in the forward
            dp, p = warpgroup_mma_wait(0, deps=[dp, p])
            mbarrier.arrive(free_v.index(i_stage), count=1)
            ds = gl.convert_layout((p * (dp - delta)).to(d_dq.dtype), LP)
            dq = warpgroup_mma(ds, k, dq, is_async=True)
            dq, ds = warpgroup_mma_wait(0, deps=[dq, ds])
            mbarrier.arrive(free_k.index(i_stage), count=1)
            i_step += 1
        mbarrier.arrive(free_q.index(W), count=1)
        tma.store_wait(0)  # the tile before has left the buffer
        _matrix(s_dq, W).store((dq * scale).to(d_dq.dtype))
        fence_async_shared()
        _store(d_dq, [i_head, i_block * _BLOCK_M + W * _ROWS, 0], s_dq.index(W))
        i += 1
        i_head, i_block = _take(i, s_tile, ready_tile, free_tile)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["seq", "pad", "n_tiles", "group", "together"])
def _dq_kernel(
    d_q, d_k, d_v, d_do, d_dq, p_high, p_low, p_delta, p_counter, scale, scale_log2,
    seq, pad, n_tiles, group, together,
    HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """dQ, a tile of 128 rows at a time. Grid: any number of programs."""
    s_q = _buffers(d_q, 2)
    s_do = _buffers(d_q, 2)
    s_dq = _buffers(d_q, 2)
    s_k = _buffers(d_k, STAGES)
    s_v = _buffers(d_v, STAGES)
    s_tile = gl.allocate_shared_memory(gl.int64, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready_q = _barriers(2, 1)
    free_q = _barriers(2, 1)
    ready_k = _barriers(STAGES, 1)
    free_k = _barriers(STAGES, 2)
    ready_v = _barriers(STAGES, 1)
    free_v = _barriers(STAGES, 2)
    ready_tile = _barriers(2, 1)
    free_tile = _barriers(2, 2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_dq_loads, (
                d_q, d_k, d_v, d_do, s_q, s_do, s_k, s_v, ready_q, free_q, ready_k, free_k, ready_v, free_v,
                s_tile, ready_tile, free_tile, p_counter, seq, n_tiles, group, together, STAGES, CAUSAL,
            )),
            (_dq_computes, (
                d_dq, p_high, p_low, p_delta, s_q, s_do, s_dq, s_k, s_v,
                ready_q, free_q, ready_k, free_k, ready_v, free_v,
                s_tile, ready_tile, free_tile, seq, pad, scale, scale_log2, gl.constexpr(0),
                HEAD_DIM, STAGES, CAUSAL,
            )),
            (_dq_computes, (
                d_dq, p_high, p_low, p_delta, s_q, s_do, s_dq, s_k, s_v,
                ready_q, free_q, ready_k, free_k, ready_v, free_v,
                s_tile, ready_tile, free_tile, seq, pad, scale, scale_log2, gl.constexpr(1),
                HEAD_DIM, STAGES, CAUSAL,
            )),
        ],
        [4, 4],
        [240, 240],
    )  # fmt: skip


@gluon.jit
def _dkv_loads(
    d_q, d_k, d_v, d_do, d_high, d_low, d_delta, s_q, s_do, s_high, s_low, s_delta, s_k, s_v,
    ready_k, free_k, ready_q, free_q, ready_do, free_do,
    s_tile, ready_tile, free_tile, p_counter, seq, pad, n_tiles, group, together,
    STAGES: gl.constexpr, STAGES_DO: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    n_blocks = gl.cdiv(seq, _BLOCK_M)
    n_row_blocks = gl.cdiv(seq, _ROWS)
    i_step = 0
    i = 0
    i_tile = gl.program_id(0)
    while i_tile < n_tiles:
        i_kv, i_block = _tile(i_tile, n_blocks, together, False, CAUSAL)
        _hand_out(i_kv, i_block, i, s_tile, ready_tile, free_tile)
        for w in gl.static_range(2):
            row = i_block * _BLOCK_M + w * _ROWS
            i_k = (i & 1) * 2 + w
            mbarrier.wait(free_k.index(i_k), ((i >> 1) & 1) ^ 1)
            mbarrier.expect(ready_k.index(i_k), 2 * d_k.block_type.nbytes)
            _load(d_k, [i_kv, row, 0], ready_k.index(i_k), s_k.index(i_k))
            _load(d_v, [i_kv, row, 0], ready_k.index(i_k), s_v.index(i_k))
        n_steps = n_row_blocks
        if CAUSAL:
            n_steps = n_row_blocks - 2 * i_block
        for i_of_group in range(group):
            i_head = i_kv * group + i_of_group
            for step in range(n_steps):
                row = (n_row_blocks - 1 - step) * _ROWS
                i_q = i_step % STAGES
                mbarrier.wait(free_q.index(i_q), ((i_step // STAGES) & 1) ^ 1)
                mbarrier.expect(ready_q.index(i_q), d_q.block_type.nbytes + 2 * d_high.block_type.nbytes)
                _load(d_q, [i_head, row, 0], ready_q.index(i_q), s_q.index(i_q))
                _load(d_high, [i_head * pad + row], ready_q.index(i_q), s_high.index(i_q))
                _load(d_low, [i_head * pad + row], ready_q.index(i_q), s_low.index(i_q))
                i_do = i_step % STAGES_DO
                mbarrier.wait(free_do.index(i_do), ((i_step // STAGES_DO) & 1) ^ 1)
                mbarrier.expect(ready_do.index(i_do), d_do.block_type.nbytes + d_delta.block_type.nbytes)
                _load(d_do, [i_head, row, 0], ready_do.index(i_do), s_do.index(i_do))
                _load(d_delta, [i_head * pad + row], ready_do.index(i_do), s_delta.index(i_do))
                i_step += 1
        i += 1
        i_tile = _next_tile(p_counter)
    _hand_out(-1, 0, i, s_tile, ready_tile, free_tile)
    _finish(p_counter)


@gluon.jit
def _dkv_step(
    dk, dv, k, v, zero, s_q, s_do, s_high, s_low, s_delta, ready_q, free_q, ready_do, free_do,
    i_step, diagonal, scale_log2, STAGES: gl.constexpr, STAGES_DO: gl.constexpr, CAUSAL: gl.constexpr,
    LS: gl.constexpr, LP: gl.constexpr,
):  # fmt: skip
    """One block of 64 rows into dK and dV of 64 keys."""
    LC: gl.constexpr = gl.SliceLayout(0, LS)
    i_q = i_step % STAGES
    i_do = i_step % STAGES_DO
    mbarrier.wait(ready_q.index(i_q), (i_step // STAGES) & 1)
    mbarrier.wait(ready_do.index(i_do), (i_step // STAGES_DO) & 1)
    q = _matrix(s_q, i_q)
    do = _matrix(s_do, i_do)
    s = warpgroup_mma(k, q.permute((1, 0)), zero, use_acc=False, is_async=True)
    dp = warpgroup_mma(v, do.permute((1, 0)), zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    if CAUSAL:
        if diagonal:
            o_key = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, LS))
            o_row = gl.arange(0, _ROWS, layout=LC)
            s = gl.where(o_row[None, :] >= o_key[:, None], s, -float("inf"))
    high = s_high.index(i_q).load(LC)[None, :]
    p = _probability(s, high, s_low.index(i_q).load(LC)[None, :], scale_log2)
    p_t = gl.convert_layout(p.to(s_do.dtype), LP)
    dv = warpgroup_mma(p_t, do, dv, is_async=True)
    dp = warpgroup_mma_wait(1, deps=[dp])
    ds = (p * (dp - s_delta.index(i_do).load(LC)[None, :])).to(s_do.dtype)
    ds_t = gl.convert_layout(ds, LP)
    dk = warpgroup_mma(ds_t, q, dk, is_async=True)
    dv, p_t = warpgroup_mma_wait(1, deps=[dv, p_t])
    mbarrier.arrive(free_do.index(i_do), count=1)
    dk, ds_t = warpgroup_mma_wait(0, deps=[dk, ds_t])
    mbarrier.arrive(free_q.index(i_q), count=1)
    return dk, dv


@gluon.jit
def _dkv_computes(
    d_dk, d_dv, s_q, s_do, s_high, s_low, s_delta, s_k, s_v,
    ready_k, free_k, ready_q, free_q, ready_do, free_do,
    s_tile, ready_tile, free_tile, seq, group, scale, scale_log2, W: gl.constexpr,
    HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, STAGES_DO: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Keys W * 64 and on of each tile; the heads of the group in order, rows from the last block to the
    first."""
    LS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _ROWS, 16])
    LO: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    LP: gl.constexpr = gl.DotOperandLayout(0, LO, 2)
    n_row_blocks = gl.cdiv(seq, _ROWS)
    i_step = 0
    i = 0
    i_kv, i_block = _take(0, s_tile, ready_tile, free_tile)
    while i_kv >= 0:
        i_k = (i & 1) * 2 + W
        k = _matrix(s_k, i_k)
        v = _matrix(s_v, i_k)
        n_steps = n_row_blocks
        if CAUSAL:
            n_steps = n_row_blocks - 2 * i_block - W
        mbarrier.wait(ready_k.index(i_k), (i >> 1) & 1)
        zero = gl.zeros([_ROWS, _ROWS], gl.float32, LS)
        dk = gl.zeros([_ROWS, HEAD_DIM], gl.float32, LO)
        dv = gl.zeros([_ROWS, HEAD_DIM], gl.float32, LO)
        tma.store_wait(0)  # the tile before has left its buffers, which were its K's and V's
        mbarrier.arrive(free_k.index(i_k ^ 2), count=1, pred=i > 0)
        for _ in range(group):
            for step in range(n_steps):
                dk, dv = _dkv_step(
                    dk, dv, k, v, zero, s_q, s_do, s_high, s_low, s_delta, ready_q, free_q, ready_do, free_do,
                    i_step, step == n_steps - 1, scale_log2, STAGES, STAGES_DO, CAUSAL, LS, LP,
                )  # fmt: skip
                i_step += 1
            if CAUSAL:
                if W == 1:
                    # The first rows of the tile lie wholly above these keys: handed back unread.
                    i_q = i_step % STAGES
                    i_do = i_step % STAGES_DO
                    mbarrier.wait(ready_q.index(i_q), (i_step // STAGES) & 1)
                    mbarrier.arrive(free_q.index(i_q), count=1)
                    mbarrier.wait(ready_do.index(i_do), (i_step // STAGES_DO) & 1)
                    mbarrier.arrive(free_do.index(i_do), count=1)
                    i_step += 1
        v.store(dv.to(d_dv.dtype))
        k.store((dk * scale).to(d_dk.dtype))
        fence_async_shared()
        first_key = i_block * _BLOCK_M + W * _ROWS
        _store(d_dv, [i_kv, first_key, 0], s_v.index(i_k))
        _store(d_dk, [i_kv, first_key, 0], s_k.index(i_k))
        i += 1
        i_kv, i_block = _take(i, s_tile, ready_tile, free_tile)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["seq", "pad", "n_tiles", "group", "together"])
def _dkv_kernel(
    d_q, d_k, d_v, d_do, d_high, d_low, d_delta, d_dk, d_dv, p_counter, scale, scale_log2,
    seq, pad, n_tiles, group, together,
    HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, STAGES_DO: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """dK and dV, a tile of 128 keys at a time. Grid: any number of programs."""
    s_k = _buffers(d_k, 4)
    s_v = _buffers(d_v, 4)
    s_q = _buffers(d_q, STAGES)
    s_do = _buffers(d_do, STAGES_DO)
    s_high = _buffers(d_high, STAGES)
    s_low = _buffers(d_low, STAGES)
    s_delta = _buffers(d_delta, STAGES_DO)
    s_tile = gl.allocate_shared_memory(gl.int64, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready_k = _barriers(4, 1)
    free_k = _barriers(4, 1)
    ready_q = _barriers(STAGES, 1)
    free_q = _barriers(STAGES, 2)
    ready_do = _barriers(STAGES_DO, 1)
    free_do = _barriers(STAGES_DO, 2)
    ready_tile = _barriers(2, 1)
    free_tile = _barriers(2, 2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_dkv_loads, (
                d_q, d_k, d_v, d_do, d_high, d_low, d_delta, s_q, s_do, s_high, s_low, s_delta, s_k, s_v,
                ready_k, free_k, ready_q, free_q, ready_do, free_do,
                s_tile, ready_tile, free_tile, p_counter, seq, pad, n_tiles, group, together,
                STAGES, STAGES_DO, CAUSAL,
            )),
            (_dkv_computes, (
                d_dk, d_dv, s_q, s_do, s_high, s_low, s_delta, s_k, s_v,
                ready_k, free_k, ready_q, free_q, ready_do, free_do,
                s_tile, ready_tile, free_tile, seq, group, scale, scale_log2, gl.constexpr(0),
                HEAD_DIM, STAGES, STAGES_DO, CAUSAL,
            )),
            (_dkv_computes, (
                d_dk, d_dv, s_q, s_do, s_high, s_low, s_delta, s_k, s_v,
                ready_k, free_k, ready_q, free_q, ready_do, free_do,
                s_tile, ready_tile, free_tile, seq, group, scale, scale_log2, gl.constexpr(1),
                HEAD_DIM, STAGES, STAGES_DO, CAUSAL,
            )),
        ],
        [4, 4],
        [240, 240],
    )  # fmt: skip


# --- launchers


@dataclass(frozen=True)
class HopperConfig:
    """Depths of the buffers. stages: of K and V in forward and dQ; stages_q, stages_do: in dK/dV, of Q and of
    dO with their rows' statistics."""

    stages: int
    stages_q: int
    stages_do: int
    reasons: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{BLOCK_M}x{BLOCK_N}.s{self.stages}.q{self.stages_q}.do{self.stages_do}"


CONFIGS = {
    64: HopperConfig(4, 3, 2, ("K and V four deep: 2 to 8 % over two on an H200, full",)),
    128: HopperConfig(2, 3, 2, ("K and V two deep fill the 227 KB of a processor beside Q, dO and dQ",)),
}


# Entered with 168 registers a thread, so that the loader's four warps, giving up theirs, leave 240 to each of
# the eight that compute.
_OPTIONS = Options(num_warps=4, maxnreg=168)
_TYPES = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}


@dataclass(frozen=True)
class Workspace:
    """Scratch of one shape and configuration, of one launch at a time.

    high, low (the log-sum-exp in two parts), delta: float32 [B*H, pad_q]; counter: int32 [2], the next tile
    and the programs that are done, both 0 between launches."""

    config: HopperConfig
    shape: Shape
    dtype: torch.dtype
    n_processors: int
    high: torch.Tensor
    low: torch.Tensor
    delta: torch.Tensor
    counter: torch.Tensor


def plan(
    arch: str, shape: Shape, *, causal: bool, dtype: str, n_processors: int | None = None
) -> HopperConfig:
    """The configuration of a head dimension; the same for any length, mask, type and card of sm_90."""
    del arch, causal, dtype, n_processors
    return CONFIGS[shape.head_dim]


def allocate(q: torch.Tensor, k: torch.Tensor, config: HopperConfig) -> Workspace:
    """The scratch that forward and backward of these shapes, type and device need; reusable for ever, by one
    stream at a time. Raises ValueError for tensors that this kernel does not take."""
    shape, _ = _checked(q, k, k, None)
    n_processors = 1
    if q.is_cuda:
        n_processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    rows = (shape.n_heads, shape.pad_q)
    high, low, delta = (q.new_empty(rows, dtype=torch.float32) for _ in range(3))
    counter = q.new_zeros(2, dtype=torch.int32)
    return Workspace(config, shape, q.dtype, n_processors, high, low, delta, counter)


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
    """O = softmax(scale * Q K^T) V and its log-sum-exp, launched on the current stream; arguments, results
    and errors as those of `flash_v2.forward`, for as many keys as rows."""
    shape, scale = _checked(q, k, v, scale)
    o, lse = frame.outputs(q, k, v, out)
    space = _fitting(workspace, q, k, shape)
    tiles, n_programs = _tiles(space, shape.n_heads)
    launch(
        Call(
            _forward_kernel, n_programs,
            {"d_q": _rows(q, ROWS), "d_k": _rows(k, BLOCK_N), "d_v": _rows(v, BLOCK_N), "d_o": _rows(o, ROWS),
             "p_lse": lse, "p_counter": space.counter, "scale_log2": frame.scale_log2(scale), **tiles},
            {"HEAD_DIM": shape.head_dim, "STAGES": space.config.stages, "CAUSAL": causal}, _OPTIONS,
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
    shape, scale = _checked(q, k, v, scale, like_q=(("o", o), ("do", do)))
    dq, dk, dv = frame.gradients(q, k, v, lse, do, out)
    space = _fitting(workspace, q, k, shape)
    frame.preprocess(o, do, lse, scale, (space.high, space.low, space.delta), launch)
    numbers = {"p_counter": space.counter, "scale": scale, "scale_log2": frame.scale_log2(scale)}
    numbers["pad"] = shape.pad_q
    tiles, n_programs = _tiles(space, shape.n_heads)
    launch(
        Call(
            _dq_kernel, n_programs,
            {"d_q": _rows(q, ROWS), "d_k": _rows(k, BLOCK_N), "d_v": _rows(v, BLOCK_N),
             "d_do": _rows(do, ROWS), "d_dq": _rows(dq, ROWS), "p_high": space.high, "p_low": space.low,
             "p_delta": space.delta, **numbers, **tiles},
            {"HEAD_DIM": shape.head_dim, "STAGES": space.config.stages, "CAUSAL": causal}, _OPTIONS,
        )
    )  # fmt: skip
    tiles, n_programs = _tiles(space, shape.n_kv_heads)
    launch(
        Call(
            _dkv_kernel, n_programs,
            {"d_q": _rows(q, ROWS), "d_k": _rows(k, ROWS), "d_v": _rows(v, ROWS), "d_do": _rows(do, ROWS),
             "d_high": _numbers(space.high), "d_low": _numbers(space.low), "d_delta": _numbers(space.delta),
             "d_dk": _rows(dk, ROWS), "d_dv": _rows(dv, ROWS), **numbers, **tiles},
            {"HEAD_DIM": shape.head_dim, "STAGES": space.config.stages_q, "STAGES_DO": space.config.stages_do,
             "CAUSAL": causal},
            _OPTIONS,
        )
    )  # fmt: skip
    return dq, dk, dv


def _rows(x: torch.Tensor, n_rows: int) -> TensorDescriptor:
    """x [B, heads, S, D] as [B*heads, S, D], n_rows of a head at a time."""
    _, _, seq, head_dim = x.shape
    block = [1, n_rows, head_dim]
    layout = gl.NVMMASharedLayout.get_default_for(block, _TYPES[x.dtype])
    return TensorDescriptor.from_tensor(x.view(-1, seq, head_dim), block, layout)


def _numbers(x: torch.Tensor) -> TensorDescriptor:
    """A number for each row, float32 [B*H, pad], 64 at a time."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    return TensorDescriptor.from_tensor(x.view(-1), [ROWS], layout)


def _tiles(space: Workspace, n_heads: int) -> tuple[dict[str, int], int]:
    """The kernels' arguments about tiles, and how many programs share them."""
    n_tiles = -(-space.shape.seq_q // BLOCK_M) * n_heads
    counts = {
        "seq": space.shape.seq_q,
        "n_tiles": n_tiles,
        "group": space.shape.group,
        "together": gcd(HEADS_TOGETHER, n_heads),
    }
    return counts, min(space.n_processors, n_tiles)


def _checked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None, **rest: Any
) -> tuple[Shape, float]:
    shape, scale = frame.checked(q, k, v, scale, head_dims=HEAD_DIMS, dtypes=DTYPES, **rest)
    if shape.seq_q != shape.seq_k:
        raise ValueError(f"k has {shape.seq_k} rows and q {shape.seq_q}; legal: as many")
    n_rows = shape.n_heads * shape.pad_q
    if n_rows >= COORDINATES:
        raise ValueError(f"q has {n_rows} padded rows in all; legal: fewer than {COORDINATES}")
    return shape, scale


def _fitting(space: Workspace | None, q: torch.Tensor, k: torch.Tensor, shape: Shape) -> Workspace:
    """The caller's workspace if it fits, or a fresh one."""
    if space is None:
        return allocate(q, k, CONFIGS[shape.head_dim])
    frame.check_workspace((space.shape, space.dtype, space.counter.device), q, shape)
    return space
