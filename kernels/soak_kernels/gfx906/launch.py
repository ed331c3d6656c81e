"""A stand-in for the card: launchers given an `EmulatedCard` compile their kernels for gfx906 and run the
machine code.

    card = EmulatedCard()
    o, lse = mi50_forward(q, k, v, causal=True, launch=card)     # tensors on the CPU
    assert not card.findings
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from soak_kernels.gfx906.build import Build, build
from soak_kernels.gfx906.emulator import Emulator, Execution
from soak_kernels.gfx906.findings import Finding
from soak_kernels.gfx906.parse import parse
from soak_kernels.launch import Call


class EmulatedCard:
    """Runs calls one after the other; keeps what they found. `alter` changes the assembly before it runs (to
    plant a fault)."""

    def __init__(self, *, count_lds: bool = False, alter: Callable[[str, str], str] | None = None) -> None:
        self.findings: list[Finding] = []
        self.runs: list[tuple[Call, Build, Execution]] = []
        self._count_lds = count_lds
        self._alter = alter
        self._kept: dict[Any, tuple[Build, Emulator]] = {}

    def __call__(self, call: Call) -> None:
        """Compile (once for each kernel, constants and types) and run. EmulationError where that cannot be
        done."""
        built, emulator = self._prepared(call)
        values = [call.arguments[name] for name in built.arguments]
        run = emulator.run(
            [x.numpy() if isinstance(x, torch.Tensor) else x for x in values],
            grid=(call.n_programs, 1, 1), num_warps=built.num_warps, lds_bytes=built.lds_bytes,
            count_lds=self._count_lds,
        )  # fmt: skip
        self.findings.extend(run.findings)
        self.runs.append((call, built, run))

    def _prepared(self, call: Call) -> tuple[Build, Emulator]:
        types = tuple((name, str(getattr(x, "dtype", type(x)))) for name, x in call.arguments.items())
        key = (id(call.kernel), types, tuple((n, repr(x)) for n, x in call.constants.items()), call.options)
        if key not in self._kept:
            self._kept[key] = _ready(build(call), self._alter, getattr(call.kernel, "__name__", ""))
        return self._kept[key]


def _ready(built: Build, alter: Callable[[str, str], str] | None, name: str) -> tuple[Build, Emulator]:
    """A build and its emulator, of assembly that `alter(name, text)` changed."""
    if alter is not None:
        text = alter(name, built.text)
        built = replace(built, text=text, program=parse(text))
    return built, Emulator(built.program)
