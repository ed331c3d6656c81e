"""Attention for gfx906 (MI50) in plain Triton, forward and backward: for any Triton that compiles for the
card.

gfx906 has no matrix unit: products are v_dot2_f32_f16 on registers, fed from LDS. Three things shape this
file:

* The head dimension goes in chunks and the left operand is read again for each tile: whole, it would fill
  every register. (`n * zero`, a run-time zero, keeps the compiler from hoisting those loads out of the loop.)
* Triton gives the operands of such a product an LDS layout without swizzle, where a right operand that is
  contiguous along the contraction conflicts 8-way. So K, V, Q and dO are transposed beforehand wherever they
  stand right of a product over the head dimension.
* A masked load becomes a branch. Main loops load without masks: rows past the end are clamped, transposed
  copies are padded with zeros, and what they contribute is masked in a pass of its own.

`mi50` (mi50.py) does better by choosing the LDS layouts itself, which needs Gluon (Triton 3.9).

Layout: q, o, dO, dQ [B, H, Sq, D]; k, v, dK, dV [B, Hkv, Sk, D], H a multiple of Hkv; contiguous float16.
Causal is aligned at the bottom right: row i sees keys 0 .. i + Sk - Sq; a row that sees none gives 0. Softmax
and every sum in float32, no atomics: the same inputs give the same bits. The row maximum is subtracted before
the scale is applied, because a fused s * scale - max rounds once and exceeds 0 by thousands when scores are
near 65504^2 * 128. Names: p_ pointer, b_ block, o_ offsets, m_ mask, n_ count, i_ index.
"""

# Inside @triton.jit: no annotations, no conditional expressions over types, tuples that grow.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code=assignment
# ruff: noqa: RUF005 - Triton does not compile (*tuple, x)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from soak_kernels import frame, mi50_frame
from soak_kernels.launch import Call, Launch, Options, on_card
from soak_kernels.mi50_frame import Workspace, scale_log2

# --- kernels


