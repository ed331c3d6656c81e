"""Tensors inside poisoned memory: what is read around them shows in the result, what is written there shows
in `written_outside`, and what is left unwritten inside is NaN.

The poison is bytes of 255: NaN in every floating-point type, -1 in every integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

GUARD_BYTES = 1 << 16  # on either side; more than a tile of 128 rows reaches
POISON = 0xFF
BUFFERS_MOST = 1024

_EMPTY = (
    "aten::empty",
    "aten::empty_like",
    "aten::new_empty",
    "aten::empty_strided",
    "aten::new_empty_strided",
)
_FILLED = ("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::full", "aten::clone")


@dataclass(frozen=True)
class _Buffer:
    whole: torch.Tensor  # uint8
    n_bytes: int  # of the tensor between the guards
    name: str


class Guarded:
    """Hands out tensors between guards; a context in which everything that is allocated is so too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[_Buffer] = []

    def of(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """A contiguous copy of x between guards."""
        return self._empty(tuple(x.shape), x.dtype, name).copy_(x)

    def allocations(self) -> TorchDispatchMode:
        """A context: what torch allocates for whoever runs in it lies between guards. What an operator
        allocates inside itself is its own."""
        return _Allocations(self._replaced)

    def written_outside(self) -> list[str]:
        """The names of tensors around which a byte was written, with how many and where the first is."""
        found = []
        for buffer in self._buffers:
            end = GUARD_BYTES + buffer.n_bytes
            for where, guard in (("before", buffer.whole[:GUARD_BYTES]), ("behind", buffer.whole[end:])):
                wrong = (guard != POISON).nonzero()
                if wrong.numel():
                    first = int(wrong[-1] if where == "before" else wrong[0])
                    away = GUARD_BYTES - first if where == "before" else first
                    found.append(f"{wrong.numel()} bytes {where} {buffer.name}, the nearest {away} away")
        return found

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype, name: str) -> torch.Tensor:
        assert len(self._buffers) < BUFFERS_MOST, "a case allocates without end"
        n_bytes = torch.Size(shape).numel() * dtype.itemsize
        whole = torch.full((n_bytes + 2 * GUARD_BYTES,), POISON, dtype=torch.uint8, device=self._device)
        self._buffers.append(_Buffer(whole, n_bytes, name))
        return whole[GUARD_BYTES : GUARD_BYTES + n_bytes].view(dtype).view(shape)

    def _replaced(self, operator: str, made: torch.Tensor) -> torch.Tensor:
        name = f"tensor {len(self._buffers)} {list(made.shape)}"
        if made.device != self._device or not made.is_contiguous() or made.numel() == 0:
            return made
        fresh = self._empty(tuple(made.shape), made.dtype, name)
        return fresh if operator in _EMPTY else fresh.copy_(made)


class _Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    def __init__(self, replaced: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._replaced = replaced

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        operator = func._schema.name
        return self._replaced(operator, made) if operator in _EMPTY or operator in _FILLED else made
