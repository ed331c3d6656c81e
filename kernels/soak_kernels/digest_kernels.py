"""The Triton kernels of `digest`: one reads a tensor once at memory speed, one compares on the device."""

# Inside @triton.jit nothing is annotated.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from soak_kernels.digest import ROWS_PER_BLOCK, power_of_two

NUM_WARPS = 4
_ROWS_PER_STEP = 32
_COMPARE_BLOCK = 1024


# --- kernels
# ---------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n_rows", "n_blocks"])
def _digest_kernel(
    p_words, p_row_weight, p_word_weight, p_digest, n_rows, n_blocks,
    N_WORDS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The digest of one block of rows of one slice. Grid: (slices * n_blocks,). WIDTH: N_WORDS up to a power
    of two."""
    i_slice = (tl.program_id(0) // n_blocks).to(tl.int64)
    i_block = tl.program_id(0) % n_blocks
    o_word = tl.arange(0, WIDTH)
    b_word_weight = tl.load(p_word_weight + o_word)
    b_sum = tl.zeros([STEP], tl.int64)
    p_words += i_slice * n_rows * N_WORDS
    for start in tl.range(0, BLOCK, STEP):
        o_row = i_block * BLOCK + start + tl.arange(0, STEP)
        m_word = (o_row[:, None] < n_rows) & (o_word[None, :] < N_WORDS)
        b_words = tl.load(p_words + o_row[:, None] * N_WORDS + o_word[None, :], mask=m_word, other=0)
        b_words = b_words.to(tl.uint32, bitcast=True).to(tl.int64)
        b_rows = tl.sum(b_words * b_word_weight[None, :], 1)
        b_sum += b_rows * tl.load(p_row_weight + o_row)
    tl.store(p_digest + tl.program_id(0), tl.sum(b_sum, 0))


@triton.jit(do_not_specialize=["n"])
def _compare_kernel(p_digest, p_golden, p_mismatches, n, BLOCK: tl.constexpr):
    """mismatches[0] += how many of n differ. Grid: (1,): one owner of the count, so no atomics."""
    b_count = tl.zeros([BLOCK], tl.int64)
    for start in tl.range(0, n, BLOCK):
        o = start + tl.arange(0, BLOCK)
        b_digest = tl.load(p_digest + o, mask=o < n, other=0)
        b_golden = tl.load(p_golden + o, mask=o < n, other=0)
        b_count += (b_digest != b_golden).to(tl.int64)
    tl.store(p_mismatches, tl.load(p_mismatches) + tl.sum(b_count, 0))


# --- launchers
# -------------------------------------------------------------------------------------------------------


def constants(n_words: int) -> dict[str, Any]:
    """The compile-time arguments of the digest kernel for rows of n_words."""
    width = power_of_two(n_words)
    step = min(ROWS_PER_BLOCK, max(_ROWS_PER_STEP, 1024 // width))
    return {"N_WORDS": n_words, "WIDTH": width, "STEP": step, "BLOCK": ROWS_PER_BLOCK}


def launch_digest(
    words: torch.Tensor,
    row_weights: torch.Tensor,
    word_weights: torch.Tensor,
    out: torch.Tensor,
    *,
    n_rows: int,
    n_words: int,
) -> None:
    """The digest of int32 words [slices, n_rows, n_words] into out [slices, blocks]; arguments as `digest`
    checked them."""
    n_blocks = -(-n_rows // ROWS_PER_BLOCK)
    _digest_kernel[(out.numel(),)](
        p_words=words, p_row_weight=row_weights, p_word_weight=word_weights, p_digest=out,
        n_rows=n_rows, n_blocks=n_blocks, **constants(n_words), num_warps=NUM_WARPS,
    )  # fmt: skip


def launch_compare(digests: torch.Tensor, golden: torch.Tensor, mismatches: torch.Tensor) -> None:
    """mismatches[0] += the number of differing digests; arguments as `compare` checked them."""
    _compare_kernel[(1,)](
        p_digest=digests, p_golden=golden, p_mismatches=mismatches,
        n=digests.numel(), BLOCK=_COMPARE_BLOCK, num_warps=NUM_WARPS,
    )  # fmt: skip
