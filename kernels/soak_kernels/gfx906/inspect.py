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

from soak_kernels.gfx906 import mca, model
from soak_kernels.gfx906.build import ARCH, Build, build, require_triton
from soak_kernels.gfx906.configurations import Configuration, configurations
from soak_kernels.gfx906.emulator import Emulator
from soak_kernels.gfx906.parse import main_loop

_EXECUTED = (
    "valu_clocks", "lds_clocks", "lds_clocks_conflict_free", "lds_clocks_worst", "lds_read_ratio",
    "lds_read_ratio_worst",
    "bound_tflops", "bound_tflops_worst", "bound_share",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One configuration, as product.md has it and more. None: does not apply (a kernel with scratch is not
    executed) or the tool that would say is not there. Clocks and counts are those of the main loop: dot2,
    barriers and branches of one wave and trip, clocks of one workgroup and trip. lds_clocks: with bank
    conflicts by adjacent lanes; `_worst`: by the worst grouping known of later cards; lds_read_ratio: of the
    worst read to its conflict-free clocks; bound_share: of the peak; mca_cycles: one wave alone."""

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
    valu_clocks: float | None
    lds_clocks: float | None
    lds_clocks_conflict_free: float | None
    lds_clocks_worst: float | None
    lds_read_ratio: float | None
    lds_read_ratio_worst: float | None
    barriers: int
    branches_in_loop: int
    mca_cycles: float | None
    bound_tflops: float | None
    bound_tflops_worst: float | None
    bound_share: float | None
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
    body = program.instructions[loop.first : loop.last + 1]
    executed: dict[str, Any] = {}
    if program.scratch_bytes:
        numbers = model.main_loop_numbers(program, loop, built.num_warps, {}, [1] * len(program.instructions))
    else:
        run = Emulator(program).run(
            [x.numpy() if hasattr(x,
            "numpy") else x for x in (call.arguments[name] for name in built.arguments)],
            grid=(call.n_programs, 1, 1), num_warps=built.num_warps, lds_bytes=built.lds_bytes,
            workgroups=[(0, 0, 0)], count_lds=True,
        )  # fmt: skip
        numbers = model.main_loop_numbers(program, loop, built.num_warps, run.lds, run.executed)
        bound, bound_worst = (
            model.bound_tflops(configuration.operations, numbers.valu_clocks, clocks)
            for clocks in (numbers.lds_clocks, numbers.lds_worst)
        )
        executed = {
            "valu_clocks": numbers.valu_clocks,
            "lds_clocks": numbers.lds_clocks,
            "lds_clocks_conflict_free": numbers.lds_conflict_free,
            "lds_clocks_worst": numbers.lds_worst,
            "lds_read_ratio": round(numbers.read_ratio, 3),
            "lds_read_ratio_worst": round(numbers.read_ratio_worst, 3),
            "bound_tflops": round(bound, 2),
            "bound_tflops_worst": round(bound_worst, 2),
            "bound_share": round(bound / model.PEAK_TFLOPS, 4),
        }
    return Row(
        **_of_configuration(configuration),
        **_of_build(built),
        dot2=numbers.dot2,
        dot2_share=round(numbers.dot2_share, 4),
        barriers=numbers.barriers,
        branches_in_loop=numbers.branches,
        mca_cycles=mca.cycles(body),
        **{**dict.fromkeys(_EXECUTED), **executed},
    )


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


def _of_configuration(configuration: Configuration) -> dict[str, Any]:
    names = ("name", "kernel", "role", "pass_", "head_dim", "causal", "tile", "reason")
    return {"arch": ARCH, **{name: getattr(configuration, name) for name in names}}


def _of_build(built: Build) -> dict[str, Any]:
    program = built.program
    return {
        "vgprs": program.vgprs,
        "sgprs": program.sgprs,
        "spills": program.spills,
        "scratch_bytes": program.scratch_bytes,
        "lds_bytes": built.lds_bytes,
        "waves_per_simd": model.waves_per_simd(program.vgprs, built.lds_bytes, built.num_warps),
        "triton": triton.__version__,
        "assumptions": model.ASSUMPTIONS,
    }


def table(rows: Iterable[Row]) -> str:
    """Rows as text, with the backward's usual count below, and the assumptions."""
    rows = list(rows)
    lines = [
        f"{'name':36}{'vgprs':>6}{'spills':>7}{'lds':>7}{'w/SIMD':>7}{'dot2':>6}{'share':>7}{'VALU':>7}"
        f"{'LDS':>7}"
        f"{'worst':>7}{'bar':>4}{'br':>3}{'mca':>8}{'TFLOP/s':>8}{'share':>7}"
    ]
    lines += [_line(row) for row in rows]
    by_key = {(row.kernel, row.role, row.head_dim, row.causal, row.pass_): row for row in rows}
    for (kernel, role, head_dim, causal, pass_), row in by_key.items():
        dkv = by_key.get((kernel, role, head_dim, causal, "dkv"))
        if pass_ == "dq" and dkv is not None and row.bound_tflops and dkv.bound_tflops:
            bound = backward_tflops(row, dkv)
            name = f"{kernel}-backward-d{head_dim}-{'causal' if causal else 'full'}"
            lines.append(f"{name:36}{'5 of 7 products':>83}{bound:8.1f}{bound / model.PEAK_TFLOPS:7.1%}")
    lines.append(f"Peak {model.PEAK_TFLOPS:.1f} TFLOP/s. {model.ASSUMPTIONS}.")
    return "\n".join(lines)


def _line(row: Row) -> str:
    def cell(value: float | None, width: int, form: str) -> str:
        return f"{'-':>{width}}" if value is None else f"{value:{width}{form}}"

    return (
        f"{row.name:36}{row.vgprs:6}{row.spills:7}{row.lds_bytes:7}{row.waves_per_simd:7.1f}{row.dot2:6}"
        f"{row.dot2_share:7.3f}{cell(row.valu_clocks, 7, '.0f')}{cell(row.lds_clocks, 7, '.0f')}"
        f"{cell(row.lds_clocks_worst, 7, '.0f')}{row.barriers:4}{row.branches_in_loop:3}"
        f"{cell(row.mca_cycles, 8, '.0f')}"
        f"{cell(row.bound_tflops, 8, '.1f')}{cell(row.bound_share, 7, '.1%')}"
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
