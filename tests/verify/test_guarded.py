"""Poisoned memory around tensors: what is given, and what somebody else allocates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from soak.verify.guarded import GUARD_BYTES, Guarded

CPU = torch.device("cpu")


class Doubles(torch.autograd.Function):
    """2 x, which writes `at` elements from the beginning of its own output too: 0 is inside."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, at: int) -> torch.Tensor:
        del ctx
        o = torch.empty_like(x)
        o.copy_(2 * x)
        o.as_strided((1,), (1,), o.storage_offset() + at).fill_(1.0)
        return o

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor) -> tuple[torch.Tensor, None]:
        del ctx
        return 2 * do, None


@pytest.mark.parametrize(
    ("at", "words"),
    [(0, None), (-1, "4 bytes before"), (30, "4 bytes behind"), (31, "the nearest 4 away")],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_a_write_outside_of_what_was_allocated_is_seen(
    at: int, words: str | None, dtype: torch.dtype
) -> None:
    guarded = Guarded(CPU)
    x = guarded.of(torch.ones(3, 10, dtype=dtype), "x")
    with guarded.allocations():
        Doubles.apply(x, at)  # type: ignore[no-untyped-call]  # torch's
    found = guarded.written_outside()
    if words is None:
        assert found == []
    else:
        (told,) = found
        size = dtype.itemsize
        assert words.replace("4 ", f"{size} ") in told
        assert "[3, 10]" in told


def test_a_read_outside_is_not_a_number() -> None:
    x = Guarded(CPU).of(torch.ones(4), "x")
    assert x.as_strided((6,), (1,), x.storage_offset() - 1).isnan().tolist() == [True, *[False] * 4, True]


def test_what_is_not_written_inside_is_not_a_number() -> None:
    with Guarded(CPU).allocations():
        made = (torch.empty(5), torch.zeros(2).new_empty(5), torch.empty_like(torch.ones(5)))
        zeros = torch.zeros(5)
        copy = torch.ones(5, dtype=torch.float16).clone()
    assert all(bool(x.isnan().all()) for x in made)
    assert zeros.tolist() == [0.0] * 5
    assert copy.tolist() == [1.0] * 5
    assert torch.empty(5).untyped_storage().nbytes() < GUARD_BYTES  # outside of the context all is as ever


def test_an_element_of_poison_is_whole() -> None:
    """A write of one byte into the guard is seen."""
    guarded = Guarded(CPU)
    x = guarded.of(torch.ones(8), "x")
    bytes_ = x.view(torch.uint8)
    bytes_.as_strided((1,), (1,), bytes_.storage_offset() - 1).fill_(0)
    assert guarded.written_outside() == ["1 bytes before x, the nearest 1 away"]
