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
    """float64 on the CPU: o, dq [Sq, D], dk, dv [Sk, D]; lse [Sq] (natural logarithm). Batched: [B, H, Sq,
    D], [B, Hkv, Sk, D] and [B, H, Sq]."""

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
    """O, LSE, dQ, dK, dV of one (batch, head): q, do [Sq, D], k, v [Sk, D] of any float type and device;
    scale: 1 / sqrt(D).

        S = scale Q K^T       LSE = ln rowsum exp S     P = exp(S - LSE)       O = P V
        dV = P^T dO           dP = dO V^T               dS = P (dP - rowsum(dO O))
        dQ = scale dS K       dK = scale dS^T Q

    Causal: row i sees keys 0 .. i + Sk - Sq; one that sees none has P = 0 and LSE = -inf. Takes 14 Sq Sk D
    operations and chunk_rows * Sk doubles, five times.
    """
    if any(x.dim() != 2 for x in (q, k, v, do)) or q.shape != do.shape or k.shape != v.shape:
        raise ValueError(
            "q, k, v, do have shapes "
            + ", ".join(str(list(x.shape)) for x in (q, k, v, do))
            + "; legal: [Sq, D], [Sk, D], [Sk, D], [Sq, D]"
        )
    q, k, v, do = (x.detach().to(device="cpu", dtype=torch.float64) for x in (q, k, v, do))
    (seq_q, head_dim), seq_k = q.shape, k.shape[0]
    scale = head_dim**-0.5 if scale is None else scale
    o, dq, dk, dv = (torch.zeros_like(x) for x in (q, q, k, v))
    lse = q.new_full((seq_q,), -torch.inf)
    for start in range(max(0, seq_q - seq_k) if causal else 0, seq_q, chunk_rows):
        rows = slice(start, min(start + chunk_rows, seq_q))
        end = rows.stop + seq_k - seq_q if causal else seq_k  # keys beyond `end` have probability 0 here
        s = scale * (q[rows] @ k[:end].T)
        if causal:
            i = torch.arange(rows.start, rows.stop)[:, None]
            s = s.masked_fill(torch.arange(end)[None, :] > i + seq_k - seq_q, -torch.inf)
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
    """`reference_slice` of every (batch, head): q, do [B, H, Sq, D], k, v [B, Hkv, Sk, D], Hkv a divisor of
    H; gradients of a key head are summed over the heads that share it."""
    (batch, heads), kv_heads = q.shape[:2], k.shape[1]
    group = heads // kv_heads
    slices = [
        reference_slice(q[b, h], k[b, h // group], v[b, h // group], do[b, h], causal=causal, scale=scale)
        for b in range(batch)
        for h in range(heads)
    ]

    def stacked(name: str) -> torch.Tensor:
        flat = torch.stack([getattr(each, name) for each in slices])
        return flat.reshape(batch, heads, *flat.shape[1:])

    def summed(name: str) -> torch.Tensor:
        each = stacked(name)
        return each.reshape(batch, kv_heads, group, *each.shape[2:]).sum(2)

    return Reference(stacked("o"), stacked("lse"), stacked("dq"), summed("dk"), summed("dv"))


def relative_l2(result: torch.Tensor, truth: torch.Tensor) -> float:
    """|result - truth| / |truth| over all elements in float64; NaN and infinity in `result` come through."""
    difference = torch.linalg.vector_norm(result.detach().to(device="cpu", dtype=torch.float64) - truth)
    norm = torch.linalg.vector_norm(truth)
    return float(difference / norm) if norm > 0 else float(difference)
