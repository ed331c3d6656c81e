"""integrity: the same inputs give the same bits; and a single flipped bit is found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import torch
from soak_kernels.digest import ROWS_PER_BLOCK, digest, locate

from soak.load.gradient import Outputs
from soak.load.integrity import difference, flip_bit_in_place
from soak.verify.cases import Bench, Case, Judged
from soak.verify.messages import Figure, Outcome
from soak.verify.subject import Subject

REPEATS = {"gpu": 200, "cpu": 8, "interpreter": 2}
LENGTHS = {"gpu": (513, 4096), "cpu": (257, 768), "interpreter": (33, 70)}
HEADS = {"gpu": (8, 16), "cpu": (1, 3), "interpreter": (1, 2)}  # batch, heads


def cases(bench: Bench) -> Iterator[Case]:
    del bench
    for causal in (False, True):
        yield Case(f"repeat-{'causal' if causal else 'full'}", partial(_repeat, causal))
    for name in Outputs._fields:
        yield Case(f"flip-{name}", partial(_flip, name))


def _attended(subject: Subject, causal: bool, seed: int) -> Iterator[Outputs]:
    """The same step again and again."""
    (batch, heads), lengths = HEADS[subject.engine], LENGTHS[subject.engine]
    seq_len = random.Random(seed).randint(*lengths)
    inputs = subject.draw(seed, batch=batch, heads=heads, seq_len=seq_len)
    while True:
        yield Outputs(*(x.contiguous() for x in subject.attend(inputs, causal)))


def _digests(outputs: Outputs) -> list[torch.Tensor]:
    return [digest(x) for x in outputs]


def _repeat(causal: bool, bench: Bench, seed: int) -> Judged:
    subject = bench.subject
    n_runs = REPEATS[subject.engine]
    runs = _attended(subject, causal, seed)
    first = next(runs)
    golden = _digests(first)
    wrong, found = 0, ""
    for run in range(1, n_runs + 1):
        outputs = next(runs)
        differing = [
            name
            for name, ours, theirs in zip(Outputs._fields, _digests(outputs), golden, strict=True)
            if not torch.equal(ours, theirs)
        ]
        wrong += bool(differing)
        if differing and not found:
            found = f"run {run}: {_where(differing[0], first, outputs)}"
    figures = (Figure("repeats", float(n_runs)), Figure("with other bits", float(wrong), limit=0.0))
    return Judged(Outcome.FAIL if wrong else Outcome.OK, figures, found)


def _where(name: str, golden: Outputs, got: Outputs) -> str:
    """The first head that differs, bit by bit."""
    expected, found = (getattr(outputs, name).flatten(0, 1).cpu() for outputs in (golden, got))
    for head, (a, b) in enumerate(zip(expected, found, strict=True)):
        seen = difference(a, b)
        if seen is not None:
            row, column = seen.first
            return (
                f"{seen.n_bits} bits of {seen.n_elements} elements of {name} differ, the first in "
                f"slice {head}, row {row}, column {column}"
            )
    return f"the digest of {name} differs and its bits do not: the digest was computed wrongly"


def _flip(name: str, bench: Bench, seed: int) -> Judged:
    """One bit of one element, drawn by the seed; its digest must name the slice and the block of rows."""
    draw = random.Random(seed)
    outputs = next(_attended(bench.subject, bool(draw.getrandbits(1)), seed))
    tensor: torch.Tensor = getattr(outputs, name)
    golden = digest(tensor)
    batch, heads, rows = tensor.shape[:3]
    columns = tensor.shape[3] if tensor.dim() == 4 else 1
    slice_, row, column = draw.randrange(batch * heads), draw.randrange(rows), draw.randrange(columns)
    bit = draw.randrange(8 * tensor.element_size() - 1)
    damaged = tensor.clone()
    flip_bit_in_place(damaged.view(batch * heads, rows, columns)[slice_], row, column, bit)
    found = locate(digest(damaged), golden, seq_len=rows)
    first = row // ROWS_PER_BLOCK * ROWS_PER_BLOCK
    where = f"bit {bit} of {name}, slice {slice_}, row {row}, column {column}"
    if [(m.slice, m.first_row) for m in found] == [(slice_, first)]:
        return Judged(Outcome.OK, says=f"{where}: found in rows {first} to {found[0].last_row}")
    seen = ", ".join(f"slice {m.slice}, rows {m.first_row} to {m.last_row}" for m in found)
    return Judged(Outcome.FAIL, says=f"{where} was flipped; found was {seen or 'nothing'}")
