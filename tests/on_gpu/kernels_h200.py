"""The attention kernels on an H200: right, to the bit, in bounds, and how fast beside the framework's own.

    PYTHONPATH=kernels python tests/on_gpu/kernels_h200.py [--out OUT] [--parts correct,huge,...]
    compute-sanitizer --tool memcheck python tests/on_gpu/kernels_h200.py --member flash_v2 --bare

Some five minutes on a machine with some cores, most of them compiling. Writes `kernels.json` below OUT,
prints each row as it comes, ok or FAIL, and those that failed once more last; exit code 0 if every row holds.
A row without a measurement ("no ") fails nothing. `--member NAME` runs the odd shapes of one kernel and
prints what is wrong, `--bare` without comparing them (for compute-sanitizer, under which the rest would take
hours).
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from soak_kernels.environment import pin_compiler
from soak_kernels.members import MEMBERS, refusal
from soak_kernels.shape import Shape

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels" / "soak_kernels"
HEADS, HEAD_DIM, TOKENS = 16, 128, 32_768  # as bench.py's
TENSORS = ("o", "lse", "dq", "dk", "dv")
LAUNCHES = 1000
SANITIZED_S = 240
# (Sq, Sk), (heads, key heads), head_dim, causal, dtype
ODD = (
    ((65, 65), (2, 2), 128, False, "float16"),
    ((1000, 1000), (2, 2), 128, True, "float16"),
    ((130, 17), (4, 2), 64, True, "float16"),
    ((127, 1), (2, 1), 96, False, "bfloat16"),
    ((33, 200), (2, 1), 256, True, "float32"),
    ((1, 1), (1, 1), 32, True, "bfloat16"),
    ((257, 257), (4, 2), 64, True, "bfloat16"),
    ((200, 200), (4, 1), 128, False, "bfloat16"),
    ((1, 1), (2, 2), 64, True, "float16"),
)
LIMITS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-5}  # relative L2
ASKED = list(MEMBERS)
# What `auto` is to reach of each peer's speed, forward and backward.
WANTED = {"flex": (1.0, 0.9), "flash": (1.2, 1.0), "cudnn": (None, None)}


@dataclass
class Row:
    name: str
    measured: str
    holds: bool | None  # None: not measured


def runnable() -> list[str]:
    """The members that this card has, of those that were asked for."""
    import torch
    from soak_kernels.functional import card_of

    card = card_of(torch.device("cuda", 0))
    return [name for name in ASKED if refusal(name, card, Shape(1, 2, 2, 128, 128, 64), "float16") is None]


def drawn(seq: tuple[int, int], heads: tuple[int, int], head_dim: int, dtype: str, batch: int = 2) -> Any:
    import torch

    generator = torch.Generator("cuda").manual_seed(sum(seq))

    def normal(n_heads: int, rows: int, sigma: float) -> torch.Tensor:
        x = torch.randn((batch, n_heads, rows, head_dim), generator=generator, device="cuda")
        return (x * sigma).to(getattr(torch, dtype))

    (seq_q, seq_k), (queries, keys) = seq, heads
    return (
        normal(queries, seq_q, 0.5),
        normal(keys, seq_k, 0.5),
        normal(keys, seq_k, 0.5),
        normal(queries, seq_q, 1),
    )


# --- one kernel at odd shapes: a process of its own, so that kernels compile beside each other


def odd_shapes(name: str, *, bare: bool) -> list[str]:
    """What is wrong with one member, a line each: results against float64, bits of a second run, guards."""
    import torch
    from soak_kernels.functional import card_of

    card, wrong = card_of(torch.device("cuda", 0)), []
    for seq, heads, head_dim, causal, dtype in ODD:
        if refusal(name, card, Shape(2, *heads, *seq, head_dim), dtype) is not None:
            continue
        where = f"{seq} {heads} d{head_dim} {'causal' if causal else 'full'} {dtype}"
        wrong += [f"{where}: {line}" for line in _one(name, seq, heads, head_dim, causal, dtype, bare)]
    return wrong


def _one(
    name: str,
    seq: tuple[int, int],
    heads: tuple[int, int],
    head_dim: int,
    causal: bool,
    dtype: str,
    bare: bool,
) -> Iterator[str]:
    import torch
    from soak_kernels.device import architecture
    from soak_kernels.frame import shape_of
    from soak_kernels.members import operation
    from soak_kernels.reference import reference

    used, guards = operation(name), []

    def guarded(shape: Any, kind: torch.dtype) -> torch.Tensor:
        size = torch.Size(shape).numel()
        buffer = torch.full((size + 8192,), float("nan"), dtype=kind, device="cuda")
        guards.append((buffer, size))
        return buffer[4096 : 4096 + size].view(shape)

    q, k, v, do = (guarded(x.shape, x.dtype).copy_(x) for x in drawn(seq, heads, head_dim, dtype))
    config = used.plan(architecture(q.device), shape_of(q, k, v), causal=causal, dtype=dtype)
    runs = []
    for _ in range(1 if bare else 3):
        space = used.allocate(q, k, config)
        out = guarded(q.shape, q.dtype), guarded(q.shape[:3], torch.float64)
        o, lse = used.forward(q, k, v, causal=causal, out=out, workspace=space)
        gradients = tuple(guarded(x.shape, x.dtype) for x in (q, k, v))
        used.backward(q, k, v, o, lse, do, causal=causal, out=gradients, workspace=space)
        runs.append((o, lse, *gradients))
    torch.cuda.synchronize()
    if bare:
        return
    truth = reference(q, k, v, do, causal=causal)
    for i, tensor in enumerate(TENSORS):
        result, expected = runs[0][i].double().cpu(), getattr(truth, tensor)
        seen = expected.isfinite()
        if not torch.equal(result[~seen], expected[~seen]):
            yield f"{tensor} of rows that see no key"
        floor = 1e-3 * math.sqrt(max(1, int(seen.sum())))  # dQ and dK of a single key are rounding of 0
        error = float((result - expected)[seen].norm() / max(float(expected[seen].norm()), floor))
        if not error < LIMITS[dtype]:
            yield f"{tensor} has relative L2 {error:.1e}, limit {LIMITS[dtype]:.0e}"
        if any(not torch.equal(runs[0][i].view(torch.int16), run[i].view(torch.int16)) for run in runs[1:]):
            yield f"{tensor} has other bits in a repeat"
    if any(not (b[:4096].isnan().all() and b[4096 + n :].isnan().all()) for b, n in guards):
        yield "written outside a tensor"
    for x in (q, k, v, do):  # what follows the first sequence in memory is NaN now
        x[1:].fill_(float("nan"))
    space = used.allocate(q, k, config)
    o, lse = used.forward(q, k, v, causal=causal, workspace=space)
    alone = (o, lse, *used.backward(q, k, v, o, lse, do, causal=causal, workspace=space))
    for tensor, before, after in zip(TENSORS, runs[0], alone, strict=True):
        if not torch.equal(before[:1].view(torch.int16), after[:1].view(torch.int16)):
            yield f"{tensor} of a sequence depends on the one behind it"


def correct() -> Iterator[Row]:
    """Every member's odd shapes, all at once."""
    command = [sys.executable, __file__, "--member"]
    children = {
        name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for name in runnable()
    }
    for name, child in children.items():
        said, _ = child.communicate(timeout=400)
        lines = said.strip().splitlines()
        told = "; ".join(lines[-3:]) if child.returncode else f"{len(ODD)} shapes"
        yield Row(f"{name} against float64", told, child.returncode == 0)


