"""What an LDS access costs in clocks, by the banks that its lanes touch.

The model: 32 banks of 4 bytes, one dword a bank and clock, equal addresses are one access. Lanes go in
groups: 32 lanes a clock for accesses of up to 4 bytes, 16 for 8, 8 for 16. A group costs as many clocks as
its busiest bank has different dwords. Adjacent lanes go together; that is documented for writes, and for the
16-byte reads of later cards it is not so. gfx906's own grouping is not documented, so such reads are also
counted by each grouping that is known of later cards: `worst`. Not modelled: what an access costs beyond its
data (issue, address crossbar), which measurements on later cards put at a fifth of a 16-byte access.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from soak_kernels.gfx906.machine import LANES, Bool, Index

BANKS = 32


def _groups(pattern: list[list[int]]) -> Index:
    """Groups of the first 32 lanes, repeated for the second 32: [groups, lanes]."""
    half = np.array(pattern, np.int64)
    return np.concatenate([half, half + 32])


def _runs(*quads: tuple[int, ...]) -> list[list[int]]:
    """Groups written as the quads of lanes (0: lanes 0-3, 1: lanes 4-7, ...) that they consist of."""
    return [[4 * quad + lane for quad in group for lane in range(4)] for group in quads]


_ADJACENT = _groups([list(range(i, i + 8)) for i in range(0, 32, 8)])
_LATER_READS = (
    _groups(_runs((0, 5), (1, 4), (2, 7), (3, 6))),  # CDNA3, as its kernel library's documentation has it
    _groups(_runs((0, 3), (5, 6), (1, 2), (4, 7))),  # CDNA4's groups of 16 lanes, halved
)
_BY_WIDTH = {
    4: _groups([list(range(32))]),
    8: _groups([list(range(16)), list(range(16, 32))]),
    16: _ADJACENT,
}


@dataclass(frozen=True)
class Cost:
    """Clocks of LDS accesses: by adjacent lanes, by the worst known grouping, and had there been no
    conflict."""

    clocks: int
    worst: int
    conflict_free: int


def access_cost(address: Index, active: Bool, width: int, *, read: bool) -> Cost:
    """Of one access of one wave. address: bytes, int64 [64]; active: bool [64]; width: bytes a lane."""
    key = 4 if width <= 4 else 8 if width == 8 else 16
    clocks, free = _clocks(address, active, width, _BY_WIDTH[key])
    worst = clocks
    if key == 16 and read:
        worst = max(clocks, *(_clocks(address, active, width, groups)[0] for groups in _LATER_READS))
    return Cost(clocks, worst, free)


def _clocks(address: Index, active: Bool, width: int, groups: Index) -> tuple[int, int]:
    n_words = max(1, width // 4)
    words = (address >> 2)[:, None] + np.arange(n_words)
    # (bank, dword) as one number; a lane that is off repeats one that no bank has
    keys = (words % BANKS << 32) + words
    keys[~active] = -1
    sorted_ = np.sort(keys[groups].reshape(len(groups), -1), axis=1)
    new = np.ones(sorted_.shape, np.bool_)
    new[:, 1:] = sorted_[:, 1:] != sorted_[:, :-1]
    new &= sorted_ >= 0
    row = np.repeat(np.arange(len(groups)), new.sum(axis=1))
    load = np.bincount(row * BANKS + (sorted_[new] >> 32), minlength=len(groups) * BANKS).reshape(-1, BANKS)
    worst = load.max(axis=1)
    return int(worst.sum()), int((worst > 0).sum())


class Counter:
    """LDS clocks of each instruction, counted as it runs; equal patterns are worked out once.

    A pattern shifted by a constant touches other banks in the same way, so patterns are kept relative to
    their lowest address."""

    def __init__(self) -> None:
        self.accesses: dict[int, list[int]] = {}  # instruction -> [times, clocks, worst, conflict-free]
        self._known: dict[tuple[int, bool, bytes, bytes], Cost] = {}

    def count(self, number: int, address: Index, active: Bool, width: int, *, read: bool) -> None:
        """One access by one wave: address [64], active [64]."""
        assert address.shape == active.shape == (LANES,)
        if not active.any():
            return
        relative = np.where(active, address - address[active].min(), 0)
        key = (width, read, relative.tobytes(), active.tobytes())
        if key not in self._known:
            self._known[key] = access_cost(relative, active, width, read=read)
        cost = self._known[key]
        entry = self.accesses.setdefault(number, [0, 0, 0, 0])
        for i, value in enumerate((1, cost.clocks, cost.worst, cost.conflict_free)):
            entry[i] += value
