"""Bits: what is different, where, and what the golden digest sees."""

from __future__ import annotations

import pytest
import torch
from soak_kernels.digest import digest_weights

from soak.core.protocol import Shape
from soak.load.engine_cpu import attention, attention_of_copies
from soak.load.gradient import Outputs
from soak.load.integrity import difference, flip_bit_in_place, golden_name, replay_says, same_bits
from soak.load.recipe import Inputs, draw_inputs
from soak.load.rotation_cpu import RotationCpu, Unit, one_copy


def flip_bit(tensor: torch.Tensor, row: int, column: int, bit: int) -> torch.Tensor:
    """A copy with one bit flipped."""
    flipped = tensor.clone()
    flip_bit_in_place(flipped, row, column, bit)
    return flipped


@pytest.fixture
def tensor() -> torch.Tensor:
    return torch.randn(150, 32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_flipped_bit_is_found_where_it_is(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    golden = tensor.to(dtype)
    top = 8 * golden.element_size() - 2
    for row, column, bit in ((0, 0, 0), (149, 31, top), (70, 3, 9)):
        found = difference(golden, flip_bit(golden, row, column, bit))
        assert found is not None
        assert (found.n_bits, found.n_elements, found.first) == (1, 1, (row, column))
        assert found.rows == ((row, row + 1),)
        assert found.first_xor == 1 << bit


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_a_flipped_sign_is_one_bit(tensor: torch.Tensor, dtype: torch.dtype) -> None:
    golden = tensor.to(dtype)
    got = golden.clone()
    got[3, 4] = -got[3, 4]
    found = difference(golden, got)
    assert found is not None
    assert (found.n_bits, found.first) == (1, (3, 4))
    assert found.first_xor == 1 << (8 * golden.element_size() - 1)


def test_rows_become_ranges(tensor: torch.Tensor) -> None:
    got = tensor.clone()
    got[10:13] += 1.0
    got[140, 5] = -got[140, 5]
    found = difference(tensor, got)
    assert found is not None
    assert found.rows == ((10, 13), (140, 141))
    assert found.n_elements == 3 * 32 + 1


def test_the_sign_of_zero_and_a_nan_are_bits_too() -> None:
    zero, nan = torch.zeros(2, 1), torch.full((2, 1), float("nan"))
    assert difference(zero, -zero) is not None
    assert difference(nan, nan.clone()) is None
    assert not same_bits(zero, -zero)


def test_a_replay_classifies(tensor: torch.Tensor) -> None:
    wrong, other = flip_bit(tensor, 1, 1, 1), flip_bit(tensor, 2, 2, 2)
    assert replay_says(tensor, wrong, tensor.clone()) == "transient"
    assert replay_says(tensor, wrong, wrong.clone()) == "repeatable"
    assert replay_says(tensor, wrong, other) == "unstable"


def test_the_golden_name_follows_every_digest() -> None:
    digests = [torch.tensor([[1, 2]]), torch.tensor([[3]])]
    assert golden_name(digests) == golden_name([each.clone() for each in digests])
    assert golden_name(digests) != golden_name([digests[0], torch.tensor([[4]])])
    assert len(golden_name(digests)) == 32


COPIES = 3


@pytest.fixture
def rotation() -> RotationCpu:
    shape = Shape(index=0, seq_len=48, causal=True, seed=3)
    weights = digest_weights(48, 32, "cpu")
    inputs = draw_inputs(3, batch=1, heads=2, seq_len=48, head_dim=32)
    return RotationCpu(shape, inputs, heads=2, weights=weights, copies=COPIES)


def one(rotation: RotationCpu, head: int) -> Outputs:
    return attention(Inputs(*(t[:, head : head + 1] for t in rotation.inputs)), rotation.shape.causal)


def compute(rotation: RotationCpu, head: int) -> Outputs:
    return Outputs(*(torch.stack([each] * COPIES) for each in one(rotation, head)))


def test_without_a_step_nothing_is_proved(rotation: RotationCpu) -> None:
    """A18 (i): no iterations are no comparisons."""
    tally = rotation.tally()
    assert (tally.n_steps, tally.n_due, tally.n_compared, tally.golden) == (0, 0, 0, "")
    assert rotation.carries_golden(0, one(rotation, 0)) is None


def test_the_first_step_is_golden_and_later_ones_are_compared(rotation: RotationCpu) -> None:
    for _ in range(6):
        unit = rotation.next_unit(now_boot_ms=5)
        assert rotation.settle(unit, compute(rotation, unit.head)) is None
        rotation.finish(unit, wrong=False)
    tally = rotation.tally()
    assert (tally.n_steps, tally.n_due, tally.n_compared, tally.mismatches) == (3, 2, 2, 0)
    assert len(tally.golden) == 32
    assert rotation.carries_golden(1, one(rotation, 1)) is True
    assert rotation.in_step_since() is None


def test_more_lanes_than_heads_compare_no_step_that_made_a_golden_output(rotation: RotationCpu) -> None:
    units = [rotation.next_unit(now_boot_ms=5) for _ in range(4)]
    assert units == [Unit(0, 0), Unit(0, 1), Unit(1, 0), Unit(1, 1)]
    for unit in (units[2], units[1], units[0], units[3]):  # lanes finish in any order
        assert rotation.settle(unit, compute(rotation, unit.head)) is None
        rotation.finish(unit, wrong=False)
    assert (rotation.tally().n_steps, rotation.tally().n_due) == (2, 0)


@pytest.mark.parametrize("copy", range(COPIES))
def test_a_wrong_output_gives_the_golden_one_it_differs_from(rotation: RotationCpu, copy: int) -> None:
    right = compute(rotation, 0)
    assert rotation.settle(rotation.next_unit(5), right) is None
    wrong = right._replace(dk=right.dk.clone())
    flip_bit_in_place(wrong.dk[copy], 47, 31, 0)
    golden = rotation.settle(Unit(1, 0), wrong)
    assert golden is not None
    assert difference(golden.dk[copy], wrong.dk[copy]) is not None
    assert rotation.carries_golden(0, one_copy(wrong, copy)) is False
    assert rotation.golden_intact(0, copy) is True
    golden.dk[copy][0, 0] += 1.0  # the golden copy in memory went bad
    assert rotation.golden_intact(0, copy) is False


@pytest.mark.parametrize("copy", range(1, COPIES))
def test_the_copies_of_the_first_step_are_held_against_its_first(rotation: RotationCpu, copy: int) -> None:
    outputs = compute(rotation, 0)
    flip_bit_in_place(outputs.o[copy], 3, 4, 5)
    golden = rotation.settle(rotation.next_unit(5), outputs)
    assert golden is not None
    assert torch.equal(golden.o[copy], outputs.o[0])


def test_copies_in_one_call_give_the_bits_of_one(rotation: RotationCpu) -> None:
    inputs = Inputs(*(t[:, :1] for t in rotation.inputs))
    many = attention_of_copies(inputs, True, COPIES)
    for name, alone in one(rotation, 0)._asdict().items():
        assert all(torch.equal(alone, copy) for copy in getattr(many, name))
