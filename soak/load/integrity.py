"""Bits against bits: where an output differs from the golden one, and what a replay says about it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

_WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by element size in bytes


@dataclass(frozen=True, slots=True)
class Difference:
    """How one head's tensor differs from the golden one. `rows`: ranges [first, last), at most
    `MAX_RANGES`."""

    n_bits: int
    n_elements: int
    rows: tuple[tuple[int, int], ...]
    first: tuple[int, int]  # (row, column) of the first differing element
    first_xor: int  # which of its bits differ


MAX_RANGES = 16


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Unlike ==, -0 is not 0 and a NaN is itself."""
    return torch.equal(_words(a), _words(b))


def difference(golden: torch.Tensor, got: torch.Tensor) -> Difference | None:
    """Of two [seq_len, head_dim] or [seq_len] of one dtype; None where every bit is the same."""
    words = _words(golden).reshape(golden.shape[0], -1) ^ _words(got).reshape(got.shape[0], -1)
    places = words.nonzero()
    if places.shape[0] == 0:
        return None
    n_bits = 8 * golden.element_size()
    wrong = words[places[:, 0], places[:, 1]].to(torch.int64)
    row, column = places[0].tolist()
    return Difference(
        n_bits=sum(int((wrong >> bit & 1).sum()) for bit in range(n_bits)),
        n_elements=places.shape[0],
        rows=_ranges(torch.unique(places[:, 0]).tolist())[:MAX_RANGES],
        first=(row, column),
        first_xor=int(wrong[0]) & ((1 << n_bits) - 1),
    )


def golden_name(digests: Iterable[torch.Tensor]) -> str:
    """One short name for many digests (`soak_kernels.digest`, on the CPU), in their order: 32 hexadecimal
    digits."""
    whole = hashlib.blake2b(digest_size=16)
    for each in digests:
        whole.update(each.contiguous().numpy().tobytes())
    return whole.hexdigest()


def replay_says(golden: torch.Tensor, got: torch.Tensor, replayed: torch.Tensor) -> str:
    """`transient`: the replay is right; `repeatable`: the same wrong result again; `unstable`: another wrong
    one."""
    if same_bits(replayed, golden):
        return "transient"
    return "repeatable" if same_bits(replayed, got) else "unstable"


def flip_bit_in_place(tensor: torch.Tensor, row: int, column: int, bit: int) -> None:
    """Of a contiguous tensor on any device; 16, 32 or 64 bits an element, the topmost not among them."""
    tensor.view(_WORDS[tensor.element_size()])[row, column].bitwise_xor_(1 << bit)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(_WORDS[tensor.element_size()])


def _ranges(rows: Sequence[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for row in rows:
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + 1)
        else:
            ranges.append((row, row + 1))
    return tuple(ranges)
