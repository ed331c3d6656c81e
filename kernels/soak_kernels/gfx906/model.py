"""What the main loop of a kernel can reach on an MI50 at most, from its instructions; a stated model, not a
measurement.

Per workgroup and trip of the loop:
    VALU clocks   4 a wave64 instruction on one of 4 SIMDs; 16 for exp, log, rcp, sqrt and 32-bit integer
                  multiplication, 8 for float64
    LDS clocks    128 bytes a clock and compute unit: 8 for a 16-byte access of a wave, 4 for 8 bytes, 2 for
                  less, plus what bank conflicts add, counted by execution (conflicts.py)
    bound         operations of the tile / max(VALU clocks, LDS clocks) * 60 compute units * 1.725 GHz

It ignores memory, latencies, waits, barriers, issue and power: a real card is slower. The peak is 26.5
TFLOP/s: one v_dot2_f32_f16 (4 operations a lane) a lane and clock on 60 * 64 lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from soak_kernels.gfx906.emulator import LDS_LIMIT, LdsAccess
from soak_kernels.gfx906.machine import LANES
from soak_kernels.gfx906.parse import Instruction, Loop, Program

COMPUTE_UNITS = 60
CLOCK_HZ = 1.725e9
SIMDS = 4
OPERATIONS_OF_DOT2 = 4  # a lane: two products, two sums
PEAK_TFLOPS = COMPUTE_UNITS * SIMDS * 16 * OPERATIONS_OF_DOT2 * CLOCK_HZ / 1e12
REGISTERS = 256  # vector registers of a lane, given out by fours
WAVES_MOST = 10  # a SIMD
ASSUMPTIONS = (
    "60 CU at 1.725 GHz; VALU 4 clocks a wave instruction (16 transcendental and 32-bit multiplication, 8 "
    "float64) on 4 SIMDs; LDS 128 B a clock and CU plus bank conflicts counted by execution; no memory, "
    "latency, wait, barrier, issue or power limit; never measured on a card"
)

_QUARTER_RATE = (
    "v_exp_f32", "v_log_f32", "v_rcp_f32", "v_rcp_iflag_f32", "v_rsq_f32", "v_sqrt_f32",
    "v_mul_lo_u32", "v_mul_hi_u32", "v_mul_hi_i32", "v_mad_u64_u32", "v_mad_i64_i32",
)  # fmt: skip


@dataclass(frozen=True)
class LoopCounts:
    """A loop as its text has it. dot2, barriers, branches: of one wave and trip; branches: all but the loop's
    own, each a load under a mask or lanes that go their own way; dot2_share: of the vector instructions;
    valu_clocks: of one workgroup and trip on a compute unit; operations: those of the dot products of one
    workgroup and trip."""

    dot2: int
    dot2_share: float
    barriers: int
    branches: int
    valu_clocks: float
    operations: int


@dataclass(frozen=True)
class LdsClocks:
    """What an LDS instruction took: with conflicts by adjacent lanes, by the worst known grouping of lanes,
    and had there been none."""

    clocks: float
    worst: float
    conflict_free: float


def loop_counts(program: Program, loop: Loop, num_warps: int) -> LoopCounts:
    """What the text of a loop says."""
    body = program.instructions[loop.first : loop.last + 1]
    vector = [i for i in body if i.opcode.startswith("v_")]
    dot2 = sum(i.opcode == "v_dot2_f32_f16" for i in vector)
    return LoopCounts(
        dot2=dot2,
        dot2_share=dot2 / len(vector),
        barriers=sum(i.opcode == "s_barrier" for i in body),
        branches=sum(i.opcode.startswith(("s_cbranch", "s_branch")) for i in body) - 1,
        valu_clocks=sum(clocks_of(i) for i in vector) * num_warps / SIMDS,
        operations=dot2 * OPERATIONS_OF_DOT2 * LANES * num_warps,
    )


def lds_clocks(program: Program, loop: Loop, lds: Mapping[int, LdsAccess]) -> dict[int, LdsClocks]:
    """What each LDS instruction of a loop took in a run that counted them (`count_lds`): of one wave and
    execution, by its place in the loop. ValueError where one of them was not executed in that run."""
    found = {}
    for n in range(loop.first, loop.last + 1):
        opcode = program.instructions[n].opcode
        if not opcode.startswith("ds_"):
            continue
        if n not in lds:
            raise ValueError(f"the main loop of {program.name} was not executed; legal: a run that enters it")
        executions = lds[n].times / (2 if "read2" in opcode or "write2" in opcode else 1)  # counted as two
        found[n - loop.first] = LdsClocks(
            lds[n].clocks / executions, lds[n].worst / executions, lds[n].conflict_free / executions
        )
    return found


def read_ratios(program: Program, lds: Mapping[int, LdsAccess]) -> tuple[float, float]:
    """The largest ratio of an LDS read's clocks to its conflict-free ones, of all reads that were executed:
    by adjacent lanes, and by the worst known grouping."""
    reads = [a for n, a in lds.items() if program.instructions[n].opcode.startswith("ds_read")]
    return (
        max((a.clocks / a.conflict_free for a in reads), default=1.0),
        max((a.worst / a.conflict_free for a in reads), default=1.0),
    )


def clocks_of(instruction: Instruction) -> int:
    """Clocks that a vector instruction holds its SIMD."""
    if instruction.opcode in _QUARTER_RATE:
        return 16
    return 8 if "f64" in instruction.opcode else 4


def tflops(operations: float, clocks: float) -> float:
    """TFLOP/s of the card: operations and clocks of one workgroup and trip."""
    return operations / clocks * COMPUTE_UNITS * CLOCK_HZ / 1e12


def waves_per_simd(vgprs: int, lds_bytes: int, num_warps: int) -> float:
    """Waves that fit a SIMD, by registers, LDS and the hardware's limit; less than 1 where SIMDs stay
    empty."""
    by_registers = min(WAVES_MOST, REGISTERS // max(4, -(-vgprs // 4) * 4)) * SIMDS // num_warps
    by_lds = LDS_LIMIT // max(lds_bytes, 1)
    return min(by_registers, by_lds, WAVES_MOST * SIMDS // num_warps) * num_warps / SIMDS
