"""How many floating-point operations attention takes, by the usual count, so that figures compare with
published ones; and how many bytes a forward moves."""

from __future__ import annotations

from soak_kernels.shape import Shape

BACKWARD_PER_FORWARD = (
    2.5  # five matrix products against two; the two that our backward recomputes are not credited
)


def forward_flops(
    batch: int, heads: int, seq_len_q: int, seq_len_k: int, head_dim: int, *, causal: bool
) -> float:
    """Operations of one forward: 4 * B * H * Sq * Sk * D (two products, a multiply and an add each), causal
    half.

    Source: the FlashAttention-2 paper (arXiv 2307.08691), section 4.1; the half for causal ignores the
    diagonal.
    """
    full = 4.0 * batch * heads * seq_len_q * seq_len_k * head_dim
    return full / 2 if causal else full


def backward_flops(
    batch: int, heads: int, seq_len_q: int, seq_len_k: int, head_dim: int, *, causal: bool
) -> float:
    """Operations of one backward: 2.5 x forward, whatever a kernel recomputes (same source)."""
    return BACKWARD_PER_FORWARD * forward_flops(batch, heads, seq_len_q, seq_len_k, head_dim, causal=causal)


def compulsory_bytes(shape: Shape, element_size: int) -> tuple[int, int]:
    """Read and written by any forward: Q, K and V once, O once (the log-sum-exp left out)."""
    rows, keys = shape.n_heads * shape.seq_q, shape.n_kv_heads * shape.seq_k
    row = shape.head_dim * element_size
    return (rows + 2 * keys) * row, rows * row


def flash_v1_bytes(shape: Shape, block: int, element_size: int) -> tuple[int, int]:
    """Read and written by a full forward of `flash_v1` with blocks of so many keys: K and V once; Q, O and
    its two statistics once a block. (What is zeroed first, and a last conversion to half, is left out.)"""
    n_blocks = -(-shape.seq_k // block)
    rows = shape.n_heads * shape.seq_q
    once = 2 * shape.n_kv_heads * shape.seq_k * shape.head_dim * element_size
    state = rows * (shape.head_dim * 4 + 8)
    return once + n_blocks * (rows * shape.head_dim * element_size + state), n_blocks * state
