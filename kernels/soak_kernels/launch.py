"""How a kernel is started: on a card by Triton, or elsewhere by whoever stands in for one (the gfx906
emulator).

Launchers take the `Launch` to use as an argument, so what a test runs without a card is the launcher that a
card runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import triton


@dataclass(frozen=True)
class Options:
    """What the compiler is told besides the source."""

    num_warps: int
    num_stages: int = 1
    llvm_fn_attrs: str = ""  # "name=value": attributes of the LLVM function
    maxnreg: int | None = None  # registers a thread at most, NVIDIA only

    def as_keywords(self) -> dict[str, Any]:
        words: dict[str, Any] = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        if self.llvm_fn_attrs:
            words["llvm_fn_attrs"] = self.llvm_fn_attrs
        if self.maxnreg is not None:
            words["maxnreg"] = self.maxnreg
        return words


@dataclass(frozen=True)
class Call:
    """One launch. arguments: tensors and numbers by name; constants: constexprs by name; n_programs: the
    grid, along its first axis (the others of a CUDA grid end at 65,535)."""

    kernel: Any
    n_programs: int
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=lambda: Options(num_warps=4))


class Launch(Protocol):
    def __call__(self, call: Call, /) -> None: ...


def on_card(call: Call) -> None:
    """By Triton, on the current stream of the card where the tensors are (which need not be the current
    card). ValueError where they are on none, unless Triton interprets."""
    first = next(x for x in call.arguments.values() if isinstance(x, torch.Tensor))
    if first.is_cuda:
        if first.get_device() != torch.cuda.current_device():
            with torch.cuda.device_of(first):  # type: ignore[no-untyped-call]  # torch's
                _launch(call)
            return
    elif not triton.knobs.runtime.interpret:
        raise ValueError(
            f"q is on {first.device}; legal: a GPU, or the CPU with TRITON_INTERPRET=1 set before triton"
        )
    _launch(call)


def _launch(call: Call) -> None:
    call.kernel[(call.n_programs,)](**call.arguments, **call.constants, **call.options.as_keywords())
