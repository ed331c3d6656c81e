"""A digest of a tensor's bits per (slice, block of rows), and its comparison, both without a word to the
host.

The bits of a row are read as 32-bit words (two float16 or bfloat16, one float32, half a float64). With fixed
odd pseudo-random weights,

    digest[i, j] = sum over the rows r of block j of  row_weight[r] * sum over words c of  word[i, r, c] *
    word_weight[c]

modulo 2^64. A sum modulo 2^64 does not depend on its order, so a GPU and the CPU give the same number. Odd
weights see any single flipped bit (2^b * odd is not 0); unequal ones see swapped rows, words or blocks, and
flips that cancel in a plain sum; words of 32 bits leave 32 bits of room, so that two flipped top bits do not
cancel either.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

ROWS_PER_BLOCK = 128
_WORD_BYTES = 4
_MASK_64 = (1 << 64) - 1
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class DigestWeights:
    """Weights on a device, int64 and odd: rows [rows, a multiple of ROWS_PER_BLOCK], words [power of two]."""

    rows: torch.Tensor
    words: torch.Tensor


def digest_weights(n_rows: int, n_words: int, device: torch.device | str) -> DigestWeights:
    """The weights of rows up to n_rows and words up to n_words; the same everywhere and for ever (they are in
    stored digests).

    Larger tables begin with the smaller ones, so one pair made for the longest seq_len serves a whole run.
    """
    rows = -(-n_rows // ROWS_PER_BLOCK) * ROWS_PER_BLOCK
    return DigestWeights(
        rows=torch.tensor([_odd(2 * i) for i in range(rows)], dtype=torch.int64, device=device),
        words=torch.tensor(
            [_odd(2 * i + 1) for i in range(power_of_two(n_words))], dtype=torch.int64, device=device
        ),
    )


def digest_shape(x: torch.Tensor) -> tuple[int, int]:
    """(slices, blocks of rows) of x [B, H, S, D] or [B, H, S]."""
    n_slices, n_rows, _ = _view(x)
    return n_slices, -(-n_rows // ROWS_PER_BLOCK)


def digest(
    x: torch.Tensor, *, weights: DigestWeights | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The digest of x: int64 [B * H, ceil(S / ROWS_PER_BLOCK)] on x's device; with `weights` and `out`
    nothing is allocated.

    x: [B, H, S, D] or [B, H, S] (a value a row), contiguous, float16, bfloat16, float32 or float64. On a GPU
    one Triton kernel that reads x once, on the CPU torch; both give the same numbers. Raises ValueError,
    naming the argument and what is legal.
    """
    n_slices, n_rows, n_words = _view(x)
    shape = (n_slices, -(-n_rows // ROWS_PER_BLOCK))
    if weights is None:
        weights = digest_weights(n_rows, n_words, x.device)
    if weights.rows.numel() < shape[1] * ROWS_PER_BLOCK or weights.words.numel() < n_words:
        raise ValueError(
            f"weights cover {weights.rows.numel()} rows of {weights.words.numel()} words; "
            f"legal: at least {n_rows} of {n_words}"
        )
    if weights.rows.device != x.device:
        raise ValueError(f"weights are on {weights.rows.device}; legal: {x.device}, where x is")
    if out is None:
        out = torch.empty(shape, dtype=torch.int64, device=x.device)
    elif out.shape != shape or out.dtype != torch.int64 or out.device != x.device or not out.is_contiguous():
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)} on {out.device}; "
            f"legal: contiguous int64 {list(shape)} on {x.device}"
        )
    if x.device.type == "cpu":
        return out.copy_(digest_torch(x, weights))
    from soak_kernels import digest_kernels  # here, so that the CPU's path runs where Triton is not installed

    digest_kernels.launch_digest(
        x.view(torch.int32), weights.rows, weights.words, out, n_rows=n_rows, n_words=n_words
    )
    return out


