"""What flash_hopper refuses, without its card: what `auto` sends it is judged in test_members.py."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from soak_kernels.launch import Call

flash_hopper = pytest.importorskip("soak_kernels.flash_hopper", reason="Triton is too old for it")


def empty(*shape: int, device: str = "cpu") -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16, device=device)


@pytest.mark.parametrize(
    ("q", "k", "words"),
    [
        (empty(1, 2, 130, 64), empty(1, 2, 70, 64), "k has 70 rows and q 130; legal: as many"),
        (empty(1, 2, 130, 96), empty(1, 2, 130, 96), "q has head_dim 96; legal values: 64, 128"),
        (
            empty(2**19, 32, 7, 64, device="meta"),
            empty(2**19, 32, 7, 64, device="meta"),
            f"q has {2**31} padded rows in all; legal: fewer than {2**31}",
        ),
    ],
)
def test_what_it_cannot_reach_is_refused_before_anything_is_launched(
    q: torch.Tensor, k: torch.Tensor, words: str
) -> None:
    calls: list[Call] = []
    with pytest.raises(ValueError, match=f"^{words}$"):
        flash_hopper.forward(q, k, k, causal=False, launch=calls.append)
    assert calls == []
