"""Each round passes the load's kernel, and finds the fault that it is meant for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from soak.verify.cases import Bench, Judged, judge, seed_of
from soak.verify.messages import PLANTS, ROUNDS, Figure, Order, Outcome
from soak.verify.plant import planted
from soak.verify.rounds import rounds
from soak.verify.subject import UsageError, subject_of

Make = Callable[..., Order]

# What each planted fault is found by: a case of the round that is meant for it, and words of what is said.
FOUND_BY = {
    "overflow": ("numerics", "largest-full", "NaN or inf"),
    "write-outside": ("boundary", "seq-65-d64-causal", "bytes behind q, the nearest 0 away"),
    "read-outside": ("boundary", "seq-127-d64-full", "NaN or inf"),
    "scale": ("gradient", "seed-1-full", "differs by"),
    "slow": ("bandwidth", "growing-batch", "batch 16 is"),
    "leak": ("memory", "many-shapes", "kept is"),
    "bit-flip": ("integrity", "repeat-full", "1 bits of 1 elements of dq differ"),
}


def made(order: Order, round_: str, name: str) -> Judged:
    bench = Bench(planted(subject_of(order), order.plant), order.limits, order.seed)
    (case,) = [case for case in rounds()[round_](bench) if case.name == name]
    return case.run(bench, seed_of(order.seed, round_, name))


@pytest.mark.parametrize("fault", [fault for fault in FOUND_BY if fault not in ("slow", "leak")])
def test_the_round_that_is_meant_for_a_fault_finds_it(order: Make, fault: str) -> None:
    round_, name, words = FOUND_BY[fault]
    sound = made(order(), round_, name)
    assert sound.outcome is Outcome.OK, sound
    wrong = made(order(plant=fault), round_, name)
    assert wrong.outcome is Outcome.FAIL
    assert words in wrong.says


def test_a_leak_is_found(order: Make) -> None:
    round_, name, words = FOUND_BY["leak"]
    wrong = made(order(plant="leak"), round_, name)
    assert wrong.outcome is Outcome.FAIL
    assert words in wrong.says


@pytest.mark.slow
def test_a_launch_that_slows_down_is_found(order: Make) -> None:
    round_, name, words = FOUND_BY["slow"]
    assert made(order(), round_, name).outcome is Outcome.OK
    wrong = made(order(plant="slow"), round_, name)
    assert wrong.outcome is Outcome.FAIL
    assert words in wrong.says


def test_memory_comes_back(order: Make) -> None:
    judged = made(order(), "memory", "many-shapes")
    assert judged.outcome is Outcome.OK, judged
    assert {"kept", "most in use"} <= {figure.name for figure in judged.figures}


def test_every_fault_has_its_round() -> None:
    """`hang` and `crash` are for the parent to find (test_session.py)."""
    assert {*FOUND_BY, "hang", "crash"} == set(PLANTS)
    assert {round_ for round_, _, _ in FOUND_BY.values()} == set(ROUNDS)
    assert tuple(rounds()) == ROUNDS


@pytest.mark.parametrize("tensor", ["o", "lse", "dq", "dk", "dv"])
def test_a_flipped_bit_is_found_where_it_is(order: Make, tensor: str) -> None:
    for seed in range(5):
        judged = made(order(seed=seed), "integrity", f"flip-{tensor}")
        assert judged.outcome is Outcome.OK, judged
        assert f"of {tensor}," in judged.says


def test_inputs_of_another_scale_are_refused_by_the_gradient_round(order: Make) -> None:
    judged = made(order(), "gradient", "other-scale-is-refused")
    assert judged.outcome is Outcome.OK
    assert "standard deviation" in judged.says


def test_a_case_alone_draws_what_it_drew_among_others(order: Make) -> None:
    one, again = (made(order(seed=5), "gradient", "seed-2-causal") for _ in range(2))
    other = made(order(seed=6), "gradient", "seed-2-causal")
    assert one == again
    assert one != other


def test_lengths_are_drawn_by_the_seed(order: Make) -> None:
    def names(seed: int) -> list[str]:
        bench = Bench(subject_of(order(seed=seed)), order().limits, seed)
        return [case.name for case in rounds()["boundary"](bench)]

    assert names(1) == names(1)
    assert names(1) != names(2)
    assert {"seq-1-d64-full", "seq-4095-d64-causal", "seq-65x1-d64-full", "seq-65-d128-causal"} <= set(
        names(1)
    )
    assert len(names(1)) == len(set(names(1)))


@pytest.mark.parametrize("kind", ["largest", "tiny-scores", "mixed-signs", "one-huge-row", "all-equal"])
def test_extreme_scores_have_figures(order: Make, kind: str) -> None:
    judged = made(order(), "numerics", f"{kind}-causal")
    assert judged.outcome is Outcome.OK, judged
    assert all(figure.limit == 1e-3 for figure in judged.figures if figure.name.startswith(("o ", "lse ")))


def test_a_figure_that_is_no_number_is_within_no_limit() -> None:
    for floor in (False, True):
        judged = judge((Figure("rate", float("nan"), limit=1.0, floor=floor),))
        assert judged.outcome is Outcome.FAIL
    assert judge((Figure("rate", float("nan")),)).outcome is Outcome.OK  # reported only


def test_what_there_is_not_is_bad_usage(order: Make) -> None:
    with pytest.raises(UsageError, match="no kernel 'turbo'"):
        subject_of(order(kernel="turbo"))
    with pytest.raises(UsageError, match="no fault 'gremlin'"):
        planted(subject_of(order()), "gremlin")


@pytest.mark.parametrize(("arch", "kernel", "rectangular"), [
    ("sm_90", "flash_hopper", ()), ("sm_80", "flash_v2", (False, True)),
])  # fmt: skip
def test_a_round_has_the_shapes_that_the_kernel_takes(
    order: Make, monkeypatch: pytest.MonkeyPatch, arch: str, kernel: str,
    rectangular: tuple[bool, ...],
) -> None:  # fmt: skip
    """`auto` is a kernel for the load's shapes, and need not take every other."""
    pytest.importorskip("triton", reason="Triton is not installed")
    import soak_kernels
    from soak_kernels import members
    from soak_kernels.frame import shape_of

    def choose(*qkv: torch.Tensor, kernel: str) -> members.Choice:
        return members.choose(members.Card(arch, (3, 9)), shape_of(*qkv), dtype="float16", kernel=kernel)

    monkeypatch.setattr(soak_kernels, "choose", choose)
    found = subject_of(order(engine="interpreter", head_dim=128, dtype="float16"))
    assert (found.about.kernel, found.rectangular) == (kernel, rectangular)
    cases = rounds()["boundary"](Bench(found, order().limits, order().seed))
    assert any("x" in case.name.split("-")[1] for case in cases) == bool(rectangular)
