"""gradient: the load's own check on fresh inputs, three seeds in a row; and that the check can fail."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import torch

from soak.core.criteria import broken_limits
from soak.core.protocol import Limits
from soak.core.records import GradientCheck, TensorError
from soak.load.gradient import Outputs, SelfTestError, Slice, choose_slices, compare, self_test
from soak.load.recipe import Inputs, InputScaleError, draw_inputs
from soak.verify.cases import Bench, Case, Judged, judge
from soak.verify.messages import Figure, Outcome

N_SEEDS = 3
LENGTHS = {"gpu": (512, 4096), "cpu": (512, 1024), "interpreter": (65, 100)}
HEADS = {"gpu": (8, 16), "cpu": (1, 4), "interpreter": (1, 2)}  # batch, heads
OTHER_SCALE = 2.0


def cases(bench: Bench) -> Iterator[Case]:
    del bench
    for number in range(1, N_SEEDS + 1):
        for causal in (False, True):
            yield Case(f"seed-{number}-{'causal' if causal else 'full'}", partial(_fresh, causal))
    yield Case("damage-is-rejected", _damage)
    yield Case("other-scale-is-refused", _other_scale)


def _fresh(causal: bool, bench: Bench, seed: int) -> Judged:
    """At most four (batch, head) of a launch, as in a soak."""
    subject = bench.subject
    (batch, heads), lengths = HEADS[subject.engine], LENGTHS[subject.engine]
    seq_len = random.Random(seed).randint(*lengths)
    inputs = subject.draw(seed, batch=batch, heads=heads, seq_len=seq_len)
    outputs = subject.attend(inputs, causal)
    chosen = choose_slices(seed, 0, batch=batch, heads=heads)
    slices = [Slice(Inputs(*_of(inputs, place)), Outputs(*_of(outputs, place))) for place in chosen]
    found = compare(slices, causal=causal)
    check = GradientCheck(0, subject.about.gpu, 0, 0, 0, 0, seq_len, causal, seed, chosen, found)
    figures = tuple(figure for error in found for figure in _figures(error, bench.limits))
    seen = f"seq_len {seq_len}, inputs of seed {seed}"
    judged = judge(figures, *broken_limits(check, bench.limits))
    return judged if judged.says else Judged(judged.outcome, judged.figures, seen)


def _of(tensors: Inputs | Outputs, place: tuple[int, int]) -> Iterator[torch.Tensor]:
    batch, head = place
    return (x[batch, head].detach().cpu() for x in tensors)


def _figures(error: TensorError, limits: Limits) -> Iterator[Figure]:
    """Figures carry their limits; whether they hold is `broken_limits`' to say, for O is reported only."""
    absolute = getattr(limits, f"gradient_max_abs_{error.tensor}", None)
    l2 = limits.gradient_relative_l2 if absolute is not None else None
    yield Figure(f"{error.tensor} max abs", error.max_abs, limit=absolute)
    yield Figure(f"{error.tensor} L2", error.relative_l2, limit=l2)


def _damage(bench: Bench, seed: int) -> Judged:
    """The self-test with which every soak begins."""
    del seed
    subject = bench.subject

    def attention(inputs: Inputs, causal: bool) -> Outputs:
        outputs = subject.attend(Inputs(*(x.to(subject.device) for x in inputs)), causal)
        return Outputs(*(x[0, 0].detach().cpu() for x in outputs))

    try:
        said = self_test(attention, bench.limits, head_dim=subject.head_dims[0], dtype=subject.dtype)
    except SelfTestError as error:
        return Judged(Outcome.FAIL, says=str(error))
    return Judged(Outcome.OK, says=said)


def _other_scale(bench: Bench, seed: int) -> Judged:
    """Limits hold for the recipe's inputs only."""
    drawn = draw_inputs(seed, batch=1, heads=1, seq_len=96, head_dim=bench.subject.head_dims[0])
    head = Inputs(*(x[0, 0] for x in drawn))
    larger = head._replace(q=head.q * OTHER_SCALE)
    nothing = Outputs(*(head.q for _ in Outputs._fields))
    try:
        compare([Slice(larger, nothing)], causal=False)
    except InputScaleError as error:
        return Judged(Outcome.OK, says=f"refused: {error}")
    return Judged(Outcome.FAIL, says=f"inputs of {OTHER_SCALE:g} times the recipe's scale were compared")
