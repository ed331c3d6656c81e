"""Attention and its gradients in float64 from the explicit formulas: the ground truth that the kernels are
held against.

Nothing is shared with the kernels: no autograd, no fused operator, no online softmax, no Triton; plain matrix
products on the CPU, row block by row block, so that memory is chunk * S and not S * S.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Reference:
    """float64 on the CPU: o, dq, dk, dv [S, D]; lse [S] (natural logarithm). Batched: [B, H, S, D] and [B, H,
    S]."""

    o: torch.Tensor
    lse: torch.Tensor
    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


def reference_slice(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    chunk_rows: int = 256,
) -> Reference:
    """O, LSE, dQ, dK, dV of one (batch, head): q, k, v, do [S, D] of any float type and device; scale: 1 /
    sqrt(D).

        S = scale Q K^T       LSE = ln rowsum exp S     P = exp(S - LSE)       O = P V
        dV = P^T dO           dP = dO V^T               dS = P (dP - rowsum(dO O))
        dQ = scale dS K       dK = scale dS^T Q

    Causal: row i sees keys 0..i. Takes 14 S^2 D operations and chunk_rows * S doubles, five times.
    """
    if q.dim() != 2 or any(x.shape != q.shape for x in (k, v, do)):
        raise ValueError(
            "q, k, v, do have shapes "
            + ", ".join(str(list(x.shape)) for x in (q, k, v, do))
            + "; legal: one [S, D]"
        )
    q, k, v, do = (x.detach().to(device="cpu", dtype=torch.float64) for x in (q, k, v, do))
    seq_len, head_dim = q.shape
    scale = head_dim**-0.5 if scale is None else scale
    o, dq, dk, dv = (torch.zeros_like(q) for _ in range(4))
    lse = q.new_zeros(seq_len)
    for start in range(0, seq_len, chunk_rows):
        rows = slice(start, min(start + chunk_rows, seq_len))
        end = rows.stop if causal else seq_len  # keys beyond `end` have probability 0 in these rows
        s = scale * (q[rows] @ k[:end].T)
        if causal:
            i = torch.arange(rows.start, rows.stop)[:, None]
            s = s.masked_fill(torch.arange(end)[None, :] > i, -torch.inf)
        top = s.amax(dim=1, keepdim=True)
        lse[rows] = (top + torch.log(torch.exp(s - top).sum(dim=1, keepdim=True)))[:, 0]
        # Not exp(s - lse): with scores of 1e11 the logarithm's part of lse is below its last place even in
        # float64.
        p = torch.exp(s - top)
        p = p / p.sum(dim=1, keepdim=True)
        o[rows] = p @ v[:end]
        dv[:end] += p.T @ do[rows]
        dp = do[rows] @ v[:end].T
        ds = p * (dp - (do[rows] * o[rows]).sum(dim=1, keepdim=True))
        dq[rows] = scale * (ds @ k[:end])
        dk[:end] += scale * (ds.T @ q[rows])
    return Reference(o, lse, dq, dk, dv)


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
) -> Reference:
    """`reference_slice` of every (batch, head) of [B, H, S, D] tensors."""
    batch, heads = q.shape[:2]
    slices = [
        [
            reference_slice(q[b, h], k[b, h], v[b, h], do[b, h], causal=causal, scale=scale)
            for h in range(heads)
        ]
        for b in range(batch)
    ]
    names = ("o", "lse", "dq", "dk", "dv")
    stacked = {
        name: torch.stack([torch.stack([getattr(r, name) for r in row]) for row in slices]) for name in names
    }
    return Reference(**stacked)


def relative_l2(result: torch.Tensor, truth: torch.Tensor) -> float:
    """|result - truth| / |truth| over all elements in float64; NaN and infinity in `result` come through."""
    difference = torch.linalg.vector_norm(result.detach().to(device="cpu", dtype=torch.float64) - truth)
    norm = torch.linalg.vector_norm(truth)
    return float(difference / norm) if norm > 0 else float(difference)
