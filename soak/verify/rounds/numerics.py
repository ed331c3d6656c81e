"""numerics: scores at the ends of the number range, against float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch

from soak.load.recipe import Inputs, draw_inputs
from soak.verify.cases import Bench, Case, Judged, judge
from soak.verify.errors import errors, nonfinite, relative
from soak.verify.messages import Figure

LARGEST = 65504.0  # of float16
HEAD_DIM = 128
SEQ_LEN = 2048
SEQ_LEN_SMALL = 65  # a whole block, and a tail
LIMIT = 1e-3
GRADIENTS = ("dq", "dk", "dv")


def _with(i: Inputs, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Inputs:
    return Inputs(q, k, v, i.do)


def _largest(i: Inputs) -> Inputs:
    return _with(i, *(torch.full_like(x, LARGEST) for x in i[:3]))


def _tiny(i: Inputs) -> Inputs:
    return _with(i, *(x * 2e-8 for x in i[:3]))  # the recipe's deviation is 0.5


def _tiny_scores(i: Inputs) -> Inputs:
    return Inputs(i.q * 2e-8, i.k * 2e-8, i.v, i.do)


def _mixed_signs(i: Inputs) -> Inputs:
    """Scores of both signs up to 1e11: one key has all the weight of a row."""
    q, k = ((x.float() * 4e4).clamp(-LARGEST, LARGEST).to(x.dtype) for x in (i.q, i.k))
    return Inputs(q, k, i.v, i.do)


def _one_huge_row(i: Inputs) -> Inputs:
    q = i.q.clone()
    q[:, :, q.shape[2] // 2] = LARGEST
    return i._replace(q=q)


def _all_equal(i: Inputs) -> Inputs:
    return _with(i, *(x[:, :, :1].expand_as(x).contiguous() for x in i[:3]))


KINDS: Mapping[str, Callable[[Inputs], Inputs]] = {
    "largest": _largest,
    "tiny": _tiny,
    "tiny-scores": _tiny_scores,
    "mixed-signs": _mixed_signs,
    "one-huge-row": _one_huge_row,
    "all-equal": _all_equal,
}


def cases(bench: Bench) -> Iterator[Case]:
    del bench
    for kind in KINDS:
        for causal in (False, True):
            yield Case(f"{kind}-{'causal' if causal else 'full'}", partial(_case, kind, causal))


def _case(kind: str, causal: bool, bench: Bench, seed: int) -> Judged:
    subject = bench.subject
    seq_len, head_dim = SEQ_LEN, HEAD_DIM
    if subject.is_interpreted or HEAD_DIM not in subject.head_dims:
        seq_len, head_dim = SEQ_LEN_SMALL if subject.is_interpreted else SEQ_LEN, subject.head_dims[0]
    drawn = draw_inputs(seed, batch=1, heads=1, seq_len=seq_len, head_dim=head_dim, dtype=subject.dtype)
    inputs = Inputs(*(x.to(subject.device) for x in KINDS[kind](drawn)))
    outputs = subject.attend(inputs, causal)
    found = errors(inputs, outputs, causal=causal, names=("o", "lse"))
    figures = [f for name, e in found.items() for f in relative(name, e, l2=LIMIT, largest=LIMIT)]
    n_wild = sum(int((~getattr(outputs, name).isfinite()).sum()) for name in GRADIENTS)
    judged = 0.0 if not subject.extreme_gradients else None  # where they cannot be, it is reported
    figures.append(Figure("gradients", float(n_wild), " NaN or inf", limit=judged))
    return judge(tuple(figures), nonfinite(found))
