"""A stand-in for the card: launchers given an `EmulatedCard` compile their kernels for gfx906 and run the
machine code.

    card = EmulatedCard()
    o, lse = mi50_forward(q, k, v, causal=True, launch=card)     # tensors on the CPU
    assert not card.findings
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from soak_kernels.gfx906.build import Build, build, specialization
from soak_kernels.gfx906.emulator import Emulator, Execution
from soak_kernels.gfx906.findings import Finding
from soak_kernels.gfx906.parse import parse
from soak_kernels.launch import Call


def execute(
    emulator: Emulator,
    built: Build,
    call: Call,
    *,
    workgroups: Iterable[tuple[int, int, int]] | None = None,
    count_lds: bool = False,
) -> Execution:
    """Run a call, or only some workgroups of it, by an emulator of its build; results go into its tensors,
    which lie on the CPU. Options and errors as `Emulator.run`."""
    values = [call.arguments[name] for name in built.arguments]
    return emulator.run(
        [x.numpy() if isinstance(x, torch.Tensor) else x for x in values],
        grid=(call.n_programs, 1, 1), num_warps=built.num_warps, lds_bytes=built.lds_bytes,
        workgroups=workgroups, count_lds=count_lds,
    )  # fmt: skip


class EmulatedCard:
    """Runs calls one after the other. findings: of the calls since they were last cleared.

    alter(name of the kernel, assembly): what to run instead, to plant a fault. Builds are kept for as long as
    the card: one for each kernel, constants and specialization."""

    def __init__(self, *, alter: Callable[[str, str], str] | None = None) -> None:
        self.findings: list[Finding] = []
        self._alter = alter
        self._kept: dict[Any, tuple[Build, Emulator]] = {}

    def __call__(self, call: Call) -> None:
        """Compile, where that was not done before, and run. EmulationError where that cannot be done."""
        built, emulator = self._prepared(call)
        self.findings.extend(execute(emulator, built, call).findings)

    def _prepared(self, call: Call) -> tuple[Build, Emulator]:
        constants = tuple((name, repr(x)) for name, x in call.constants.items())
        key = (
            call.kernel.__name__,
            call.kernel.__module__,
            constants,
            repr(specialization(call)),
            call.options,
        )
        if key not in self._kept:
            self._kept[key] = _ready(build(call), self._alter, call.kernel.__name__)
        return self._kept[key]


def _ready(built: Build, alter: Callable[[str, str], str] | None, name: str) -> tuple[Build, Emulator]:
    """A build and its emulator, of assembly that `alter(name, text)` changed."""
    if alter is not None:
        text = alter(name, built.text)
        built = replace(built, text=text, program=parse(text))
    return built, Emulator(built.program)
