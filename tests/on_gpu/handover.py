"""The smallest kernel with flash_hopper's hand-over of tiles: one warpgroup sends numbers, two receive them.

    PYTHONPATH=kernels [compute-sanitizer --tool racecheck] python tests/on_gpu/handover.py

Exit code 0 if every number came across, in order. It is what compute-sanitizer's racecheck is asked about
first: what it reports here, of an exchange that a pair of barriers orders, it reports of flash_hopper too.
"""

# Inside @gluon.jit: no annotations.
# mypy: allow-untyped-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import sys

import torch
from soak_kernels.flash_hopper import _barriers, _hand_out, _take
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

N_NUMBERS = 1000


@gluon.jit
def _sends(s_tile, ready_tile, free_tile, n_numbers):
    for i in range(n_numbers):
        _hand_out(i, 7 * i, i, s_tile, ready_tile, free_tile)
    _hand_out(-1, 0, n_numbers, s_tile, ready_tile, free_tile)


@gluon.jit
def _receives(p_out, s_tile, ready_tile, free_tile, n_numbers, W: gl.constexpr):
    i = 0
    first, second = _take(0, s_tile, ready_tile, free_tile)
    while first >= 0:
        gl.store(p_out + W * n_numbers + i, first + second)
        i += 1
        first, second = _take(i, s_tile, ready_tile, free_tile)


@gluon.jit
def _kernel(p_out, n_numbers):
    s_tile = gl.allocate_shared_memory(gl.int64, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready_tile = _barriers(2, 1)
    free_tile = _barriers(2, 2)
    gl.warp_specialize(
        [
            (_sends, (s_tile, ready_tile, free_tile, n_numbers)),
            (_receives, (p_out, s_tile, ready_tile, free_tile, n_numbers, gl.constexpr(0))),
            (_receives, (p_out, s_tile, ready_tile, free_tile, n_numbers, gl.constexpr(1))),
        ],
        [4, 4],
        [24, 24],
    )


def main() -> int:
    out = torch.full((2, N_NUMBERS), -1, dtype=torch.int32, device="cuda")
    _kernel[(1,)](out, N_NUMBERS, num_warps=4)
    expected = 8 * torch.arange(N_NUMBERS, dtype=torch.int32, device="cuda")
    arrived = bool((out == expected).all())
    print(f"{2 * N_NUMBERS} numbers, {'all' if arrived else 'not all'} as sent")
    return 0 if arrived else 1


if __name__ == "__main__":
    sys.exit(main())