@triton.jit
def _scores(
    p_left, p_right_t, o_left, o_right, o_chunk, pad, shift,
    HEAD_DIM: tl.constexpr, CHUNK: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """left [ROWS, D] times right_t [D, COLS]: float32 [ROWS, COLS]."""
    b_s = tl.zeros([ROWS, COLS], tl.float32)
    o_a = o_left[:, None] * HEAD_DIM + o_chunk[None, :] + shift
    for c in tl.static_range(0, HEAD_DIM // CHUNK):
        b_a = tl.load(p_left + o_a + c * CHUNK)
        b_b = tl.load(p_right_t + ((o_chunk[:, None] + c * CHUNK) * pad + o_right[None, :]))
        b_s = tl.dot(b_a, b_b, b_s)
    return b_s


@triton.jit
def _zeros(ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, PIECE: tl.constexpr):
    """Accumulators [ROWS, D] as a tuple of pieces [ROWS, PIECE]."""
    b_acc = ()
    for _ in tl.static_range(0, HEAD_DIM // PIECE):
        b_acc = b_acc + (tl.zeros([ROWS, PIECE], tl.float32),)
    return b_acc


@triton.jit
def _add(b_acc, b_p, p_x, o_row, o_piece, HEAD_DIM: tl.constexpr, PIECE: tl.constexpr):
    """b_acc + b_p @ x[o_row], piece by piece."""
    b_out = ()
    for c in tl.static_range(0, HEAD_DIM // PIECE):
        b_x = tl.load(p_x + (o_row[:, None] * HEAD_DIM + o_piece[None, :] + c * PIECE))
        b_out = b_out + (tl.dot(b_p, b_x, b_acc[c]),)
    return b_out


@triton.jit
def _store(p_x, b_acc, b_factor, o_row, o_piece, n_rows, HEAD_DIM: tl.constexpr, PIECE: tl.constexpr):
    """b_acc * b_factor (one factor a row) into the rows below n_rows."""
    for c in tl.static_range(0, HEAD_DIM // PIECE):
        tl.store(
            p_x + (o_row[:, None] * HEAD_DIM + o_piece[None, :] + c * PIECE),
            (b_acc[c] * b_factor[:, None]).to(tl.float16),
            mask=o_row[:, None] < n_rows,
        )


@triton.jit
def _forward_tile(
    p_q, p_kt, p_v, b_max, b_sum, b_acc, n, o_row, o_row_in, o_col, o_chunk, o_piece, scale_log2, seq_k,
    pad_k, diagonal, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
    PIECE: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """BLOCK_N keys into the running softmax. EDGE: the tile crosses the diagonal or the end."""
    o_key = n + o_col
    o_key_in = o_key
    b_s = _scores(p_q, p_kt, o_row_in, o_key, o_chunk, pad_k, n * zero, HEAD_DIM, CHUNK, BLOCK_M, BLOCK_N)
    if EDGE:
        o_key_in = tl.minimum(o_key, seq_k - 1)
        m_key = o_key[None, :] < seq_k
        if CAUSAL:
            m_key = m_key & (o_key[None, :] <= o_row[:, None] + diagonal)
        b_s = tl.where(m_key, b_s, float("-inf"))
    b_max_new = tl.maximum(b_max, tl.max(b_s, 1))
    b_top = b_max_new
    if EDGE:
        b_top = tl.where(b_max_new == float("-inf"), 0.0, b_max_new)  # no key yet: every P is 0, not NaN
    b_p = tl.exp2((b_s - b_top[:, None]) * scale_log2)
    b_decay = tl.exp2((b_max - b_top) * scale_log2)
    b_sum = b_sum * b_decay + tl.sum(b_p, 1)
    b_p = b_p.to(tl.float16)
    b_out = ()
    for c in tl.static_range(0, HEAD_DIM // PIECE):
        b_v = tl.load(p_v + (o_key_in[:, None] * HEAD_DIM + o_piece[None, :] + c * PIECE))
        b_out = b_out + (tl.dot(b_p, b_v, b_acc[c] * b_decay[:, None]),)
    return b_max_new, b_sum, b_out


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _forward_kernel(
    p_q, p_kt, p_v, p_o, p_lse, scale_log2, seq_q, seq_k, pad_k, group, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
    PIECE: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of O and LSE of one head. Grid: (row blocks * B * H,)."""
    n_blocks = tl.cdiv(seq_q, BLOCK_M)
    i_head = tl.program_id(0) // n_blocks
    i_block = tl.program_id(0) % n_blocks
    if CAUSAL:
        i_block = n_blocks - 1 - i_block  # the longest rows first, so that the last wave of programs is short
    i_kv = (i_head // group).to(tl.int64)
    i_head = i_head.to(tl.int64)
    p_q += i_head * seq_q * HEAD_DIM
    p_kt += i_kv * pad_k * HEAD_DIM
    p_v += i_kv * seq_k * HEAD_DIM
    p_o += i_head * seq_q * HEAD_DIM
    p_lse += i_head * seq_q

    o_row = i_block * BLOCK_M + tl.arange(0, BLOCK_M)
    o_row_in = tl.minimum(o_row, seq_q - 1)
    o_col = tl.arange(0, BLOCK_N)
    o_chunk = tl.arange(0, CHUNK)
    o_piece = tl.arange(0, PIECE)
    b_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_M], tl.float32)
    b_acc = _zeros(BLOCK_M, HEAD_DIM, PIECE)

    diagonal = seq_k - seq_q
    end = seq_k
    inner = seq_k // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = tl.maximum(0, tl.minimum(seq_k, (i_block + 1) * BLOCK_M + diagonal))
        inner = tl.minimum(inner, tl.maximum(0, i_block * BLOCK_M + diagonal + 1) // BLOCK_N * BLOCK_N)
    for n in tl.range(0, inner, BLOCK_N):
        b_max, b_sum, b_acc = _forward_tile(
            p_q, p_kt, p_v, b_max, b_sum, b_acc, n, o_row, o_row_in, o_col, o_chunk, o_piece, scale_log2,
            seq_k, pad_k, diagonal, zero,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, PIECE, CAUSAL, False,
        )  # fmt: skip
    for n in tl.range(inner, end, BLOCK_N):
        b_max, b_sum, b_acc = _forward_tile(
            p_q, p_kt, p_v, b_max, b_sum, b_acc, n, o_row, o_row_in, o_col, o_chunk, o_piece, scale_log2,
            seq_k, pad_k, diagonal, zero,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, PIECE, CAUSAL, True,
        )  # fmt: skip

    _store(p_o, b_acc, tl.where(b_sum == 0.0, 0.0, 1.0 / b_sum), o_row, o_piece, seq_q, HEAD_DIM, PIECE)
    frame._store_lse(p_lse, b_max, b_sum, scale_log2, o_row, seq_q)


@triton.jit
def _dq_tile(
    p_q, p_k, p_kt, p_vt, p_do, b_high, b_low, b_delta, b_dq, n, o_row, o_row_in, o_col, o_chunk, o_piece,
    scale_log2, seq_k, pad_k, diagonal, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
    PIECE: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """BLOCK_N keys into dQ: dS = P * (dO V^T - delta), dQ += dS K."""
    o_key = n + o_col
    o_key_in = o_key
    b_s = _scores(p_q, p_kt, o_row_in, o_key, o_chunk, pad_k, n * zero, HEAD_DIM, CHUNK, BLOCK_M, BLOCK_N)
    b_dp = _scores(p_do, p_vt, o_row_in, o_key, o_chunk, pad_k, n * zero, HEAD_DIM, CHUNK, BLOCK_M, BLOCK_N)
    b_p = tl.exp2((b_s - b_high[:, None]) * scale_log2 - b_low[:, None])
    if EDGE:
        o_key_in = tl.minimum(o_key, seq_k - 1)
        m_key = o_key[None, :] < seq_k
        if CAUSAL:
            m_key = m_key & (o_key[None, :] <= o_row[:, None] + diagonal)
        b_p = tl.where(m_key, b_p, 0.0)
    b_ds = (b_p * (b_dp - b_delta[:, None])).to(tl.float16)
    return _add(b_dq, b_ds, p_k, o_key_in, o_piece, HEAD_DIM, PIECE)


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _dq_kernel(
    p_q, p_k, p_kt, p_vt, p_do, p_high, p_low, p_delta, p_dq, scale, scale_log2, seq_q, seq_k, pad_q, pad_k,
    group, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
    PIECE: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of dQ of one head, the sum over keys in ascending order. Grid: (row blocks * B * H,)."""
    n_blocks = tl.cdiv(seq_q, BLOCK_M)
    i_head = tl.program_id(0) // n_blocks
    i_block = tl.program_id(0) % n_blocks
    if CAUSAL:
        i_block = n_blocks - 1 - i_block
    i_kv = (i_head // group).to(tl.int64)
    i_head = i_head.to(tl.int64)
    p_q += i_head * seq_q * HEAD_DIM
    p_k += i_kv * seq_k * HEAD_DIM
    p_kt += i_kv * pad_k * HEAD_DIM
    p_vt += i_kv * pad_k * HEAD_DIM
    p_do += i_head * seq_q * HEAD_DIM
    p_dq += i_head * seq_q * HEAD_DIM

    o_row = i_block * BLOCK_M + tl.arange(0, BLOCK_M)
    o_row_in = tl.minimum(o_row, seq_q - 1)
    o_col = tl.arange(0, BLOCK_N)
    o_chunk = tl.arange(0, CHUNK)
    o_piece = tl.arange(0, PIECE)
    b_high = tl.load(p_high + i_head * pad_q + o_row)
    b_low = tl.load(p_low + i_head * pad_q + o_row)
    b_delta = tl.load(p_delta + i_head * pad_q + o_row)
    b_dq = _zeros(BLOCK_M, HEAD_DIM, PIECE)

    diagonal = seq_k - seq_q
    end = seq_k
    inner = seq_k // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = tl.maximum(0, tl.minimum(seq_k, (i_block + 1) * BLOCK_M + diagonal))
        inner = tl.minimum(inner, tl.maximum(0, i_block * BLOCK_M + diagonal + 1) // BLOCK_N * BLOCK_N)
    for n in tl.range(0, inner, BLOCK_N):
        b_dq = _dq_tile(
            p_q, p_k, p_kt, p_vt, p_do, b_high, b_low, b_delta, b_dq, n, o_row, o_row_in, o_col, o_chunk,
            o_piece, scale_log2, seq_k, pad_k, diagonal, zero,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, PIECE, CAUSAL, False,
        )  # fmt: skip
    for n in tl.range(inner, end, BLOCK_N):
        b_dq = _dq_tile(
            p_q, p_k, p_kt, p_vt, p_do, b_high, b_low, b_delta, b_dq, n, o_row, o_row_in, o_col, o_chunk,
            o_piece, scale_log2, seq_k, pad_k, diagonal, zero,
            HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, PIECE, CAUSAL, True,
        )  # fmt: skip

    _store(p_dq, b_dq, tl.full([BLOCK_M], 1.0, tl.float32) * scale, o_row, o_piece, seq_q, HEAD_DIM, PIECE)


@triton.jit
def _dkv_tile(
    p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, b_dk, b_dv, m, o_key, o_key_in, o_line, o_chunk,
    o_piece, scale_log2, seq_q, pad_q, diagonal, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
    PIECE: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows into dK and dV, transposed ([keys, rows]) so that P^T is left operand as it comes.

    Rows past the end need no mask: their padded log-sum-exp makes P exactly 0.
    """
    o_row = m + o_line
    o_row_in = tl.minimum(o_row, seq_q - 1)
    b_s = _scores(p_k, p_qt, o_key_in, o_row, o_chunk, pad_q, m * zero, HEAD_DIM, CHUNK, BLOCK_N, BLOCK_M)
    b_p = tl.exp2((b_s - tl.load(p_high + o_row)[None, :]) * scale_log2 - tl.load(p_low + o_row)[None, :])
    if DIAGONAL:
        b_p = tl.where(o_key[:, None] <= o_row[None, :] + diagonal, b_p, 0.0)
    b_dv = _add(b_dv, b_p.to(tl.float16), p_do, o_row_in, o_piece, HEAD_DIM, PIECE)
    b_dp = _scores(p_v, p_dot, o_key_in, o_row, o_chunk, pad_q, m * zero, HEAD_DIM, CHUNK, BLOCK_N, BLOCK_M)
    b_ds = (b_p * (b_dp - tl.load(p_delta + o_row)[None, :])).to(tl.float16)
    b_dk = _add(b_dk, b_ds, p_q, o_row_in, o_piece, HEAD_DIM, PIECE)
    return b_dk, b_dv


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _dkv_kernel(
    p_q, p_qt, p_k, p_v, p_do, p_dot, p_high, p_low, p_delta, p_dk, p_dv, scale, scale_log2, seq_q, seq_k,
    pad_q, group, zero,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
    PIECE: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_N rows of dK and dV of one key head, the sum over its group's heads and their rows in ascending
    order. Grid: (key blocks * B * Hkv,)."""
    n_blocks = tl.cdiv(seq_k, BLOCK_N)
    i_kv = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_block = (
        tl.program_id(0) % n_blocks
    )  # causal: the first keys have the most rows, so this is longest first
    p_k += i_kv * seq_k * HEAD_DIM
    p_v += i_kv * seq_k * HEAD_DIM
    p_dk += i_kv * seq_k * HEAD_DIM
    p_dv += i_kv * seq_k * HEAD_DIM

    o_key = i_block * BLOCK_N + tl.arange(0, BLOCK_N)
    o_key_in = tl.minimum(o_key, seq_k - 1)
    o_line = tl.arange(0, BLOCK_M)
    o_chunk = tl.arange(0, CHUNK)
    o_piece = tl.arange(0, PIECE)
    b_dk = _zeros(BLOCK_N, HEAD_DIM, PIECE)
    b_dv = _zeros(BLOCK_N, HEAD_DIM, PIECE)

    diagonal = seq_k - seq_q
    first = 0
    inner = 0
    if CAUSAL:
        first = tl.maximum(0, i_block * BLOCK_N - diagonal) // BLOCK_M * BLOCK_M
        inner = tl.cdiv(tl.maximum(0, (i_block + 1) * BLOCK_N - 1 - diagonal), BLOCK_M) * BLOCK_M
    for i_member in tl.range(0, group):
        i_head = i_kv * group + i_member
        p_q_h = p_q + i_head * seq_q * HEAD_DIM
        p_do_h = p_do + i_head * seq_q * HEAD_DIM
        p_qt_h = p_qt + i_head * pad_q * HEAD_DIM
        p_dot_h = p_dot + i_head * pad_q * HEAD_DIM
        p_high_h = p_high + i_head * pad_q
        p_low_h = p_low + i_head * pad_q
        p_delta_h = p_delta + i_head * pad_q
        if CAUSAL:
            for m in tl.range(first, tl.minimum(inner, seq_q), BLOCK_M):
                b_dk, b_dv = _dkv_tile(
                    p_q_h, p_qt_h, p_k, p_v, p_do_h, p_dot_h, p_high_h, p_low_h, p_delta_h, b_dk, b_dv, m,
                    o_key, o_key_in, o_line, o_chunk, o_piece, scale_log2, seq_q, pad_q, diagonal, zero,
                    HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, PIECE, True,
                )  # fmt: skip
        for m in tl.range(inner, seq_q, BLOCK_M):
            b_dk, b_dv = _dkv_tile(
                p_q_h, p_qt_h, p_k, p_v, p_do_h, p_dot_h, p_high_h, p_low_h, p_delta_h, b_dk, b_dv, m, o_key,
                o_key_in, o_line, o_chunk, o_piece, scale_log2, seq_q, pad_q, diagonal, zero,
                HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK, PIECE, False,
            )  # fmt: skip

    b_one = tl.full([BLOCK_N], 1.0, tl.float32)
    _store(p_dk, b_dk, b_one * scale, o_key, o_piece, seq_k, HEAD_DIM, PIECE)
    _store(p_dv, b_dv, b_one, o_key, o_piece, seq_k, HEAD_DIM, PIECE)


# --- launchers


@dataclass(frozen=True)
class Tile:
    """block_m, block_n: rows of Q and of K/V a tile; chunk: head dimension a step of the products that
    contract over it; piece: head dimension a piece of the accumulators; reason: why this one."""

    block_m: int
    block_n: int
    chunk: int
    piece: int
    num_warps: int = 4
    num_stages: int = 1
    reason: str = ""

    @property
    def name(self) -> str:
        shape = f"{self.block_m}x{self.block_n}.chunk{self.chunk}.piece{self.piece}"
        return f"{shape}.w{self.num_warps}.s{self.num_stages}"


Tiles = Mapping[tuple[str, int], Tile]
_CHUNKED = "of the tiles without a spill that with the best bound, then with the fewest barriers"
# By pass and head dimension (soak kernels inspect --arch gfx906).
TILES: Tiles = {
    ("forward", 64): Tile(128, 32, 32, 32, reason=_CHUNKED),
    ("forward", 128): Tile(128, 32, 16, 32, reason=_CHUNKED),
    ("dq", 64): Tile(128, 32, 32, 32, reason=_CHUNKED),
    ("dq", 128): Tile(128, 32, 16, 32, reason=_CHUNKED),
    ("dkv", 64): Tile(32, 64, 32, 64, reason=_CHUNKED),
    ("dkv", 128): Tile(32, 64, 32, 64, reason=_CHUNKED),
}


def _constants(tile: Tile, head_dim: int, causal: bool) -> tuple[dict[str, Any], Options]:
    constants = {
        "HEAD_DIM": head_dim, "BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n, "CHUNK": tile.chunk,
        "PIECE": tile.piece, "CAUSAL": causal,
    }  # fmt: skip
    return constants, Options(num_warps=tile.num_warps, num_stages=tile.num_stages)


def allocate_workspace(q: torch.Tensor, k: torch.Tensor) -> Workspace:
    """The scratch that forward and backward of these shapes need; reusable for ever."""
    shape, _ = mi50_frame.checked(q, k, k, None)
    return mi50_frame.allocate(q, shape, transposed=True)


def mi50_portable_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    workspace: Workspace | None = None,
    tiles: Tiles = TILES,
    launch: Launch = on_card,
) -> tuple[torch.Tensor, torch.Tensor]:
    """O = softmax(scale * Q K^T) V and its log-sum-exp.

    q [B, H, Sq, D], k and v [B, Hkv, Sk, D], float16, D 64 or 128; scale: default 1 / sqrt(D). Returns o like
    q and lse float64 [B, H, Sq] (natural logarithm, -inf for a row that sees no key): the tensors of `out`
    where given. With `out` and `workspace` nothing is allocated. ValueError, naming the argument and what is
    legal, before a launch."""
    shape, scale = mi50_frame.checked(q, k, v, scale)
    o, lse = mi50_frame.outputs(q, k, v, out)
    space = mi50_frame.fitting(workspace, q, shape, transposed=True)
    k_t = mi50_frame.transpose(k, space.k_t, launch)
    tile = tiles["forward", shape.head_dim]
    constants, options = _constants(tile, shape.head_dim, causal)
    launch(
        Call(
            _forward_kernel, -(-shape.seq_q // tile.block_m) * shape.batch * shape.heads,
            {"p_q": q, "p_kt": k_t, "p_v": v, "p_o": o, "p_lse": lse, "scale_log2": scale_log2(scale),
             "seq_q": shape.seq_q, "seq_k": shape.seq_k, "pad_k": shape.pad_k, "group": shape.group,
             "zero": 0},
            constants, options,
        )
    )  # fmt: skip
    return o, lse


def mi50_portable_backward(
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
    """dQ, dK, dV for the gradient `do` of O; o and lse as the forward returned them for the same
    arguments."""
    shape, scale = mi50_frame.checked(q, k, v, scale, o=o, do=do)
    dq, dk, dv = mi50_frame.gradients(q, k, v, lse, do, out)
    space = mi50_frame.fitting(workspace, q, shape, transposed=True)
    mi50_frame.preprocess(o, do, lse, scale, space, launch)
    k_t, v_t = mi50_frame.transpose(k, space.k_t, launch), mi50_frame.transpose(v, space.v_t, launch)
    q_t, do_t = mi50_frame.transpose(q, space.q_t, launch), mi50_frame.transpose(do, space.do_t, launch)
    rows = {"p_high": space.high, "p_low": space.low, "p_delta": space.delta}
    numbers = {"scale": scale, "scale_log2": scale_log2(scale), "seq_q": shape.seq_q, "seq_k": shape.seq_k,
               "pad_q": shape.pad_q, "group": shape.group, "zero": 0}  # fmt: skip
    tile = tiles["dq", shape.head_dim]
    constants, options = _constants(tile, shape.head_dim, causal)
    launch(
        Call(
            _dq_kernel, -(-shape.seq_q // tile.block_m) * shape.batch * shape.heads,
            {"p_q": q, "p_k": k, "p_kt": k_t, "p_vt": v_t, "p_do": do, **rows, "p_dq": dq, **numbers,
             "pad_k": shape.pad_k},
            constants, options,
        )
    )  # fmt: skip
    tile = tiles["dkv", shape.head_dim]
    constants, options = _constants(tile, shape.head_dim, causal)
    launch(
        Call(
            _dkv_kernel, -(-shape.seq_k // tile.block_n) * shape.batch * shape.kv_heads,
            {"p_q": q, "p_qt": q_t, "p_k": k, "p_v": v, "p_do": do, "p_dot": do_t, **rows, "p_dk": dk,
            "p_dv": dv,
             **numbers},
            constants, options,
        )
    )  # fmt: skip
    return dq, dk, dv
