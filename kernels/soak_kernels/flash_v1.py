"""FlashAttention-1: K and V outer, Q inner; O and its two statistics live in memory and are read, rescaled
and written for each block of keys.

After Dao et al., "FlashAttention" (arXiv 2205.14135), algorithm 1: one program a (batch, head), as the first
kernels had it. It is here to be compared with `flash_v2`, which turned the loops round: this one writes O
once for each block of keys (`flops.flash_v1_bytes` counts). O is float32 between the blocks, since a sum that
is rounded to half in each of them would lose digits with their number. The block is the largest that fits the
card by the rule 2 B + 3 B D + B^2 (`tuning.largest_block`). The backward is flash_v2's.

Tensors, causal and numerics as in flash_v2.py.
"""

# Inside @triton.jit: no annotations, no conditional expressions over types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from soak_kernels import flash_v2, frame, tuning
from soak_kernels.device import architecture
from soak_kernels.flash_v2 import _rows
from soak_kernels.frame import _store_lse, scale_log2
from soak_kernels.launch import Call, Launch, Options, on_card
from soak_kernels.shape import Shape, padded
from soak_kernels.tuning import AttentionConfig

# --- kernels


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _forward_kernel(
    p_q, p_k, p_v, p_o, p_lse, p_acc, p_max, p_sum, scale_log2, seq_q, seq_k, group,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """All of O and LSE of one (batch, head). Grid: (B * H,).

    Barriers stand where another thread reads what was written: the tile of O is loaded and stored in the same
    loop."""
    i_head = tl.program_id(0).to(tl.int64)
    i_kv = i_head // group
    p_q += i_head * seq_q * DIM
    p_k += i_kv * seq_k * DIM
    p_v += i_kv * seq_k * DIM
    p_o += i_head * seq_q * DIM
    p_lse += i_head * seq_q
    p_acc += i_head * seq_q * DIM
    p_max += i_head * seq_q
    p_sum += i_head * seq_q
    o_line = tl.arange(0, BLOCK)
    o_dim = tl.arange(0, HEAD_DIM)
    diagonal = seq_k - seq_q

    for m in tl.range(0, seq_q, BLOCK):
        o_row = m + o_line
        m_o = (o_row < seq_q)[:, None] & (o_dim < DIM)[None, :]
        tl.store(
            p_acc + (o_row[:, None] * DIM + o_dim[None, :]), tl.zeros([BLOCK, HEAD_DIM], tl.float32), mask=m_o
        )
        tl.store(p_max + o_row, tl.full([BLOCK], float("-inf"), tl.float32), mask=o_row < seq_q)
        tl.store(p_sum + o_row, tl.zeros([BLOCK], tl.float32), mask=o_row < seq_q)
    tl.debug_barrier()

    for n in tl.range(0, seq_k, BLOCK):
        o_key = n + o_line
        o_key_in = tl.minimum(o_key, seq_k - 1)
        o_x = o_key_in[:, None] * DIM + o_dim[None, :]
        b_k = _rows(p_k, o_x, o_dim, DIM, HEAD_DIM)
        b_v = _rows(p_v, o_x, o_dim, DIM, HEAD_DIM)
        first = 0
        if CAUSAL:
            first = tl.maximum(0, n - diagonal) // BLOCK * BLOCK  # rows before see none of these keys
        for m in tl.range(first, seq_q, BLOCK):
            o_row = m + o_line
            o_row_in = tl.minimum(o_row, seq_q - 1)
            o_o = o_row_in[:, None] * DIM + o_dim[None, :]
            b_q = _rows(p_q, o_o, o_dim, DIM, HEAD_DIM)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
            m_s = (o_key < seq_k)[None, :]
            if CAUSAL:
                m_s = m_s & (o_key[None, :] <= o_row[:, None] + diagonal)
            b_s = tl.where(m_s, b_s, float("-inf"))

            b_max = tl.load(p_max + o_row_in)
            b_sum = tl.load(p_sum + o_row_in)
            b_acc = _rows(p_acc, o_o, o_dim, DIM, HEAD_DIM)
            b_max_new = tl.maximum(b_max, tl.max(b_s, 1))
            b_top = tl.where(b_max_new == float("-inf"), 0.0, b_max_new)  # no key yet: every P is 0, not NaN
            b_p = tl.exp2((b_s - b_top[:, None]) * scale_log2)
            b_before = b_sum * tl.exp2((b_max - b_top) * scale_log2)
            b_sum_new = b_before + tl.sum(b_p, 1)
            b_new = tl.dot(
                b_p.to(p_v.dtype.element_ty), b_v, b_acc * b_before[:, None], input_precision="ieee"
            )
            b_inverse = tl.where(b_sum_new == 0.0, 0.0, 1.0 / b_sum_new)
            tl.debug_barrier()  # all have read before any writes: rows past the end re-read the last one
            m_o = (o_row < seq_q)[:, None] & (o_dim < DIM)[None, :]
            tl.store(p_acc + (o_row[:, None] * DIM + o_dim[None, :]), b_new * b_inverse[:, None], mask=m_o)
            tl.store(p_max + o_row, b_max_new, mask=o_row < seq_q)
            tl.store(p_sum + o_row, b_sum_new, mask=o_row < seq_q)
        tl.debug_barrier()

    for m in tl.range(0, seq_q, BLOCK):
        o_row = m + o_line
        m_o = (o_row < seq_q)[:, None] & (o_dim < DIM)[None, :]
        o_o = o_row[:, None] * DIM + o_dim[None, :]
        if p_o.dtype.element_ty != tl.float32:
            tl.store(p_o + o_o, tl.load(p_acc + o_o, mask=m_o).to(p_o.dtype.element_ty), mask=m_o)
        b_max = tl.load(p_max + o_row, mask=o_row < seq_q, other=0.0)
        b_sum = tl.load(p_sum + o_row, mask=o_row < seq_q, other=1.0)
        _store_lse(p_lse, b_max, b_sum, scale_log2, o_row, seq_q)


# --- launchers


@dataclass(frozen=True)
class Config:
    """block: rows of Q and of K, V a tile; backward: flash_v2's."""

    block: int
    num_warps: int
    backward: AttentionConfig
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Workspace:
    """acc: O between blocks, float32 [B*H, Sq, D], None where the inputs are float32 and O itself serves;
    max, sum: float32 [B*H, Sq]."""

    config: Config
    acc: torch.Tensor | None
    max: torch.Tensor
    sum: torch.Tensor
    backward: flash_v2.Workspace


def plan(arch: str, shape: Shape, *, causal: bool, dtype: str, n_processors: int | None = None) -> Config:
    """The largest block that fits the chip and, compiled for sm_90, the registers; flash_v2's backward."""
    backward = flash_v2.plan(arch, shape, causal=causal, dtype=dtype, n_processors=n_processors)
    wide = shape.padded_dim > 128
    most, num_warps = 64 >> wide, 8 if wide else 4
    if dtype == "float32":  # no matrix units: products are held in registers
        most, num_warps = most // 2, 8
    block, reason = tuning.largest_block(arch, shape.padded_dim, most=most)
    return Config(block, num_warps, backward, (f"{reason}, at most {most}", *backward.reasons[1:]))


def allocate(q: torch.Tensor, k: torch.Tensor, config: Config) -> Workspace:
    """The scratch of forward and backward; reusable for ever."""
    backward = flash_v2.allocate(q, k, config.backward)
    shape = backward.shape
    rows = (shape.n_heads, shape.seq_q)
    acc = None
    if q.dtype != torch.float32:
        acc = q.new_empty((*rows, shape.head_dim), dtype=torch.float32)
    top, total = (q.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return Workspace(config, acc, top, total, backward)


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
    acc = o if workspace.acc is None else workspace.acc
    launch(
        Call(
            _forward_kernel, shape.n_heads,
            {"p_q": q, "p_k": k, "p_v": v, "p_o": o, "p_lse": lse, "p_acc": acc, "p_max": workspace.max,
             "p_sum": workspace.sum, "scale_log2": scale_log2(scale), "seq_q": shape.seq_q,
             "seq_k": shape.seq_k, "group": shape.group},
            {"DIM": shape.head_dim, "HEAD_DIM": padded(shape.head_dim), "BLOCK": workspace.config.block,
             "CAUSAL": causal},
            Options(workspace.config.num_warps),
        )
    )  # fmt: skip
    return o, lse


backward = flash_v2.shared_backward  # which loop was outer in the forward makes no difference to a backward
