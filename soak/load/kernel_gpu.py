"""Which attention runs on the card: the seam between the load and `soak_kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from soak_kernels.functional import card_of, proven
from soak_kernels.members import MEMBERS, Card, operation
from soak_kernels.shape import Shape

from soak.load.engine import LoadError
from soak.load.gradient import Outputs
from soak.load.recipe import Inputs

NAMES = tuple(name for name, member in MEMBERS.items() if member.no_load is None)
"""The kernels that can carry a load: all that take their scratch beforehand, and no more than is planned."""


class Kernel(Protocol):
    name: str
    reason: str
    versions: dict[str, str]

    def variants(self, seq_lens: Sequence[int]) -> list[tuple[int, bool]]:
        """One (seq_len, causal) for every machine code that these lengths need."""

    def prepare(self, inputs: Inputs, causal: bool) -> Any:
        """Configuration and scratch for inputs of this shape; allocates."""

    def run(self, prepared: Any, inputs: Inputs, outputs: Outputs, causal: bool) -> None:
        """Launches forward and backward on the current stream; allocates nothing."""


@dataclass(frozen=True)
class _Load:
    """What is asked of the kernel, but for the lengths."""

    head_dim: int
    dtype: str

    def shape(self, seq_len: int) -> Shape:
        return Shape(1, 1, 1, seq_len, seq_len, self.head_dim)


class TritonKernel:
    """A member of `soak_kernels`: deterministic, by name or as `auto` chooses for the card."""

    def __init__(
        self, device: torch.device, *, head_dim: int, dtype: str, seq_len_max: int, kernel: str = "auto"
    ) -> None:
        """With `auto`, runs the kernels written for this very card on it first and takes the first that is
        right. Raises LoadError for a kernel that cannot do this load here."""
        import triton

        self._card: Card = card_of(device)
        self._load = _Load(head_dim, dtype)
        self.versions = {"triton": str(triton.__version__)}
        shape = self._load.shape(seq_len_max)
        try:
            if kernel not in ("auto", *NAMES):
                why = MEMBERS[kernel].no_load if kernel in MEMBERS else "there is none of that name"
                raise ValueError(f"{kernel!r} cannot carry a load, since {why}; use auto, {', '.join(NAMES)}")
            # The load fills the card whatever its batch: no splitting of keys.
            full = Card(self._card.arch, self._card.triton)
            choice = proven(full, shape, device, dtype=dtype, kernel=kernel)
            self._used = operation(choice.kernel)
            reasons = dict.fromkeys(self._plan(seq_len_max, False).reasons)
        except ValueError as error:
            raise LoadError("compile_error", f"no kernel for this load: {error}") from error
        self.name = choice.kernel
        self.reason = f"{choice.why} ({'; '.join(reasons)})"

    def variants(self, seq_lens: Sequence[int]) -> list[tuple[int, bool]]:
        """seq_len itself is no constant of the machine code: only the configuration and the mask are."""
        found = {(self._plan(s, causal), causal): s for s in reversed(seq_lens) for causal in (False, True)}
        return sorted((seq_len, causal) for (_, causal), seq_len in found.items())

    def prepare(self, inputs: Inputs, causal: bool) -> Any:
        """The scratch, with its configuration."""
        config = self._plan(inputs.q.shape[2], causal)
        return self._used.allocate(inputs.q, inputs.k, config)

    def run(self, prepared: Any, inputs: Inputs, outputs: Outputs, causal: bool) -> None:
        q, k, v, do = inputs
        o, lse, dq, dk, dv = outputs
        self._used.forward(q, k, v, causal=causal, out=(o, lse), workspace=prepared)
        self._used.backward(q, k, v, o, lse, do, causal=causal, out=(dq, dk, dv), workspace=prepared)

    def _plan(self, seq_len: int, causal: bool) -> Any:
        return self._used.plan(
            self._card.arch, self._load.shape(seq_len), causal=causal, dtype=self._load.dtype
        )
