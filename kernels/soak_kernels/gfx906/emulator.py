"""Runs workgroups of a compiled kernel as the card would, and watches what they do.

    program = parse(compiled.asm["amdgcn"])
    run = Emulator(program).run([q, k, v, o, scale, seq_len], grid=(3, 1, 1), num_warps=4, lds_bytes=…)
    assert not run.findings

Functional, not timed. Every wave of the launch that stands at the same instruction is advanced by the same
NumPy call. Waits are not modelled: loads arrive at once, so a missing s_waitcnt does not show (the compiler
places those). Scratch memory, atomics and sub-dword addressing (SDWA) are not known: a program that uses them
raises EmulationError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from soak_kernels.gfx906 import lds as lds_module
from soak_kernels.gfx906 import memory as memory_module
from soak_kernels.gfx906 import scalar, vector
from soak_kernels.gfx906.conflicts import Counter
from soak_kernels.gfx906.findings import Finding, Findings
from soak_kernels.gfx906.lds import Lds, narrowest
from soak_kernels.gfx906.machine import ALL, EXEC, LANES, N_SCALARS, EmulationError, Shared, Waves, join
from soak_kernels.gfx906.memory import Memory
from soak_kernels.gfx906.parse import Instruction, Program

LDS_LIMIT = 65_536  # bytes a workgroup may have
STEPS_MOST = 50_000_000  # instructions, of waves that go together, before a run is taken to be endless


@dataclass(frozen=True)
class LdsAccess:
    """What an LDS instruction took in the first workgroup: times executed (by a wave; a read2 counts twice),
    and the clocks of `conflicts.Cost`."""

    times: int
    clocks: int
    worst: int
    conflict_free: int


@dataclass(frozen=True)
class Execution:
    """What a run did. findings: forbidden accesses (the first few of each instruction), n_findings: all of
    them by kind; executed: waves that executed each instruction; lds: by instruction, empty unless it was
    asked for."""

    findings: tuple[Finding, ...]
    n_findings: Mapping[str, int]
    executed: tuple[int, ...]
    lds: Mapping[int, LdsAccess]


class Emulator:
    """A program made ready to run, as often as wanted."""

    def __init__(self, program: Program) -> None:
        """Raises EmulationError for an instruction that is not known."""
        if program.scratch_bytes:
            raise EmulationError(f"{program.name} has {program.scratch_bytes} bytes of scratch; legal: none")
        self.program = program
        self._steps = [
            _decode(instruction, number) for number, instruction in enumerate(program.instructions)
        ]

    def run(
        self,
        arguments: Sequence[np.ndarray[Any, Any] | int | float],
        *,
        grid: tuple[int, int, int],
        num_warps: int,
        lds_bytes: int,
        workgroups: Iterable[tuple[int, int, int]] | None = None,
        count_lds: bool = False,
        steps_most: int = STEPS_MOST,
    ) -> Execution:
        """Run a launch. Arrays are tensors in memory, contiguous; they hold the results afterwards.

        arguments: in the order of the kernel's signature, constants left out; workgroups: only these of the
        grid; count_lds: also the clocks that the first workgroup's LDS accesses take; steps_most:
        instructions, of waves that go together, after which the run is taken to be endless. Raises ValueError
        for a launch that cannot be, EmulationError for what no program may do."""
        if not 0 <= lds_bytes <= LDS_LIMIT:
            raise ValueError(f"lds_bytes is {lds_bytes}; legal values: 0 to {LDS_LIMIT}")
        program = self.program
        chosen = list(workgroups) if workgroups is not None else _all(grid)
        tensors = [x for x in arguments if isinstance(x, np.ndarray)]
        segment = np.zeros(-(-max(program.kernarg_bytes, 1) // 64) * 64, np.uint8)
        memory = Memory([*tensors, segment])
        _fill(segment, program, arguments, memory)
        memory.load(len(tensors), segment)
        shared = Shared(
            memory=memory,
            lds=Lds(len(chosen), num_warps, lds_bytes, narrowest(program.instructions)),
            findings=Findings(tuple(i.text for i in program.instructions)),
            counter=Counter() if count_lds else None,
        )
        executed = [0] * len(program.instructions)
        with np.errstate(all="ignore"):
            first = _start(program, chosen, num_warps, memory.address(len(tensors)), shared)
            self._all(first, executed, steps_most)
        memory.write_back()
        counted = shared.counter.accesses if shared.counter else {}
        return Execution(
            findings=shared.findings.kept,
            n_findings=dict(shared.findings.counts),
            executed=tuple(executed),
            lds={number: LdsAccess(*entry) for number, entry in counted.items()},
        )

    def _all(self, waves: Waves, executed: list[int], steps_most: int) -> None:
        """From the first instruction to the end of every wave, in at most `steps_most` steps.

        Barriers: waves wait until no wave of the launch can go on without one; then all pass. That is
        stricter than the card (it makes workgroups wait for each other) and changes nothing, since workgroups
        share no LDS."""
        ready, waiting = [waves], list[Waves]()
        while ready or waiting:
            if not ready:
                waves.shared.lds.barrier(np.unique(np.concatenate([group.workgroup for group in waiting])))
                ready, waiting = _joined(waiting), []
            stopped, apart, steps_most = self._advance(ready.pop(), executed, steps_most)
            ready.extend(apart)
            if stopped is not None:
                waiting.append(stopped)

    def _advance(
        self, w: Waves, executed: list[int], steps_most: int
    ) -> tuple[Waves | None, list[Waves], int]:
        """Until a barrier (the waves, past it), the end (None) or a branch that parts them (None, the
        parts); and how many steps are left."""
        steps, n = self._steps, w.n
        for left in range(steps_most - 1, -1, -1):
            pc = w.pc
            step = steps[pc]
            executed[pc] += n
            w.pc = pc + 1
            if step is not None:
                step(w)
                continue
            instruction = self.program.instructions[pc]
            if instruction.opcode == "s_barrier":
                return w, [], left
            if instruction.opcode == "s_endpgm":
                return None, [], left
            jump = scalar.CONDITIONS[instruction.opcode](w)
            target = self.program.labels[instruction.operands[0]]
            if bool(jump.all()):
                w.pc = target
            elif bool(jump.any()):
                there, here = w.take(jump), w.take(~jump)
                there.pc = target
                return None, [here, there], left
        raise EmulationError(
            f"{self.program.name} does not end within the limit of instructions (steps_most)"
        )


def _decode(instruction: Instruction, number: int) -> vector.Step | None:
    """The function of an instruction; None for one that changes where waves are."""
    opcode = instruction.opcode
    if opcode in ("s_barrier", "s_endpgm") or opcode in scalar.CONDITIONS:
        return None
    if opcode.startswith("s_load_"):
        return memory_module.scalar_load(instruction)
    if opcode.startswith("s_"):
        return scalar.decode(instruction)
    if opcode.startswith("ds_"):
        return lds_module.decode(instruction, number)
    if opcode.startswith(("buffer_", "global_")):
        return memory_module.decode(instruction, number)
    return vector.decode(instruction)


def _joined(waiting: list[Waves]) -> list[Waves]:
    by_pc: dict[int, list[Waves]] = {}
    for group in waiting:
        by_pc.setdefault(group.pc, []).append(group)
    return [join(groups) for groups in by_pc.values()]


def _all(grid: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    return [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]


def _start(
    program: Program, workgroups: list[tuple[int, int, int]], num_warps: int, segment: int, shared: Shared
) -> Waves:
    n = len(workgroups) * num_warps
    s = np.zeros((n, N_SCALARS), np.uint32)
    s.view(np.uint64)[:, program.kernarg_sgpr // 2] = segment
    s.view(np.uint64)[:, EXEC // 2] = ALL
    number = np.repeat(np.arange(len(workgroups)), num_warps)
    slot = np.tile(np.arange(num_warps), len(workgroups))
    for axis, register in enumerate(program.group_sgprs):
        if register is not None:
            s[:, register] = np.array([group[axis] for group in workgroups], np.uint32)[number]
    v = np.full((max(program.vgprs, 1), n, LANES), 0xFFFF_FFFF, np.uint32)
    v[0] = (slot[:, None] * LANES + np.arange(LANES)).astype(np.uint32)
    return Waves(v, s, np.zeros(n, np.bool_), number, slot, shared)


def _fill(segment: Any, program: Program, arguments: Sequence[Any], memory: Memory) -> None:
    """Arguments into their segment; what follows them (Triton's own pointers) stays null."""
    if len(arguments) > len(program.arguments):
        raise ValueError(
            f"arguments are {len(arguments)}; legal: up to {len(program.arguments)} for {program.name}"
        )
    tensor = 0
    for value, slot in zip(arguments, program.arguments, strict=False):
        if isinstance(value, np.ndarray) != slot.pointer:
            legal = "a tensor" if slot.pointer else "a number"
            raise ValueError(f"argument at offset {slot.offset} of {program.name} is {value}; legal: {legal}")
        if isinstance(value, np.ndarray):
            packed = struct.pack("<Q", memory.address(tensor))
            tensor += 1
        elif isinstance(value, float):
            packed = struct.pack("<f" if slot.size == 4 else "<d", value)
        else:
            packed = struct.pack("<i" if slot.size == 4 else "<q", value)
        segment[slot.offset : slot.offset + slot.size] = np.frombuffer(packed, np.uint8)
