"""How long a trip of a main loop takes on one compute unit, with its waits and barriers; a stated model,
never held against a card.

Each wave of one workgroup issues in order, an instruction every 4 clocks at most (16 and 8 for the slow
vector instructions of model.py); it has its SIMD to itself. The LDS serves one access after the other, each
for the clocks that were counted for it, and answers `lds` clocks later; memory takes 64 bytes a clock and
answers `memory` clocks later. s_waitcnt and s_barrier wait as they do on the card.

Two sets of latencies, since none was measured: HOPEFUL, CAREFUL. It says which of two builds hides its loads
better; instruction fetch, cache misses, other workgroups and power are not in it.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from soak_kernels.gfx906.machine import LANES
from soak_kernels.gfx906.model import clocks_of
from soak_kernels.gfx906.parse import Instruction

ISSUE = 4  # clocks between two instructions of a wave
MEMORY_BYTES_A_CLOCK = 64
TRIPS, FIRST_TRIPS = 6, 2  # simulated; of these, not counted
_BYTES = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16}  # less is as slow as a dword


@dataclass(frozen=True)
class Latencies:
    """Clocks: from the last data of an LDS or memory access to its arrival; of a barrier."""

    lds: int
    memory: int
    barrier: int


HOPEFUL = Latencies(lds=100, memory=500, barrier=20)
CAREFUL = Latencies(lds=128, memory=800, barrier=40)


@dataclass
class _Wave:
    at: int = 0  # the next instruction, counted over all trips
    lds: list[float] = field(default_factory=list)  # when what is under way arrives, in order
    memory: list[float] = field(default_factory=list)


def clocks_a_trip(
    body: Sequence[Instruction], lds_clocks: Mapping[int, float], num_warps: int, latencies: Latencies
) -> float:
    """Clocks of a trip in the steady state. body: a loop, its branch back last; lds_clocks: of one execution
    of each LDS instruction, by its place in body; num_warps: at most one a SIMD."""
    waves = [_Wave() for _ in range(num_warps)]
    queue = [(0.0, number) for number in range(num_warps)]  # when each wave goes on
    at_barrier: list[tuple[float, int]] = []
    lds_free = memory_free = 0.0
    ends: list[float] = []
    while queue:
        now, number = heapq.heappop(queue)
        wave = waves[number]
        place = wave.at % len(body)
        instruction = body[place]
        opcode = instruction.opcode
        if place == 0 and wave.at:
            ends.append(now)
            if wave.at == TRIPS * len(body):
                continue
        wave.at += 1
        then = now + ISSUE
        if opcode.startswith("v_"):
            then = now + clocks_of(instruction)
        elif opcode.startswith("ds_"):
            lds_free = max(now, lds_free) + lds_clocks[place]
            wave.lds.append(lds_free + latencies.lds)
        elif opcode.startswith(("buffer_", "global_")):
            memory_free = (
                max(now, memory_free) + _BYTES.get(opcode.split("_")[2], 4) * LANES / MEMORY_BYTES_A_CLOCK
            )
            wave.memory.append(memory_free + latencies.memory)
        elif opcode == "s_waitcnt":
            then = _waited(now, wave, instruction)
        elif opcode == "s_barrier":
            at_barrier.append((now, number))
            if len(at_barrier) == num_warps:
                passed = max(when for when, _ in at_barrier) + latencies.barrier
                for _, other in at_barrier:
                    heapq.heappush(queue, (passed, other))
                at_barrier.clear()
            continue
        elif opcode == "s_nop":
            then = now + ISSUE * (int(instruction.operands[0], 0) + 1)
        heapq.heappush(queue, (then, number))
    ends.sort()  # trip by trip: the waves end one together, but for what lies behind its last barrier
    return (ends[-1] - ends[FIRST_TRIPS * num_warps - 1]) / (TRIPS - FIRST_TRIPS)


def _waited(now: float, wave: _Wave, instruction: Instruction) -> float:
    """When a wave goes on that waits until no more than so many accesses are under way; waiting is free."""
    for pending, counter in ((wave.memory, "vmcnt"), (wave.lds, "lgkmcnt")):
        found = re.search(rf"{counter}\((\d+)\)", instruction.text)
        if found:
            arrived = len(pending) - int(found.group(1))
            if arrived > 0:
                now = max(now, max(pending[:arrived]))
                del pending[:arrived]
    return now
