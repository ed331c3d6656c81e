"""Golden digests of the CPU's outputs: position-weighted sums of their bits, per tensor, head and row
block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

ROWS_PER_BLOCK = 64


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """Of one head's output [seq_len, head_dim] or [seq_len], float32: int64 [row blocks].

    digest[b] = sum over the elements of block b of (bits as int32) * (2 * position + 1) modulo 2^64, the
    position counted within the head. Weights are odd, so a single flipped bit always shows (2^b * odd is not
    0), and they differ, so swapped rows show. A sum modulo 2^64 does not depend on its order.
    """
    rows = tensor.shape[0]
    n_blocks = -(-rows // ROWS_PER_BLOCK)
    words = tensor.contiguous().view(torch.int32).reshape(rows, -1).to(torch.int64)
    weights = torch.arange(words.numel(), dtype=torch.int64).mul_(2).add_(1).reshape(words.shape)
    sums = words.mul_(weights).sum(1)
    padded = torch.nn.functional.pad(sums, (0, n_blocks * ROWS_PER_BLOCK - rows))
    return padded.reshape(n_blocks, ROWS_PER_BLOCK).sum(1)


def combined(digests: Iterable[torch.Tensor]) -> str:
    """One short name for many digests, in their order: 32 hexadecimal digits."""
    whole = hashlib.blake2b(digest_size=16)
    for each in digests:
        whole.update(each.numpy().tobytes())
    return whole.hexdigest()
