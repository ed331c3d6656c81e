"""FlashAttention-2 with the keys of a row dealt to several programs: for long rows and grids too small for
the card (few heads, few rows).

Each part leaves a float32 O of its own, normalised, and its log-sum-exp; a second kernel adds the parts up in
ascending order. So the result depends on the number of parts, which is part of the configuration, and on
nothing else: no atomics. The backward is flash_v2's, whose two kernels already part the work by rows and by
keys.

Tensors, causal and numerics as in flash_v2.py.
"""

# Inside @triton.jit: no annotations, no conditional expressions over types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from soak_kernels import flash_v2, frame
from soak_kernels.device import architecture
from soak_kernels.flash_v2 import (
    _forward_tile,
    _key_head,
    _keys,
    _last_key,
    _left,
    _range_of_keys,
    _store,
    _zeros,
)
from soak_kernels.frame import _store_lse, scale_log2
from soak_kernels.launch import Call, Launch, Options, on_card
from soak_kernels.members import n_splits
from soak_kernels.shape import Shape, padded
from soak_kernels.tuning import AttentionConfig

PARTS_BY_NAME = 4  # where this kernel is asked for and the card has no need of it
REDUCE_ROWS = 16  # rows a program of the second kernel
REDUCE_WARPS = 4

# --- kernels


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group", "n_parts"])
def _part_kernel(
    p_q, p_k, p_kt, p_v, p_part, p_max, p_sum, scale_log2, seq_q, pad_q, zero, seq_k, pad_k, group, n_parts,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CHUNK_QK: tl.constexpr, CHUNK_PV: tl.constexpr, TRANSPOSED: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows of one part's O (normalised) and its two statistics. Grid: (row blocks * parts * B * H,).

    A part is a run of whole blocks of keys; under the causal mask some have none, and leave zeros."""
    n_keys, pad = _keys(seq_q, pad_q, seq_k, pad_k)
    n_blocks = tl.cdiv(seq_q, BLOCK_M)
    i_block = tl.program_id(0) % n_blocks
    i_part = tl.program_id(0) // n_blocks % n_parts
    i_slice = (tl.program_id(0) // n_blocks // n_parts).to(tl.int64)
    i_kv = _key_head(i_slice, group)
    p_q += i_slice * seq_q * DIM
    p_k += i_kv * n_keys * DIM
    p_v += i_kv * n_keys * DIM
    o_rows_before = (i_slice * n_parts + i_part) * seq_q
    p_part += o_rows_before * DIM
    p_max += o_rows_before
    p_sum += o_rows_before
    if TRANSPOSED:
        p_kt += i_kv * pad * HEAD_DIM

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
    length = tl.cdiv(tl.cdiv(n_keys, BLOCK_N), n_parts) * BLOCK_N
    begin = i_part * length
    end = tl.minimum(end, begin + length)
    inner = tl.minimum(inner, end)
    for n in tl.range(begin, inner, BLOCK_N):
        b_max, b_sum, b_acc = _forward_tile(
            p_q, p_k, p_kt, p_v, p_v, b_q, b_max, b_sum, b_acc, n, o_last, o_row_in, o_col, o_chunk, o_piece,
            scale_log2, n_keys, pad, zero,
            DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, False, CAUSAL, False, False,
        )  # fmt: skip
    for n in tl.range(tl.maximum(begin, inner), end, BLOCK_N):
        b_max, b_sum, b_acc = _forward_tile(
            p_q, p_k, p_kt, p_v, p_v, b_q, b_max, b_sum, b_acc, n, o_last, o_row_in, o_col, o_chunk, o_piece,
            scale_log2, n_keys, pad, zero,
            DIM, HEAD_DIM, BLOCK_M, BLOCK_N, CHUNK_QK, CHUNK_PV, TRANSPOSED, False, CAUSAL, True, True,
        )  # fmt: skip

    b_inverse = tl.where(b_sum == 0.0, 0.0, 1.0 / b_sum)
    _store(p_part, b_acc, b_inverse, o_row, o_piece, seq_q, DIM, HEAD_DIM, CHUNK_PV)
    tl.store(p_max + o_row, b_max, mask=o_row < seq_q)
    tl.store(p_sum + o_row, b_sum, mask=o_row < seq_q)


@triton.jit(do_not_specialize=["seq_q", "n_parts"])
def _reduce_kernel(
    p_part, p_max, p_sum, p_o, p_lse, scale_log2, seq_q, n_parts,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS rows of O and LSE: the parts' sums in ascending order. Grid: (row blocks * B * H,)."""
    n_blocks = tl.cdiv(seq_q, ROWS)
    i_slice = (tl.program_id(0) // n_blocks).to(tl.int64)
    o_row = tl.program_id(0) % n_blocks * ROWS + tl.arange(0, ROWS)
    o_dim = tl.arange(0, HEAD_DIM)
    m_row = o_row < seq_q
    m_o = m_row[:, None] & (o_dim < DIM)[None, :]
    p_part += i_slice * n_parts * seq_q * DIM
    p_max += i_slice * n_parts * seq_q
    p_sum += i_slice * n_parts * seq_q

    b_top = tl.full([ROWS], float("-inf"), tl.float32)
    o_part = o_row.to(tl.int64)
    for _ in tl.range(0, n_parts):
        b_top = tl.maximum(b_top, tl.load(p_max + o_part, mask=m_row, other=float("-inf")))
        o_part += seq_q
    b_base = tl.where(b_top == float("-inf"), 0.0, b_top)
    b_total = tl.zeros([ROWS], tl.float32)
    b_acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    o_part = o_row.to(tl.int64)
    for _ in tl.range(0, n_parts):
        b_max = tl.load(p_max + o_part, mask=m_row, other=float("-inf"))
        b_sum = tl.load(p_sum + o_part, mask=m_row, other=0.0)
        b_weight = b_sum * tl.exp2((b_max - b_base) * scale_log2)
        b_o = tl.load(p_part + (o_part[:, None] * DIM + o_dim[None, :]), mask=m_o, other=0.0)
        b_acc += b_o * b_weight[:, None]
        b_total += b_weight
        o_part += seq_q
    b_inverse = tl.where(b_total == 0.0, 0.0, 1.0 / b_total)
    o_o = i_slice * seq_q * DIM + o_row[:, None] * DIM + o_dim[None, :]
    tl.store(p_o + o_o, (b_acc * b_inverse[:, None]).to(p_o.dtype.element_ty), mask=m_o)
    _store_lse(p_lse + i_slice * seq_q, b_top, b_total, scale_log2, o_row, seq_q)


# --- launchers


@dataclass(frozen=True)
class Config:
    """n_parts: into how many the keys of a row are dealt; tiles: flash_v2's."""

    n_parts: int
    tiles: AttentionConfig
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Workspace:
    """part: O of each part, float32 [B*H, parts, Sq, D]; max, sum: its statistics, float32 [B*H, parts,
    Sq]."""

    config: Config
    part: torch.Tensor
    max: torch.Tensor
    sum: torch.Tensor
    backward: flash_v2.Workspace


def plan(arch: str, shape: Shape, *, causal: bool, dtype: str, n_processors: int | None = None) -> Config:
    """As many parts as the card needs to be full, or PARTS_BY_NAME where it needs none; flash_v2's tiles."""
    tiles = flash_v2.plan(arch, shape, causal=causal, dtype=dtype, n_processors=n_processors)
    needed = n_splits(shape, n_processors)
    n_parts = needed if needed > 1 else PARTS_BY_NAME
    why = f"{n_parts} parts" + (f" for {n_processors} processors" if needed > 1 else ", the card needs none")
    return Config(n_parts, tiles, (why, *tiles.reasons))


def allocate(q: torch.Tensor, k: torch.Tensor, config: Config) -> Workspace:
    """The scratch of forward and backward; reusable for ever."""
    backward = flash_v2.allocate(q, k, config.tiles)
    shape = backward.shape
    rows = (shape.n_heads, config.n_parts, shape.seq_q)
    part = q.new_empty((*rows, shape.head_dim), dtype=torch.float32)
    top, total = (q.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return Workspace(config, part, top, total, backward)


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
    """As `flash_v2.forward`."""
    shape, scale = frame.checked(q, k, v, scale)
    o, lse = frame.outputs(q, k, v, out)
    if workspace is None:
        config = plan(architecture(q.device), shape, causal=causal, dtype=frame.dtype_name(q))
        workspace = allocate(q, k, config)
    flash_v2.check_workspace(workspace.backward, q, shape)
    tile, n_parts = workspace.config.tiles.forward, workspace.config.n_parts
    k_t = frame.transpose(k, workspace.backward.k_t, launch) if tile.transposed else k
    parts = {"p_part": workspace.part, "p_max": workspace.max, "p_sum": workspace.sum}
    launch(
        Call(
            _part_kernel, -(-shape.seq_q // tile.block_m) * shape.n_heads * n_parts,
            {"p_q": q, "p_k": k, "p_kt": k_t, "p_v": v, **parts, "scale_log2": scale_log2(scale),
             **flash_v2.counts(shape), "n_parts": n_parts},
            flash_v2.constants(tile, shape.head_dim, causal), Options(tile.num_warps, tile.num_stages),
        )
    )  # fmt: skip
    launch(
        Call(
            _reduce_kernel, -(-shape.seq_q // REDUCE_ROWS) * shape.n_heads,
            {**parts, "p_o": o, "p_lse": lse, "scale_log2": scale_log2(scale), "seq_q": shape.seq_q,
             "n_parts": n_parts},
            {"DIM": shape.head_dim, "HEAD_DIM": padded(shape.head_dim), "ROWS": REDUCE_ROWS},
            Options(REDUCE_WARPS),
        )
    )  # fmt: skip
    return o, lse


backward = flash_v2.shared_backward  # how the forward dealt out its keys makes no difference to a backward
