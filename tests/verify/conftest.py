"""What is verified in these tests: the CPU load's kernel, whole or with a fault planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from soak.core.protocol import Limits
from soak.verify.messages import Order

LIMITS = Limits(required=frozenset({"gradient"}))
SEED = 20261130


@pytest.fixture
def order() -> Callable[..., Order]:
    """An order for the CPU load's kernel, with changes."""

    def make(**changes: Any) -> Order:
        given: dict[str, Any] = {
            "gpu": "cpu",
            "engine": "cpu",
            "kernel": "auto",
            "head_dim": 64,
            "dtype": "float32",
            "limits": LIMITS,
            "seed": SEED,
        }
        return Order(**given | changes)

    return make


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the child."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
