"""Which attention runs on the card: the seam between the load and `soak_kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from soak_kernels.attention import allocate_workspace, attention_backward, attention_forward
from soak_kernels.device import architecture
from soak_kernels.tuning import plan

from soak.load.engine import LoadError
from soak.load.gradient import Outputs
from soak.load.recipe import Inputs

NAME = "soak.triton"


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
class _Prepared:
    config: Any
    workspace: Any


class TritonKernel:
    """`soak_kernels.attention`: deterministic, for any card that Triton compiles for."""

    name = NAME

    def __init__(self, device: torch.device, *, head_dim: int, dtype: str, seq_len_max: int) -> None:
        """Raises LoadError for a shape or type that no kernel has."""
        import triton

        self._arch = architecture(device)
        self._head_dim, self._dtype = head_dim, dtype
        self.versions = {"triton": str(triton.__version__)}
        try:
            reasons = dict.fromkeys(self._plan(seq_len_max, False).reasons)
        except ValueError as error:
            raise LoadError("compile_error", f"{NAME} has no kernel for this load: {error}") from error
        self.reason = f"on {self._arch}: {'; '.join(reasons)}"

    def variants(self, seq_lens: Sequence[int]) -> list[tuple[int, bool]]:
        """seq_len itself is no constant of the machine code: only the configuration and the mask are."""
        found = {(self._plan(s, causal), causal): s for s in reversed(seq_lens) for causal in (False, True)}
        return sorted((seq_len, causal) for (_, causal), seq_len in found.items())

    def prepare(self, inputs: Inputs, causal: bool) -> _Prepared:
        config = self._plan(inputs.q.shape[2], causal)
        return _Prepared(config, allocate_workspace(inputs.q, config))

    def run(self, prepared: _Prepared, inputs: Inputs, outputs: Outputs, causal: bool) -> None:
        q, k, v, do = inputs
        o, lse, dq, dk, dv = outputs
        config, workspace = prepared.config, prepared.workspace
        attention_forward(q, k, v, causal=causal, config=config, out=(o, lse), workspace=workspace)
        attention_backward(
            q, k, v, o, lse, do, causal=causal, config=config, out=(dq, dk, dv), workspace=workspace
        )

    def _plan(self, seq_len: int, causal: bool) -> Any:
        return plan(self._arch, head_dim=self._head_dim, seq_len=seq_len, causal=causal, dtype=self._dtype)
