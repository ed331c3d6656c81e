"""boundary: lengths around the ends of blocks, every tensor inside poisoned memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
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
GROUPED = (2, 1)  # heads, and those of K and V
TWO_HEADS_TO = 1025  # rows
FORWARD_L2, GRADIENT_L2 = 1e-3, 2e-3
LARGEST = 5e-3  # one wrong element among many is no L2


@dataclass(frozen=True)
class _Size:
    """q, dO [1, heads, seq_q, head_dim]; k, v [1, kv_heads, seq_k, head_dim]."""

    seq_q: int
    seq_k: int
    head_dim: int
    heads: int
    kv_heads: int

    @property
    def name(self) -> str:
        length = f"{self.seq_q}" if self.seq_q == self.seq_k else f"{self.seq_q}x{self.seq_k}"
        heads = f"-h{self.heads}x{self.kv_heads}" if self.heads != self.kv_heads else ""
        return f"seq-{length}-d{self.head_dim}{heads}"


def cases(bench: Bench) -> Iterator[Case]:
    for causal in (False, True):
        for size in _sizes(bench, causal):
            yield Case(f"{size.name}-{'causal' if causal else 'full'}", partial(_case, size, causal))


def _sizes(bench: Bench, causal: bool) -> Iterator[_Size]:
    """The load's head dimension with every length; the others, and heads that share keys, with a few."""
    subject = bench.subject
    small = subject.is_interpreted
    draw = random.Random(seed_of(bench.seed, "boundary", "lengths"))
    drawn = draw.sample(range(3, (LONGEST_DRAWN_SMALL if small else LONGEST_DRAWN) + 1), N_DRAWN)
    first, *others = subject.head_dims

    def size(seq_q: int, seq_k: int, head_dim: int = first) -> _Size:
        heads = 1 if small or max(seq_q, seq_k) > TWO_HEADS_TO else 2
        return _Size(seq_q, seq_k, head_dim, heads, heads)

    yield from (size(s, s) for s in (*(SQUARE_SMALL if small else SQUARE), *drawn))
    if causal in subject.rectangular:
        yield from (size(*lengths) for lengths in (RECTANGLES_SMALL if small else RECTANGLES))
    yield from (size(s, s, d) for d in others for s in (OTHER_SMALL if small else OTHER))
    if subject.grouped:
        yield from (_Size(s, s, first, *GROUPED) for s in (OTHER_SMALL if small else OTHER))


def _case(size: _Size, causal: bool, bench: Bench, seed: int) -> Judged:
    subject = bench.subject
    drawn = _draw(seed, size, subject.dtype)
    guarded = Guarded(subject.device)
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


def _draw(seed: int, size: _Size, dtype: torch.dtype) -> Inputs:
    """The recipe's inputs, on the CPU."""
    generator = torch.Generator().manual_seed(seed)

    def normal(heads: int, seq_len: int, std: float) -> torch.Tensor:
        return (torch.randn(1, heads, seq_len, size.head_dim, generator=generator) * std).to(dtype)

    return Inputs(
        q=normal(size.heads, size.seq_q, QKV_STD),
        k=normal(size.kv_heads, size.seq_k, QKV_STD),
        v=normal(size.kv_heads, size.seq_k, QKV_STD),
        do=normal(size.heads, size.seq_q, DO_STD),
    )
