"""boundary: lengths around the ends of blocks, every tensor inside poisoned memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import torch

from soak.load.recipe import DO_STD, QKV_STD, Inputs
from soak.verify.cases import Bench, Case, Judged, judge, seed_of
from soak.verify.errors import errors, nonfinite, relative
from soak.verify.guarded import Guarded

SQUARE = (1, 2, 63, 64, 65, 127, 128, 129, 1025, 4095)
SQUARE_SMALL = (1, 2, 63, 64, 65, 127)
OTHER, OTHER_SMALL = (1, 65, 127), (65,)  # with the other head dimensions
N_DRAWN = 2  # more lengths, by the seed
LONGEST_DRAWN, LONGEST_DRAWN_SMALL = 2048, 100
RECTANGLES = ((1, 65), (65, 1), (64, 127), (127, 64), (1, 1025), (1025, 2), (130, 1025), (1025, 130))
RECTANGLES_SMALL = ((1, 65), (65, 1), (33, 70), (70, 33))
FORWARD_L2, GRADIENT_L2 = 1e-3, 2e-3
LARGEST = 5e-3  # one wrong element among many is no L2


def cases(bench: Bench) -> Iterator[Case]:
    """The load's head dimension with every length; the others with a few."""
    subject = bench.subject
    square = SQUARE_SMALL if subject.is_interpreted else SQUARE
    other = OTHER_SMALL if subject.is_interpreted else OTHER
    rectangles = RECTANGLES_SMALL if subject.is_interpreted else RECTANGLES
    longest = LONGEST_DRAWN_SMALL if subject.is_interpreted else LONGEST_DRAWN
    draw = random.Random(seed_of(bench.seed, "boundary", "lengths"))
    drawn = tuple(draw.sample(range(3, longest + 1), N_DRAWN))
    first, *others = subject.head_dims
    for causal in (False, True):
        shapes = [(s, s, first) for s in (*square, *drawn)]
        if causal in subject.rectangular:
            shapes += [(sq, sk, first) for sq, sk in rectangles]
        shapes += [(s, s, head_dim) for head_dim in others for s in other]
        for seq_q, seq_k, head_dim in shapes:
            length = str(seq_q) if seq_q == seq_k else f"{seq_q}x{seq_k}"
            name = f"seq-{length}-d{head_dim}-{'causal' if causal else 'full'}"
            yield Case(name, partial(_case, seq_q, seq_k, head_dim, causal))


def _case(seq_q: int, seq_k: int, head_dim: int, causal: bool, bench: Bench, seed: int) -> Judged:
    subject = bench.subject
    heads = 1 if max(seq_q, seq_k) > 1025 or subject.is_interpreted else 2
    guarded = Guarded(subject.device)
    drawn = _draw(seed, heads, (seq_q, seq_k), head_dim, subject.dtype)
    inputs = Inputs(*(guarded.of(x, name) for x, name in zip(drawn, Inputs._fields, strict=True)))
    with guarded.allocations():
        outputs = subject.attend(inputs, causal)
    outside = guarded.written_outside()
    found = errors(drawn, outputs, causal=causal)
    figures = tuple(
        figure
        for name, e in found.items()
        for figure in relative(
            name, e, l2=FORWARD_L2 if name in ("o", "lse") else GRADIENT_L2, largest=LARGEST
        )
    )
    return judge(figures, f"written outside: {'; '.join(outside)}" if outside else "", nonfinite(found))


def _draw(seed: int, heads: int, lengths: tuple[int, int], head_dim: int, dtype: torch.dtype) -> Inputs:
    """The recipe's inputs, on the CPU, where Sq and Sk may differ."""
    generator = torch.Generator().manual_seed(seed)
    seq_q, seq_k = lengths
    rows = (seq_q, seq_k, seq_k, seq_q)
    stds = (QKV_STD, QKV_STD, QKV_STD, DO_STD)
    return Inputs(
        *(
            (torch.randn(1, heads, n, head_dim, generator=generator) * std).to(dtype)
            for n, std in zip(rows, stds, strict=True)
        )
    )
