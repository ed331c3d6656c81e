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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from soak_kernels.gfx906.emulator import LDS_LIMIT, LdsAccess
from soak_kernels.gfx906.parse import Instruction, Loop, Program

COMPUTE_UNITS = 60
CLOCK_HZ = 1.725e9
SIMDS = 4
PEAK_TFLOPS = COMPUTE_UNITS * SIMDS * 16 * 4 * CLOCK_HZ / 1e12
REGISTERS = 256  # vector registers of a lane, given out by fours
WAVES_MOST = 10  # a SIMD
ASSUMPTIONS = (
    "60 CU at 1.725 GHz; VALU 4 clocks a wave instruction (16 transcendental and 32-bit multiplication, 8 "
    "float64) on 4 SIMDs; LDS 128 B a clock and CU plus bank conflicts counted by execution; no memory, "
    "latency, wait, barrier, issue or power limit; never measured on a card"
)

_QUARTER_RATE = (
    "v_exp_f32", "v_log_f32", "v_rcp_f32", "v_rcp_iflag_f32", "v_rsq_f32", "v_sqrt_f32", "v_mul_lo_u32",
    "v_mul_hi_u32",
    "v_mul_hi_i32", "v_mad_u64_u32", "v_mad_i64_i32",
)  # fmt: skip


@dataclass(frozen=True)
class MainLoop:
    """A main loop in numbers. Counts are of one wave and trip; clocks of one workgroup and trip on a compute
    unit.

    dot2_share: of the vector instructions; lds_clocks: with conflicts by adjacent lanes, lds_worst: by the
    worst known grouping of lanes, lds_conflict_free: without; read_ratio, read_ratio_worst: the largest ratio
    of an LDS read's clocks to its conflict-free ones, by the two; branches: branches but the loop's own, each
    a load under a mask or a lane that goes its own way."""

    instructions: int
    valu: int
    dot2: int
    dot2_share: float
    barriers: int
    branches: int
    valu_clocks: float
    lds_clocks: float
    lds_worst: float
    lds_conflict_free: float
    read_ratio: float
    read_ratio_worst: float


def main_loop_numbers(
    program: Program, loop: Loop, num_warps: int, lds: Mapping[int, LdsAccess], executed: Sequence[int]
) -> MainLoop:
    """The numbers of a loop of a program that was executed with its LDS accesses counted (`count_lds`).

    lds, executed: of that run, in which the loop was entered. Raises ValueError where it was not.
    """
    span = range(loop.first, loop.last + 1)
    body = [program.instructions[n] for n in span]
    if not executed[loop.first]:
        raise ValueError(f"the main loop of {program.name} was not executed; legal: a run that enters it")
    vector = [i for i in body if i.opcode.startswith("v_")]
    dot2 = sum(i.opcode == "v_dot2_f32_f16" for i in vector)
    accesses = [(program.instructions[n], lds[n]) for n in span if n in lds]
    reads = [access for instruction, access in accesses if "read" in instruction.opcode]
    return MainLoop(
        instructions=len(body),
        valu=len(vector),
        dot2=dot2,
        dot2_share=dot2 / max(len(vector), 1),
        barriers=sum(i.opcode == "s_barrier" for i in body),
        branches=sum(i.opcode.startswith(("s_cbranch", "s_branch")) for i in body) - 1,
        valu_clocks=sum(clocks_of(i) for i in vector) * num_warps / SIMDS,
        lds_clocks=sum(_per_trip(i, a.clocks / a.times) for i, a in accesses) * num_warps,
        lds_worst=sum(_per_trip(i, a.worst / a.times) for i, a in accesses) * num_warps,
        lds_conflict_free=sum(_per_trip(i, a.conflict_free / a.times) for i, a in accesses) * num_warps,
        read_ratio=max((a.clocks / a.conflict_free for a in reads), default=1.0),
        read_ratio_worst=max((a.worst / a.conflict_free for a in reads), default=1.0),
    )


def clocks_of(instruction: Instruction) -> int:
    """Clocks that a vector instruction holds its SIMD."""
    if instruction.opcode in _QUARTER_RATE:
        return 16
    return 8 if "f64" in instruction.opcode else 4


def bound_tflops(operations: float, valu_clocks: float, lds_clocks: float) -> float:
    """TFLOP/s at most: operations and clocks of one workgroup and trip."""
    return operations / max(valu_clocks, lds_clocks) * COMPUTE_UNITS * CLOCK_HZ / 1e12


def waves_per_simd(vgprs: int, lds_bytes: int, num_warps: int) -> float:
    """Waves that fit a SIMD, by registers, LDS and the hardware's limit; less than 1 where SIMDs stay
    empty."""
    by_registers = min(WAVES_MOST, REGISTERS // max(4, -(-vgprs // 4) * 4)) * SIMDS // num_warps
    by_lds = LDS_LIMIT // max(lds_bytes, 1)
    return min(by_registers, by_lds, WAVES_MOST * SIMDS // num_warps) * num_warps / SIMDS


def _per_trip(instruction: Instruction, clocks: float) -> float:
    """Clocks of one execution; a read2 or write2 was counted as two accesses."""
    return clocks * 2 if "read2" in instruction.opcode or "write2" in instruction.opcode else clocks
