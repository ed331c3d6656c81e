"""What the compiler made of each gfx906 configuration, and what it can reach at most; no card is needed.

    python -m soak_kernels.gfx906.inspect [--json] [--only TEXT]

Each kernel is compiled, and one workgroup of it executed by the emulator to count the clocks of its LDS
accesses.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import triton

from soak_kernels.gfx906 import mca, model, timing
from soak_kernels.gfx906.build import ARCH, Build, build, require_triton
from soak_kernels.gfx906.configurations import Configuration, configurations
from soak_kernels.gfx906.emulator import Emulator
from soak_kernels.gfx906.launch import execute
from soak_kernels.gfx906.parse import Loop, main_loop
from soak_kernels.launch import Call


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration, as the compiler left it, and what it can reach. A field that is None does not apply:
    a kernel that spills is not executed, and has no LDS clocks and no bound; mca says why mca_cycles is none.

    spills: registers; scratch_bytes: of a lane; lds_bytes: of a workgroup. Of the main loop: dot2
    (v_dot2_f32_f16), barriers and branches_in_loop (all but its own) are of one wave and trip, VALU and LDS
    clocks of one workgroup and trip on a compute unit. lds_clocks are with bank conflicts by adjacent lanes,
    `_worst` by the worst grouping that is known of later cards. lds_read_ratio: the largest of any LDS read
    of the whole kernel, its clocks to its conflict-free ones. mca_cycles: llvm-mca's of a trip of one wave
    alone. bound_share: of model.PEAK_TFLOPS; modelled_tflops: with waits and barriers, by timing.HOPEFUL and
    timing.CAREFUL latencies. assumptions: those of the bound."""

    name: str
    arch: str
    kernel: str
    role: str
    pass_: str
    head_dim: int
    causal: bool
    tile: str
    vgprs: int
    sgprs: int
    spills: int
    scratch_bytes: int
    lds_bytes: int
    waves_per_simd: float
    dot2: int
    dot2_share: float
    valu_clocks: float
    lds_clocks: float | None = None
    lds_clocks_conflict_free: float | None = None
    lds_clocks_worst: float | None = None
    lds_read_ratio: float | None = None
    lds_read_ratio_worst: float | None = None
    barriers: int
    branches_in_loop: int
    mca: str
    mca_cycles: float | None
    bound_tflops: float | None = None
    bound_tflops_worst: float | None = None
    bound_share: float | None = None
    modelled_tflops: float | None = None
    modelled_tflops_careful: float | None = None
    triton: str
    reason: str
    assumptions: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON wants it: the key is `pass`, a word that Python keeps for itself."""
        return {("pass" if key == "pass_" else key): value for key, value in dataclasses.asdict(self).items()}


def inspect(configuration: Configuration) -> Row:
    """Compile and execute one configuration. ValueError where this Triton has no gfx906."""
    call = configuration.call()
    built = build(call)
    program = built.program
    loop = main_loop(program)
    assert loop is not None, f"{configuration.name} has no loop with products"
    counts = model.loop_counts(program, loop, built.num_warps)
    assert counts.operations == configuration.operations, f"{configuration.name}: a trip is not one tile"
    mca_cycles, mca_word = mca.cycles(program.instructions[loop.first : loop.last + 1])
    return Row(
        name=configuration.name, arch=ARCH, kernel=configuration.kernel, role=configuration.role,
        pass_=configuration.pass_, head_dim=configuration.head_dim, causal=configuration.causal,
        tile=configuration.tile, reason=configuration.reason, triton=triton.__version__,
        assumptions=model.ASSUMPTIONS,
        vgprs=program.vgprs, sgprs=program.sgprs, spills=program.spills, scratch_bytes=program.scratch_bytes,
        lds_bytes=built.lds_bytes,
        waves_per_simd=model.waves_per_simd(program.vgprs, built.lds_bytes, built.num_warps),
        dot2=counts.dot2, dot2_share=round(counts.dot2_share, 4), valu_clocks=counts.valu_clocks,
        barriers=counts.barriers, branches_in_loop=counts.branches, mca=mca_word, mca_cycles=mca_cycles,
        **({} if program.scratch_bytes else _executed(call, built, loop, counts)),
    )  # fmt: skip


def _executed(call: Call, built: Build, loop: Loop, counts: model.LoopCounts) -> dict[str, float]:
    """What shows when the first workgroup runs: LDS clocks, the bound, and the modelled speed."""
    run = execute(Emulator(built.program), built, call, workgroups=[(0, 0, 0)], count_lds=True)
    lds = model.lds_clocks(built.program, loop, run.lds)
    clocks, worst, conflict_free = (
        sum(getattr(cost, name) for cost in lds.values()) * built.num_warps
        for name in ("clocks", "worst", "conflict_free")
    )
    bound, bound_worst = (
        model.tflops(counts.operations, max(counts.valu_clocks, lds_clocks)) for lds_clocks in (clocks, worst)
    )
    body = built.program.instructions[loop.first : loop.last + 1]
    hopeful, careful = (
        timing.clocks_a_trip(body, {n: cost.clocks for n, cost in lds.items()}, built.num_warps, latencies)
        for latencies in (timing.HOPEFUL, timing.CAREFUL)
    )
    ratio, ratio_worst = model.read_ratios(built.program, run.lds)
    return {
        "lds_clocks": clocks,
        "lds_clocks_conflict_free": conflict_free,
        "lds_clocks_worst": worst,
        "lds_read_ratio": round(ratio, 3),
        "lds_read_ratio_worst": round(ratio_worst, 3),
        "bound_tflops": round(bound, 2),
        "bound_tflops_worst": round(bound_worst, 2),
        "bound_share": round(bound / model.PEAK_TFLOPS, 4),
        "modelled_tflops": round(model.tflops(counts.operations, hopeful), 2),
        "modelled_tflops_careful": round(model.tflops(counts.operations, careful), 2),
    }


def inspect_all(only: str = "", *, n_processes: int = 1) -> list[Row]:
    """Every configuration whose name contains `only`, several at a time. Seconds a kernel, the first time."""
    require_triton()
    names = [configuration.name for configuration in configurations() if only in configuration.name]
    if n_processes == 1 or len(names) < 2:
        return [_inspect_named(name) for name in names]
    with ProcessPoolExecutor(n_processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_inspect_named, names))


def _inspect_named(name: str) -> Row:
    return inspect(next(c for c in configurations() if c.name == name))


def backward_tflops(dq: Row, dkv: Row) -> float:
    """The bound of a backward from those of its two kernels, counted as usual: 5 products, though they do
    7."""
    assert dq.bound_tflops is not None
    assert dkv.bound_tflops is not None
    return 5 / (3 / dq.bound_tflops + 4 / dkv.bound_tflops)


_FOOT = (
    "Of a trip of the main loop: dot2, their share of the vector instructions, barriers, branches and mca "
    "cycles of one wave; VALU and LDS clocks (with conflicts; worst: by other groupings of lanes) of a "
    "workgroup. A dash: not executed, since it spills."
)


def table(rows: Iterable[Row]) -> str:
    """Rows as text, with the backward's usual count below, and the assumptions."""
    rows = list(rows)
    lines = [
        f"{'name':36}{'vgprs':>6}{'spills':>7}{'scratch':>8}{'lds':>7}{'w/SIMD':>7}{'dot2':>6}{'share':>7}"
        f"{'VALU':>7}{'LDS':>7}{'worst':>7}{'bar':>4}{'br':>3}{'mca':>8}{'TFLOP/s':>8}{'share':>7}"
    ]
    lines += [_line(row) for row in rows]
    by_key = {(row.kernel, row.role, row.head_dim, row.causal, row.pass_): row for row in rows}
    for (kernel, role, head_dim, causal, pass_), row in by_key.items():
        dkv = by_key.get((kernel, role, head_dim, causal, "dkv"))
        if pass_ == "dq" and dkv is not None and row.bound_tflops and dkv.bound_tflops:
            bound = backward_tflops(row, dkv)
            name = f"{kernel}-backward-d{head_dim}-{'causal' if causal else 'full'}"
            lines.append(f"{name:36}{'5 of 7 products':>91}{bound:8.1f}{bound / model.PEAK_TFLOPS:7.1%}")
    lines += [_FOOT, *sorted({f"mca: {row.mca}." for row in rows})]
    lines.append(f"Peak {model.PEAK_TFLOPS:.1f} TFLOP/s. {model.ASSUMPTIONS}.")
    return "\n".join(lines)