def sanitized() -> Iterator[Row]:
    """Every member's odd shapes under both tools, all at once; what they compile was compiled before.

    racecheck does not follow an order that a pair of barriers makes: it reports the two numbers that
    flash_hopper's loader hands over, and Triton's own switch of a warpgroup to its part, and does so for a
    kernel that consists of nothing else (handover.py), whose numbers all arrive. Anything else is a failure.
    """
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        yield Row("compute-sanitizer", "is not here", None)
        return
    handover = str(Path(__file__).with_name("handover.py"))
    running: dict[tuple[str, str], subprocess.Popen[str]] = {}
    for kind in ("racecheck", "memcheck"):
        programs = {"handover": [handover]}
        programs |= {name: [__file__, "--member", name, "--bare"] for name in runnable()}
        for name, program in programs.items():
            running[name, kind] = subprocess.Popen(
                [tool, "--tool", kind, "--error-exitcode", "9", sys.executable, *program],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
    ends_s = time.monotonic() + SANITIZED_S
    known: set[str] = set()
    for (name, kind), child in running.items():
        try:
            said, _ = child.communicate(timeout=max(1, ends_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            yield Row(f"{name} under {kind}", f"not done after {SANITIZED_S} s", None)
            continue
        lines = [line for line in said.strip().splitlines() if line.strip()] or ["nothing was said"]
        places = reported(said)
        if name == "handover" and "all as sent" in said:
            known |= places
            yield Row(f"{name} under {kind}", f"{lines[-1]} {sorted(places)}", True)
        elif child.returncode == 9 and places and places <= known:
            yield Row(f"{name} under {kind}", f"as handover, of {sorted(places)}: {lines[-1]}", True)
        else:
            told = lines[-1] if child.returncode == 0 else "; ".join([lines[-1], *lines[:12]])[:1500]
            yield Row(f"{name} under {kind}", told, child.returncode == 0)


def reported(said: str) -> set[str]:
    """The functions that compute-sanitizer's report names by file and line; a kernel is "the switch": its
    body allocates and begins the parts, and Triton's code for that has its lines."""
    places = set()
    for file, line in re.findall(r" in (\w+\.py):(\d+)", said):
        path = next(p for p in (HERE / file, KERNELS / file) if p.exists())
        functions = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
        ]
        around = [f for f in functions if f.lineno - 1 <= int(line) <= (f.end_lineno or f.lineno)]
        name = around[-1].name if around else f"{file}:{line}"
        places.add("the switch" if name.endswith("_kernel") else name)
    return places


# --- the product's kernel


def huge() -> Iterator[Row]:
    """Tensors of more than 2^31 elements: the first and the last head are right."""
    import torch
    from soak_kernels import attention
    from soak_kernels.reference import reference_slice, relative_l2

    seq_len = 1024
    batch = 2**31 // (HEADS * seq_len * HEAD_DIM) + 8
    shape = (batch, HEADS, seq_len, HEAD_DIM)
    q, k, v, do = (
        torch.randn(shape, device="cuda", dtype=torch.float16).mul_(s) for s in (0.5, 0.5, 0.5, 1.0)
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    for name in ("flash_v2", "flash_hopper"):
        o = attention(*leaves, is_causal=True, kernel=name)
        assert isinstance(o, torch.Tensor)
        gradients = torch.autograd.grad(o, leaves, do)
        results = {"o": o.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}
        worst = 0.0
        for b, h in ((0, 0), (batch - 1, HEADS - 1)):
            truth = reference_slice(q[b, h], k[b, h], v[b, h], do[b, h], causal=True)
            worst = max(worst, *(relative_l2(x[b, h], getattr(truth, n)) for n, x in results.items()))
        told = f"relative L2 {worst:.1e}"
        yield Row(f"{name}, {q.numel() / 2**31:.3f} * 2^31 elements", told, worst < LIMITS["float16"])
        del o, gradients, results


def extreme() -> Iterator[Row]:
    """Scores up to 65504^2 * 128: O is right, the gradients are finite; how far dV is off is for reading."""
    import torch
    from soak_kernels import bench
    from soak_kernels.reference import reference, relative_l2

    q, k, v, do = (x[:1].contiguous() for x in drawn((200, 200), (2, 2), 128, "float16"))
    kinds = {
        "all 65504": (torch.full_like(q, 65504), torch.full_like(k, 65504)),
        "32768 of either sign": (q.sign() * 32768, k.sign() * 32768),  # equal sums are equal in any order
        "drawn up to 65504": tuple((x.float() * 1e5).clamp(-65504, 65504).to(x.dtype) for x in (q, k)),
    }
    for kind, (q, k) in kinds.items():
        truth = reference(q, k, v, do, causal=True)
        for name in runnable():
            results = bench.ours(name, q, k, v, do, True).results
            error = {n: relative_l2(each, getattr(truth, n)) for n, each in results.items()}
            finite = all(bool(each.isfinite().all()) for each in results.values())
            told = f"O {error['o']:.1e}, dV {error['dv']:.1e}, {'finite' if finite else 'not finite'}"
            holds = finite and error["o"] < LIMITS["float16"]
            yield Row(f"{name}, {kind}", told, holds)


def repeated() -> Iterator[Row]:
    """LAUNCHES forwards and backwards beside other work: every digest the same."""
    import torch
    from soak_kernels import digest as digests
    from soak_kernels.device import architecture
    from soak_kernels.members import operation

    q, k, v, do = drawn((1000, 1000), (HEADS, HEADS), HEAD_DIM, "float16", batch=4)
    beside = torch.cuda.Stream()
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    for name in runnable():
        used = operation(name)
        shape = Shape(4, HEADS, HEADS, 1000, 1000, HEAD_DIM)
        config = used.plan(architecture(q.device), shape, causal=True, dtype="float16", n_processors=132)
        space, golden = used.allocate(q, k, config), None
        differing = torch.zeros(1, dtype=torch.int64, device="cuda")
        n_launches = LAUNCHES if name in ("flash_v2", "flash_hopper") else LAUNCHES // 10
        for _ in range(n_launches):
            with torch.cuda.stream(beside):
                torch.mm(a, a)
            o, lse = used.forward(q, k, v, causal=True, workspace=space)
            outputs = (o, lse, *used.backward(q, k, v, o, lse, do, causal=True, workspace=space))
            found = [digests.digest(x) for x in outputs]
            golden = golden or found
            for ours, first in zip(found, golden, strict=True):
                digests.compare(ours, first, differing)
        n = int(differing[0])
        yield Row(f"{name}, {n_launches} launches beside other streams", f"{n} digests differ", n == 0)


def fast(seq_lens: tuple[int, ...]) -> Iterator[Row]:
    """The kernel that `auto` takes against the framework's own, and its accuracy against torch's flash
    backend."""
    for seq_len in seq_lens:
        for causal in (False, True):
            yield from _fast_at(seq_len, causal)


def _fast_at(seq_len: int, causal: bool) -> Iterator[Row]:
    import torch
    from soak_kernels import bench
    from soak_kernels.functional import choose

    q = torch.empty((1, HEADS, seq_len, HEAD_DIM), dtype=torch.float16, device="cuda")
    kernel = choose(q, q, q).kernel
    rows = bench.compare(list(dict.fromkeys((kernel, "flash_v2"))), bench.PEERS, seq_len, causal)
    worst = {row.name: max(x for n, x in row.error.items() if n != "lse") for row in rows if not row.failed}
    for row in rows:
        name = f"seq_len {seq_len} {'causal' if causal else 'full'}, {row.name}"
        if row.failed:
            yield Row(name, row.failed, None)
            continue
        ratios = (row.forward_ratio, row.backward_ratio)
        wanted = WANTED.get(row.name, (None, None))
        holds = all(limit is None or (r or 0) >= limit for limit, r in zip(wanted, ratios, strict=True))
        if row.name == "flash":
            holds = holds and worst[kernel] <= 1.05 * worst["flash"]
        text = f"{row.forward_tflops:.0f} / {row.backward_tflops:.0f} TFLOP/s, error {worst[row.name]:.1e}"
        if row.name != kernel:
            text += f"; {kernel} has {ratios[0]:.2f} x / {ratios[1]:.2f} x"
        yield Row(name, text, holds)


def accurate() -> Iterator[Row]:
    """The kernel that `auto` takes against torch's flash backend, two heads of the last sequence: relative L2
    and largest difference from float64, no worse in any tensor (within a twentieth; the largest, a tenth)."""
    from soak_kernels import bench
    from soak_kernels.functional import choose
    from soak_kernels.reference import reference

    for seq_len in (512, 1024, 2048, 4096):
        for causal in (False, True):
            q, k, v, do = drawn((seq_len, seq_len), (HEADS, HEADS), HEAD_DIM, "float16", TOKENS // seq_len)
            both = [
                bench.ours(choose(q, k, v).kernel, q, k, v, do, causal),
                bench.peer("flash", q, k, v, do, causal),
            ]
            heads = slice(0, 2)
            truth = reference(*(x[-1:, heads] for x in (q, k, v, do)), causal=causal)
            told, holds = [], True
            for tensor in ("o", "dq", "dk", "dv"):
                true = getattr(truth, tensor)
                apart = [each.results[tensor][-1:, heads].detach().double().cpu() - true for each in both]
                l2 = [float(x.norm() / true.norm()) for x in apart]
                most = [float(x.abs().max()) for x in apart]
                told.append(f"{tensor} {l2[0]:.2e} / {l2[1]:.2e}, {most[0]:.1e} / {most[1]:.1e}")
                holds = holds and l2[0] <= 1.05 * l2[1] and most[0] <= 1.1 * most[1]
            yield Row(f"seq_len {seq_len} {'causal' if causal else 'full'}, accuracy", "; ".join(told), holds)


def lineage() -> Iterator[Row]:
    """Each member's time at one shape: for reading."""
    from soak_kernels import bench

    q, k, v, do = drawn((2048, 2048), (HEADS, HEADS), HEAD_DIM, "float16", batch=2)
    contenders = {name: bench.ours(name, q, k, v, do, False) for name in runnable()}
    forward = bench.milliseconds({name: each.forward for name, each in contenders.items()})
    backward = bench.milliseconds({name: each.backward for name, each in contenders.items()})
    for name in contenders:
        text = f"forward {forward[name]:.3f} ms, backward {backward[name]:.3f} ms"
        yield Row(f"{name} at 2 x {HEADS} x 2048 x {HEAD_DIM}", text, True)


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "correct": correct,
    "huge": huge,
    "extreme": extreme,
    "repeated": repeated,
    "accurate": accurate,
    "lineage": lineage,
    "fast": lambda: fast((512, 1024, 2048, 4096)),
    "sanitized": sanitized,
}


def _line(row: Row) -> str:
    mark = {True: "ok  ", False: "FAIL", None: "no  "}[row.holds]
    return f"{mark} {row.name}: {row.measured}"


def _safely(name: str, part: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """A part that fails costs its own rows: a minute on a card is dear."""
    begun_s = time.monotonic()
    try:
        for row in part():
            print(_line(row), flush=True)
            yield row
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told and the rest goes on
        failed = Row(f"the part {name}", f"{type(error).__name__}: {str(error)[:300]}", False)
        print(_line(failed), flush=True)
        yield failed
    print(f"{name}: {time.monotonic() - begun_s:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/kernels")))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seq-lens", default="512,1024,2048,4096", help="of the part fast")
    parser.add_argument("--members", default=",".join(MEMBERS), help="of all parts but fast and huge")
    parser.add_argument("--member", choices=MEMBERS)
    parser.add_argument("--bare", action="store_true")
    arguments = parser.parse_args()
    pin_compiler(os.environ)
    if arguments.member:
        wrong = odd_shapes(arguments.member, bare=arguments.bare)
        print("\n".join(wrong))
        return int(bool(wrong))
    ASKED[:] = arguments.members.split(",")
    seq_lens = tuple(int(n) for n in arguments.seq_lens.split(","))
    parts = {**PARTS, "fast": lambda: fast(seq_lens)}
    rows = [row for name in arguments.parts.split(",") for row in _safely(name, parts[name])]
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "kernels.json").write_text(json.dumps([asdict(row) for row in rows], indent=1))
    failed = [_line(row) for row in rows if row.holds is False]
    print(f"{len(rows)} rows, {len(failed)} failed", *failed, sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