def digest_torch(x: torch.Tensor, weights: DigestWeights) -> torch.Tensor:
    """`digest` in plain torch operations: the reference, and the path of the CPU. Takes 16 bytes a word of
    memory."""
    n_slices, n_rows, n_words = _view(x)
    words = x.view(torch.int32).reshape(n_slices, n_rows, n_words).to(torch.int64) & 0xFFFFFFFF
    rows = (words * weights.words[:n_words]).sum(2) * weights.rows[:n_rows]
    n_blocks = -(-n_rows // ROWS_PER_BLOCK)
    padded = torch.nn.functional.pad(rows, (0, n_blocks * ROWS_PER_BLOCK - n_rows))
    return padded.reshape(n_slices, n_blocks, ROWS_PER_BLOCK).sum(2)


def compare(digests: torch.Tensor, golden: torch.Tensor, mismatches: torch.Tensor) -> None:
    """Add the number of differing digests to mismatches[0], on the device, with no synchronisation and no
    allocation.

    digests, golden: int64 of one shape; mismatches: int64 [1], which the caller zeroes once and reads when it
    likes.
    """
    if digests.shape != golden.shape:
        raise ValueError(f"golden has shape {list(golden.shape)}; legal: {list(digests.shape)}, as digests")
    for name, x in (("digests", digests), ("golden", golden), ("mismatches", mismatches)):
        if x.dtype != torch.int64 or x.device != digests.device or not x.is_contiguous():
            raise ValueError(
                f"{name} is {x.dtype} on {x.device}; legal: contiguous int64 on {digests.device}"
            )
    if mismatches.numel() != 1:
        raise ValueError(f"mismatches has {mismatches.numel()} elements; legal: 1")
    if digests.device.type == "cpu":
        mismatches += (digests != golden).sum()
        return
    from soak_kernels import digest_kernels

    digest_kernels.launch_compare(digests, golden, mismatches)


@dataclass(frozen=True)
class Mismatch:
    """Where two digests differ: slice = batch * heads + head; rows first_row <= r < last_row."""

    slice: int
    first_row: int
    last_row: int


def locate(digests: torch.Tensor, golden: torch.Tensor, *, seq_len: int, limit: int = 64) -> list[Mismatch]:
    """The first `limit` blocks that differ, in order. Waits for the device: for after a mismatch was
    counted."""
    found = (digests != golden).nonzero()[:limit].tolist()
    return [Mismatch(i, j * ROWS_PER_BLOCK, min((j + 1) * ROWS_PER_BLOCK, seq_len)) for i, j in found]


def _view(x: torch.Tensor) -> tuple[int, int, int]:
    """(slices, rows a slice, words a row)."""
    if x.dim() not in (3, 4) or 0 in x.shape:
        raise ValueError(f"x has shape {list(x.shape)}; legal: [B, H, S, D] or [B, H, S], each at least 1")
    if x.dtype not in _DTYPES:
        raise ValueError(f"x has dtype {x.dtype}; legal: {', '.join(map(str, _DTYPES))}")
    if not x.is_contiguous():
        raise ValueError(f"x has strides {list(x.stride())}; legal: contiguous")
    row_bytes = (x.shape[3] if x.dim() == 4 else 1) * x.element_size()
    if row_bytes % _WORD_BYTES:
        raise ValueError(f"x has rows of {row_bytes} bytes; legal: a multiple of {_WORD_BYTES}")
    return x.shape[0] * x.shape[1], x.shape[2], row_bytes // _WORD_BYTES


def power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _odd(i: int) -> int:
    """The i-th weight: splitmix64 (Steele, Lea, Flood 2014; public domain constants), made odd, as a signed
    64-bit value."""
    z = (i + 1) * 0x9E3779B97F4A7C15 & _MASK_64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK_64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK_64
    z = (z ^ (z >> 31)) | 1
    return z - (1 << 64) if z >> 63 else z