def _line(row: Row) -> str:
    def cell(value: float | None, width: int, form: str) -> str:
        return f"{'-':>{width}}" if value is None else f"{value:{width}{form}}"

    return (
        f"{row.name:36}{row.vgprs:6}{row.spills:7}{row.scratch_bytes:8}{row.lds_bytes:7}"
        f"{row.waves_per_simd:7.1f}{row.dot2:6}{row.dot2_share:7.3f}{row.valu_clocks:7.0f}"
        f"{cell(row.lds_clocks, 7, '.0f')}{cell(row.lds_clocks_worst, 7, '.0f')}{row.barriers:4}"
        f"{row.branches_in_loop:3}{cell(row.mca_cycles, 8, '.0f')}{cell(row.bound_tflops, 8, '.1f')}"
        f"{cell(row.bound_share, 7, '.1%')}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """0, or 1 where a product spills; 2 where this machine cannot compile for gfx906."""
    parser = argparse.ArgumentParser(
        prog="python -m soak_kernels.gfx906.inspect", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--json", action="store_true", help="a list of rows instead of a table")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only configurations whose name contains TEXT"
    )
    options = parser.parse_args(argv)
    try:
        rows = inspect_all(options.only, n_processes=os.cpu_count() or 1)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps([row.as_dict() for row in rows], indent=1) if options.json else table(rows))
    return int(any(row.role == "product" and (row.spills or row.scratch_bytes) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
