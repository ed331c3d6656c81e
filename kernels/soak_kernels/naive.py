"""Attention as the formulas say it: scores, probabilities and their gradients are written to memory, whole.

    S = Q K^T      P = softmax(scale S)      O = P V
    dV = P^T dO    dP = dO V^T    dS = P (dP - rowsum(P dP))    dQ = scale dS K    dK = scale dS^T Q

Two kinds of kernel do it, a product into a float32 matrix [Sq, Sk] and a product out of one, and a row
kernel for each of softmax and dS. It takes 8 B H Sq Sk bytes of scratch, so probabilities are not kept from a
forward to its backward but made again. It shares nothing with the flash kernels but the care for large
scores, so it is what they are compared with on a card, in speed and in result.

Tensors and causal as in flash_v2.py. P and dS are rounded to the inputs' type before a product, as there.
"""

# Inside @triton.jit: no annotations, no conditional expressions over types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from soak_kernels import frame
from soak_kernels.frame import _store_lse, scale_log2
from soak_kernels.launch import Call, Launch, Options, on_card
from soak_kernels.shape import Shape, padded

# --- kernels


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _into_kernel(
    p_left, p_right, p_matrix, seq_q, seq_k, group,
    DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """matrix [B*H, Sq, Sk] = left [B*H, Sq, D] times right [B*Hkv, Sk, D] transposed. Grid: (row blocks * key
    blocks * B * H,)."""
    n_keys = tl.cdiv(seq_k, BLOCK)
    n_rows = tl.cdiv(seq_q, BLOCK)
    i_head = (tl.program_id(0) // (n_rows * n_keys)).to(tl.int64)
    o_row = tl.program_id(0) // n_keys % n_rows * BLOCK + tl.arange(0, BLOCK)
    o_key = tl.program_id(0) % n_keys * BLOCK + tl.arange(0, BLOCK)
    o_dim = tl.arange(0, HEAD_DIM)
    m_dim = (o_dim < DIM)[None, :]
    p_left += i_head * seq_q * DIM
    p_right += i_head // group * seq_k * DIM
    b_left = tl.load(
        p_left + (o_row[:, None] * DIM + o_dim[None, :]), mask=(o_row < seq_q)[:, None] & m_dim, other=0.0
    )
    b_right = tl.load(
        p_right + (o_key[:, None] * DIM + o_dim[None, :]), mask=(o_key < seq_k)[:, None] & m_dim, other=0.0
    )
    b_s = tl.dot(b_left, tl.trans(b_right), input_precision="ieee")
    o_s = (i_head * seq_q + o_row)[:, None] * seq_k + o_key[None, :]
    tl.store(p_matrix + o_s, b_s, mask=(o_row < seq_q)[:, None] & (o_key < seq_k)[None, :])


@triton.jit(do_not_specialize=["seq_q", "seq_k", "group"])
def _out_of_kernel(
    p_matrix, p_x, p_out, factor, seq_q, seq_k, group,
    TURNED: tl.constexpr, DIM: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = factor * matrix x, rows by keys; TURNED: its transpose, keys by rows, summed over the heads that
    share a key head, in ascending order.

    matrix [B*H, Sq, Sk], float32. Not turned: x [B*Hkv, Sk, D], out [B*H, Sq, D]; turned: x [B*H, Sq, D], out
    [B*Hkv, Sk, D]. Grid: (blocks of out's rows * out's heads,)."""
    if TURNED:
        n_out = seq_k
        n_in = seq_q
        n_members = group
    else:
        n_out = seq_q
        n_in = seq_k
        n_members = 1
    n_blocks = tl.cdiv(n_out, BLOCK)
    i_out = (tl.program_id(0) // n_blocks).to(tl.int64)
    o_out = tl.program_id(0) % n_blocks * BLOCK + tl.arange(0, BLOCK)
    o_dim = tl.arange(0, HEAD_DIM)
    m_dim = (o_dim < DIM)[None, :]
    b_acc = tl.zeros([BLOCK, HEAD_DIM], tl.float32)
    for i_member in tl.range(0, n_members):
        if TURNED:
            i_head = i_out * group + i_member
            i_x = i_head
        else:
            i_head = i_out
            i_x = i_out // group
        for n in tl.range(0, n_in, BLOCK):
            o_in = n + tl.arange(0, BLOCK)
            m_s = (o_out < n_out)[:, None] & (o_in < n_in)[None, :]
            if TURNED:
                o_s = (i_head * seq_q + o_in)[None, :] * seq_k + o_out[:, None]
            else:
                o_s = (i_head * seq_q + o_out)[:, None] * seq_k + o_in[None, :]
            b_s = tl.load(p_matrix + o_s, mask=m_s, other=0.0)
            o_x = i_x * n_in * DIM + o_in[:, None] * DIM + o_dim[None, :]
            b_x = tl.load(p_x + o_x, mask=(o_in < n_in)[:, None] & m_dim, other=0.0)
            b_acc = tl.dot(b_s.to(p_x.dtype.element_ty), b_x, b_acc, input_precision="ieee")
    o_o = i_out * n_out * DIM + o_out[:, None] * DIM + o_dim[None, :]
    m_o = (o_out < n_out)[:, None] & m_dim
    tl.store(p_out + o_o, (b_acc * factor).to(p_out.dtype.element_ty), mask=m_o)


@triton.jit(do_not_specialize=["n_rows", "seq_q", "seq_k"])
def _softmax_kernel(
    p_matrix, p_lse, scale_log2, n_rows, seq_q, seq_k,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Scores become probabilities in place; log-sum-exp of each row. Grid: (blocks of B * H * Sq rows,)."""
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = (o_row < n_rows)[:, None]
    o_last = tl.full([ROWS], 0, tl.int64) + (seq_k - 1)
    if CAUSAL:
        o_last = tl.minimum(o_last, o_row % seq_q + (seq_k - seq_q))
    b_max = tl.full([ROWS], float("-inf"), tl.float32)
    b_sum = tl.zeros([ROWS], tl.float32)
    for n in tl.range(0, seq_k, KEYS):
        o_key = n + tl.arange(0, KEYS)
        m_s = m_row & (o_key[None, :] <= o_last[:, None])
        b_s = tl.load(p_matrix + (o_row[:, None] * seq_k + o_key[None, :]), mask=m_s, other=float("-inf"))
        b_new = tl.maximum(b_max, tl.max(b_s, 1))
        b_top = tl.where(b_new == float("-inf"), 0.0, b_new)  # no key yet: every P is 0, not NaN
        b_sum = b_sum * tl.exp2((b_max - b_top) * scale_log2)
        b_sum += tl.sum(tl.exp2((b_s - b_top[:, None]) * scale_log2), 1)
        b_max = b_new
    b_top = tl.where(b_max == float("-inf"), 0.0, b_max)
    b_inverse = tl.where(b_sum == 0.0, 0.0, 1.0 / b_sum)
    for n in tl.range(0, seq_k, KEYS):
        o_key = n + tl.arange(0, KEYS)
        o_s = o_row[:, None] * seq_k + o_key[None, :]
        m_s = m_row & (o_key[None, :] <= o_last[:, None])
        b_s = tl.load(p_matrix + o_s, mask=m_s, other=float("-inf"))
        b_p = tl.exp2((b_s - b_top[:, None]) * scale_log2) * b_inverse[:, None]
        tl.store(p_matrix + o_s, b_p, mask=m_row & (o_key < seq_k)[None, :])
    _store_lse(p_lse, b_max, b_sum, scale_log2, o_row, n_rows)


@triton.jit(do_not_specialize=["n_rows", "seq_k"])
def _ds_kernel(p_matrix, p_dp, n_rows, seq_k, ROWS: tl.constexpr, KEYS: tl.constexpr):
    """dP becomes dS in place: P * (dP - rowsum(P * dP)). Grid: (blocks of B * H * Sq rows,)."""
    o_row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    m_row = (o_row < n_rows)[:, None]
    b_delta = tl.zeros([ROWS], tl.float32)
    for n in tl.range(0, seq_k, KEYS):
        o_key = n + tl.arange(0, KEYS)
        o_s = o_row[:, None] * seq_k + o_key[None, :]
        m_s = m_row & (o_key < seq_k)[None, :]
        b_p = tl.load(p_matrix + o_s, mask=m_s, other=0.0)
        b_delta += tl.sum(b_p * tl.load(p_dp + o_s, mask=m_s, other=0.0), 1)
    for n in tl.range(0, seq_k, KEYS):
        o_key = n + tl.arange(0, KEYS)
        o_s = o_row[:, None] * seq_k + o_key[None, :]
        m_s = m_row & (o_key < seq_k)[None, :]
        b_p = tl.load(p_matrix + o_s, mask=m_s, other=0.0)
        b_dp = tl.load(p_dp + o_s, mask=m_s, other=0.0)
        tl.store(p_dp + o_s, b_p * (b_dp - b_delta[:, None]), mask=m_s)


# --- launchers

ROWS, KEYS = 16, 128  # of a step of the row kernels
_ROW_OPTIONS = Options(num_warps=4)
_PRODUCT_OPTIONS = Options(num_warps=4)


@dataclass(frozen=True)
class Config:
    """block: rows and keys a tile of a product."""

    block: int
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Workspace:
    """p: scores, then probabilities; dp: their gradients; float32 [B*H, Sq, Sk]. lse: float64 [B*H, Sq], of
    the backward's own probabilities."""

    config: Config
    shape: Shape
    dtype: torch.dtype
    p: torch.Tensor
    dp: torch.Tensor
    lse: torch.Tensor


def plan(arch: str, shape: Shape, *, causal: bool, dtype: str, n_processors: int | None = None) -> Config:
    """One tile for every card."""
    del arch, causal, n_processors
    if shape.padded_dim > 128 and dtype == "float32":
        return Config(16, ("16 x 16 of a wide float32 head fits 64 KB of on-chip memory",))
    return Config(32, ("32 x 32 fits 64 KB of on-chip memory on every card",))


def allocate(q: torch.Tensor, k: torch.Tensor, config: Config) -> Workspace:
    """The scratch of a forward and its backward; reusable for ever."""
    shape, _ = frame.checked(q, k, k, None)
    size = (shape.n_heads, shape.seq_q, shape.seq_k)
    p, dp = (q.new_empty(size, dtype=torch.float32) for _ in range(2))
    lse = q.new_empty(size[:2], dtype=torch.float64)
    return Workspace(config, shape, q.dtype, p, dp, lse)


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
    space = _fitting(workspace, q, k, shape)
    _probabilities(q, k, lse, space, shape, causal, scale, launch)
    _out_of(space.p, v, o, 1.0, space, shape, launch)
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
    """As `flash_v2.backward`; needs neither o nor lse, and makes the probabilities again."""
    shape, scale = frame.checked(q, k, v, scale, like_q=(("o", o), ("do", do)))
    dq, dk, dv = frame.gradients(q, k, v, lse, do, out)
    space = _fitting(workspace, q, k, shape)
    _probabilities(q, k, space.lse, space, shape, causal, scale, launch)
    _out_of(space.p, do, dv, 1.0, space, shape, launch, turned=True)
    _into(do, v, space.dp, space, shape, launch)
    n_rows = shape.n_heads * shape.seq_q
    launch(
        Call(
            _ds_kernel, -(-n_rows // ROWS),
            {"p_matrix": space.p, "p_dp": space.dp, "n_rows": n_rows, "seq_k": shape.seq_k},
            {"ROWS": ROWS, "KEYS": KEYS}, _ROW_OPTIONS,
        )
    )  # fmt: skip
    _out_of(space.dp, k, dq, scale, space, shape, launch)
    _out_of(space.dp, q, dk, scale, space, shape, launch, turned=True)
    return dq, dk, dv


def _probabilities(
    q: torch.Tensor, k: torch.Tensor, lse: torch.Tensor, space: Workspace, shape: Shape, causal: bool,
    scale: float, launch: Launch,
) -> None:  # fmt: skip
    _into(q, k, space.p, space, shape, launch)
    n_rows = shape.n_heads * shape.seq_q
    launch(
        Call(
            _softmax_kernel, -(-n_rows // ROWS),
            {"p_matrix": space.p, "p_lse": lse, "scale_log2": scale_log2(scale), "n_rows": n_rows,
             "seq_q": shape.seq_q, "seq_k": shape.seq_k},
            {"CAUSAL": causal, "ROWS": ROWS, "KEYS": KEYS}, _ROW_OPTIONS,
        )
    )  # fmt: skip


def _into(
    left: torch.Tensor,
    right: torch.Tensor,
    matrix: torch.Tensor,
    space: Workspace,
    shape: Shape,
    launch: Launch,
) -> None:
    block = space.config.block
    launch(
        Call(
            _into_kernel, -(-shape.seq_q // block) * -(-shape.seq_k // block) * shape.n_heads,
            {"p_left": left, "p_right": right, "p_matrix": matrix, **_counts(shape)},
            {**_dims(shape), "BLOCK": block}, _PRODUCT_OPTIONS,
        )
    )  # fmt: skip


def _out_of(
    matrix: torch.Tensor, x: torch.Tensor, out: torch.Tensor, factor: float, space: Workspace, shape: Shape,
    launch: Launch, *, turned: bool = False,
) -> None:  # fmt: skip
    block = space.config.block
    launch(
        Call(
            _out_of_kernel, -(-out.shape[2] // block) * out.shape[0] * out.shape[1],
            {"p_matrix": matrix, "p_x": x, "p_out": out, "factor": factor, **_counts(shape)},
            {"TURNED": turned, **_dims(shape), "BLOCK": block}, _PRODUCT_OPTIONS,
        )
    )  # fmt: skip


def _counts(shape: Shape) -> dict[str, int]:
    return {"seq_q": shape.seq_q, "seq_k": shape.seq_k, "group": shape.group}


def _dims(shape: Shape) -> dict[str, int]:
    return {"DIM": shape.head_dim, "HEAD_DIM": padded(shape.head_dim)}


def _fitting(space: Workspace | None, q: torch.Tensor, k: torch.Tensor, shape: Shape) -> Workspace:
    """The caller's workspace if it fits, or a fresh one."""
    if space is None:
        return allocate(q, k, plan("", shape, causal=False, dtype=frame.dtype_name(q)))
    frame.check_workspace((space.shape, space.dtype, space.p.device), q, shape)
    return space
