"""The gradient check: right by another path, and blind to nothing (A16, A17)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from soak.core.criteria import broken_limits
from soak.core.protocol import Limits
from soak.core.records import GradientCheck
from soak.load import gradient
from soak.load.engine_cpu import attention
from soak.load.gradient import Outputs, SelfTestError, Slice, choose_slices, compare, self_test
from soak.load.recipe import Inputs, InputScaleError, draw_inputs

LIMITS = Limits(frozenset())


def one_head(seq_len: int = 300, head_dim: int = 32, seed: int = 5) -> Inputs:
    drawn = draw_inputs(seed, batch=1, heads=1, seq_len=seq_len, head_dim=head_dim)
    return Inputs(*(tensor[0, 0] for tensor in drawn))


def by_autograd(inputs: Inputs, causal: bool) -> tuple[torch.Tensor, ...]:
    q, k, v = (tensor.double().requires_grad_() for tensor in inputs[:3])
    scores = q @ k.T / math.sqrt(q.shape[1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    o = scores.softmax(1) @ v
    return (o.detach(), scores.detach().logsumexp(1), *torch.autograd.grad(o, (q, k, v), inputs.do.double()))


def broken(outputs: Outputs, inputs: Inputs, causal: bool = True) -> list[str]:
    errors = compare([Slice(inputs, outputs)], causal=causal)
    return broken_limits(GradientCheck(0, "", 0, 0, 0, 0, 1, causal, 0, (), errors), LIMITS)


def right(inputs: Inputs, causal: bool = True) -> Outputs:
    return attention(Inputs(*(tensor[None, None] for tensor in inputs)), causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_len", [2, 255, 257, 600])
def test_the_figures_are_what_autograd_says_in_float64(seq_len: int, causal: bool) -> None:
    inputs = one_head(seq_len)
    outputs, truth = right(inputs, causal), Outputs(*by_autograd(inputs, causal))
    for error in compare([Slice(inputs, outputs)], causal=causal):
        expected = getattr(truth, error.tensor)
        differing = getattr(outputs, error.tensor).double() - expected
        assert error.max_abs == pytest.approx(differing.abs().max().item(), rel=1e-6)
        assert error.relative_l2 == pytest.approx((differing.norm() / expected.norm()).item(), rel=1e-6)
        assert error.max_reference == pytest.approx(expected.abs().max().item(), rel=1e-9)
        assert (error.n_elements, error.n_nonfinite) == (seq_len * 32, 0)


@pytest.mark.parametrize("causal", [False, True])
def test_the_load_is_within_the_limits(causal: bool) -> None:
    inputs = one_head()
    assert broken(right(inputs, causal), inputs, causal) == []


def test_one_row_has_no_gradient_and_passes() -> None:
    inputs = one_head(1, head_dim=512)
    assert broken(right(inputs), inputs) == []


def damaged(change: Callable[[torch.Tensor], None], name: str = "dq") -> list[str]:
    inputs = one_head()
    outputs = right(inputs)
    tensor = getattr(outputs, name).clone()
    change(tensor)
    return broken(outputs._replace(**{name: tensor}), inputs)


@pytest.mark.parametrize("name", ["dq", "dk", "dv"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_fails_with_its_tensor_and_count(name: str, value: float) -> None:
    def change(tensor: torch.Tensor) -> None:
        tensor[3, 4] = value

    assert damaged(change, name) == [f"{name} has 1 NaN or inf"]


def test_errors_that_are_all_negative_fail() -> None:
    assert "dq differs" in damaged(lambda tensor: tensor.sub_(0.01))[0]


def test_nan_in_result_and_reference_alike_fails() -> None:
    tally = gradient._Tally()
    tally.add(torch.tensor([math.nan]), torch.tensor([math.nan], dtype=torch.float64))
    error = tally.error("dq")
    assert (error.n_elements, error.n_nonfinite) == (1, 1)
    assert math.isnan(error.max_abs)


def test_nothing_to_compare_fails() -> None:
    errors = compare([], causal=False)
    assert [(e.tensor, e.n_elements) for e in errors] == [("o", 0), ("dq", 0), ("dk", 0), ("dv", 0)]
    check = GradientCheck(0, "", 0, 0, 0, 0, 1, True, 0, (), errors)
    assert broken_limits(check, LIMITS) == [
        "dq was not compared",
        "dk was not compared",
        "dv was not compared",
    ]


def test_a_zeroed_gradient_fails_however_small_it_is() -> None:
    inputs = one_head()
    q, k, v = (tensor.clone().requires_grad_() for tensor in inputs[:3])
    o = torch.nn.functional.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])
    o.mean().backward()  # the loss that hides everything: gradients of 1e-7
    assert q.grad is not None
    tally = gradient._Tally()
    tally.add(torch.zeros_like(q.grad), q.grad.double())
    error = tally.error("dq")
    assert error.max_abs < LIMITS.gradient_max_abs_dq
    assert not error.relative_l2 < LIMITS.gradient_relative_l2
    assert damaged(lambda tensor: tensor.zero_())[0].startswith("dq differs by")


@pytest.mark.parametrize(("name", "factor"), [("q", 3.0), ("k", 3.0), ("v", 10.0), ("do", 1e-3), ("q", 1.1)])
def test_inputs_of_another_scale_are_refused(name: str, factor: float) -> None:
    inputs = one_head()
    other = inputs._replace(**{name: getattr(inputs, name) * factor})
    with pytest.raises(InputScaleError, match=f"{name} has a standard deviation of"):
        compare([Slice(other, right(other))], causal=True)


def test_self_test_accepts_the_load_and_counts_what_it_rejected() -> None:
    said = self_test(attention, LIMITS, head_dim=32, dtype=torch.float32)
    assert said == "the gradient check rejected 9 of 9 damaged gradients"


def test_self_test_finds_a_kernel_that_is_wrong() -> None:
    def wrong(inputs: Inputs, causal: bool) -> Outputs:
        outputs = attention(inputs, causal)
        return outputs._replace(dk=torch.zeros_like(outputs.dk))

    with pytest.raises(SelfTestError, match="wrong on 96 rows at the start: dk differs"):
        self_test(wrong, LIMITS, head_dim=32, dtype=torch.float32)


def test_self_test_finds_limits_that_let_everything_pass() -> None:
    wide = Limits(frozenset(), gradient_max_abs_dv=1e9, gradient_relative_l2=1e9)
    with pytest.raises(SelfTestError, match="lets dv pass with zeroed"):
        self_test(attention, wide, head_dim=32, dtype=torch.float32)


def test_slices_are_random_and_the_same_for_the_same_check() -> None:
    chosen = choose_slices(7, 3, batch=8, heads=16)
    assert chosen == choose_slices(7, 3, batch=8, heads=16)
    assert len(set(chosen)) == 4
    assert all(0 <= b < 8 and 0 <= h < 16 for b, h in chosen)
    assert len({choose_slices(7, index, batch=8, heads=16) for index in range(48)}) > 40
    assert choose_slices(7, 0, batch=1, heads=2) == ((0, 0), (0, 1))


def test_inputs_can_be_drawn_again() -> None:
    first, again = one_head(seed=9), one_head(seed=9)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.q, one_head(seed=10).q)
