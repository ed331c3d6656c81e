"""How many floating-point operations attention takes; the usual count, so that figures compare with published
ones."""

from __future__ import annotations

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
