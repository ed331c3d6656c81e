"""The attention kernels against each other and the framework's own, on shapes that do not change.

    python -m soak_kernels.bench [--json] [--kernels NAME,NAME] [--quick] [--tune]

First every kernel is checked (against float64, bit for bit on repeats, no byte written outside); a red check
ends the program with 1 and no figure is shown. `--tune` times the candidate tiles of each pass and prints the
best. The table comes last. Who is compared is timed in turns, so that the card's heat is everybody's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from soak_kernels.environment import pin_compiler
from soak_kernels.flops import backward_flops, forward_flops
from soak_kernels.launch import Call
from soak_kernels.members import MEMBERS, Operation, refusal
from soak_kernels.shape import Shape
from soak_kernels.tuning import PASSES, AttentionConfig, Pass, TileConfig, plan

if TYPE_CHECKING:
    import torch

HEADS = 16
TOKENS = 32_768
HEAD_DIM = 128
SEQ_LENS = (512, 1024, 2048, 4096)
CHECK_SEQ_LENS = (1, 17, 65, 127, 513, 1000, 2048)
FORWARD_LIMIT = 1e-3  # relative L2 against float64, float16
GRADIENT_LIMIT = 2e-3
BFLOAT16_FACTOR = 8.0  # rounding 2^-8 against 2^-11
ROUNDS, REPEATS = 5, 4  # all take turns ROUNDS times, with REPEATS launches each
CLOCK_KHZ = 2_000_000  # about, of a card at full speed
LEAD_MS = 20  # the card waits so long before the first, and the launches queue up
TENSORS = ("o", "lse", "dq", "dk", "dv")
PEERS = ("flex", "flash", "cudnn")  # FlexAttention; torch's scaled_dot_product_attention by two backends


@dataclass(frozen=True)
class Contender:
    """Somebody's attention on given tensors. results: its o, dq, dk, dv, and lse where it has one;
    n_programs: of the forward's largest launch, None where that is not known."""

    forward: Callable[[], Any]
    backward: Callable[[], Any]
    results: dict[str, torch.Tensor]
    n_programs: int | None = None


@dataclass(frozen=True)
class Row:
    """One contender at one shape: TFLOP/s (median of ROUNDS * REPEATS launches, backward counted as 2.5
    forwards), and each tensor's relative L2 and largest difference against float64, of one head.

    n_programs: that share its forward. forward_ratio, backward_ratio: how many times as fast the first of the
    table is. failed: why there is no figure; "" where there are."""

    name: str
    is_ours: bool
    seq_len: int
    causal: bool
    n_programs: int | None = None
    forward_tflops: float | None = None
    backward_tflops: float | None = None
    forward_ratio: float | None = None
    backward_ratio: float | None = None
    error: dict[str, float] = field(default_factory=dict)
    largest_difference: dict[str, float] = field(default_factory=dict)
    failed: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """0: measured; 1: a check is red; 2: a name that there is not; 4: no GPU, or none of the kernels runs."""
    parser = argparse.ArgumentParser(
        prog="python -m soak_kernels.bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    parser.add_argument(
        "--kernels", default="", metavar="NAMES", help="of ours, with commas; default: all that carry a load"
    )
    parser.add_argument("--tune", action="store_true", help="time candidate tiles of flash_v2 instead")
    parser.add_argument("--quick", action="store_true", help="the smallest and the largest shape only")
    options = parser.parse_args(arguments)
    pinned = pin_compiler(os.environ)
    import torch

    if not torch.cuda.is_available():
        return _refused("torch sees no GPU; run it on a machine with one, with a torch built for it", 4)
    names = [name for name in options.kernels.split(",") if name]
    unknown = [name for name in names if name not in MEMBERS]
    if unknown:
        return _refused(f"--kernels has {unknown[0]!r}; choose from {', '.join(MEMBERS)}", 2)
    seq_lens = (SEQ_LENS[0], SEQ_LENS[-1]) if options.quick else SEQ_LENS
    contenders = _contenders(names)
    if not contenders:
        return _refused(f"--kernels {options.kernels}: none of them runs on this card", 4)
    red = [line for name in contenders for line in _check(name, CHECK_SEQ_LENS)]
    if red:
        print("\n".join(f"bench: {line}" for line in red), file=sys.stderr)
        print(f"bench: {len(red)} checks are red, so nothing is measured", file=sys.stderr)
        return 1
    import triton

    from soak_kernels.device import architecture

    arch = architecture(torch.device("cuda"))
    facts: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "arch": arch,
        "torch": torch.__version__,
        "triton": triton.__version__,
        **pinned,
    }
    if options.tune:
        best = _tune(arch, seq_lens, tell=not options.json)
        if options.json:
            print(json.dumps({**facts, "tiles": best}, indent=1))
        return 0
    rows = [
        row
        for seq_len in seq_lens
        for causal in (False, True)
        for row in compare(contenders, PEERS, seq_len, causal)
    ]
    if options.json:
        print(json.dumps({**facts, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1))
    else:
        _print(facts, rows)
    return 0


def _refused(why: str, code: int) -> int:
    print(f"bench: {why}", file=sys.stderr)
    return code


def _contenders(names: Sequence[str]) -> list[str]:
    """What of `names`, or of all that carry a load, runs the load's shapes on this card; first what `auto`
    takes."""
    import torch

    from soak_kernels.functional import card_of, proven

    device = torch.device("cuda", torch.cuda.current_device())
    card, shape = card_of(device), Shape(1, HEADS, HEADS, 4096, 4096, HEAD_DIM)
    first = proven(card, shape, device, dtype="float16").kernel
    asked = names or [name for name, member in MEMBERS.items() if member.no_load is None]
    able = [name for name in asked if refusal(name, card, shape, "float16") is None]
    return sorted(able, key=lambda name: name != first)


# --- checks
# ----------------------------------------------------------------------------------------------------------


def _relative_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative L2; a truth of nothing but rounding (dQ and dK of a single key are 0) counts as its scale's
    ten-thousandth, since relative to 0 every result is wrong."""
    from soak_kernels.reference import relative_l2

    norm = float(truth.norm())
    floor = 1e-4 * math.sqrt(truth.numel())
    return relative_l2(result, truth) * norm / max(norm, floor) if norm > 0 else relative_l2(result, truth)


def _used(kernel: str, shape: Shape, dtype: str) -> Operation:
    """The operation of that name, or of the kernel that `auto` takes. Raises ValueError where this card or
    shape has none of that name."""
    import torch

    from soak_kernels.functional import card_of, proven
    from soak_kernels.members import operation

    device = torch.device("cuda", torch.cuda.current_device())
    return operation(proven(card_of(device), shape, device, dtype=dtype, kernel=kernel).kernel)


def _check(kernel: str, seq_lens: Sequence[int]) -> list[str]:
    """What is wrong, one line each: accuracy, repeatability, and NaN around every tensor, for the kernels
    that would run here."""
    red, n_checked = [], 0
    for dtype in ("float16", "bfloat16", "float32"):
        for head_dim in (64, 128):
            for seq_len in seq_lens if dtype == "float16" else seq_lens[:4]:
                try:
                    used = _used(kernel, Shape(2, 2, 2, seq_len, seq_len, head_dim), dtype)
                except ValueError:  # it has no such shape or type
                    continue
                for causal in (False, True):
                    wrong = _check_one(used, seq_len, head_dim, causal, dtype)
                    mask = "causal" if causal else "full"
                    where = f"{used.name} {dtype} head_dim {head_dim} seq_len {seq_len} {mask}"
                    red += [f"{where}: {line}" for line in wrong]
                    n_checked += 1
    if not n_checked:
        red.append(f"{kernel} cannot run here")
    lengths = ", ".join(map(str, seq_lens))
    print(f"checked {kernel}: seq_len {lengths}; {len(red)} red", file=sys.stderr, flush=True)
    return red


def _check_one(used: Operation, seq_len: int, head_dim: int, causal: bool, dtype: str) -> list[str]:
    import torch

    from soak_kernels.device import architecture
    from soak_kernels.digest import digest, digest_torch, digest_weights
    from soak_kernels.reference import reference

    kind = getattr(torch, dtype)
    guard = 1 << 15
    buffers = []

    def guarded(shape: tuple[int, ...], kind: torch.dtype) -> torch.Tensor:
        size = torch.Size(shape).numel()
        buffer = torch.full((size + 2 * guard,), float("nan"), dtype=kind, device="cuda")
        buffers.append((buffer, size))
        return buffer[guard : guard + size].view(shape)

    inputs = _inputs(2, 2, seq_len, head_dim, kind)
    q, k, v, do = (guarded(tuple(x.shape), kind).copy_(x) for x in inputs)
    shape = Shape(2, 2, 2, seq_len, seq_len, head_dim)
    config = used.plan(architecture(q.device), shape, causal=causal, dtype=dtype)
    runs = []
    for _ in range(3):
        out = (guarded(tuple(q.shape), kind), guarded(tuple(q.shape[:3]), torch.float64))
        gradients = (
            guarded(tuple(q.shape), kind),
            guarded(tuple(q.shape), kind),
            guarded(tuple(q.shape), kind),
        )
        space = used.allocate(q, k, config)
        for x in vars(space).values():
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                x.fill_(float("nan"))
        o, lse = used.forward(q, k, v, causal=causal, out=out, workspace=space)
        back = used.backward(q, k, v, o, lse, do, causal=causal, out=gradients, workspace=space)
        runs.append(dict(zip(TENSORS, (o, lse, *back), strict=True)))
    torch.cuda.synchronize()
    red = []
    truth = reference(*inputs, causal=causal)
    factor = BFLOAT16_FACTOR if dtype == "bfloat16" else 1.0
    for name in TENSORS:
        limit = factor * (FORWARD_LIMIT if name in ("o", "lse") else GRADIENT_LIMIT)
        error = _relative_error(runs[0][name], getattr(truth, name))
        if not error < limit:  # NaN is red
            red.append(f"{name} has relative L2 {error:.2e}, limit {limit:.0e}")
        first = runs[0][name].view(torch.int16)
        if any(not torch.equal(first, run[name].view(torch.int16)) for run in runs[1:]):
            red.append(f"{name} has other bits in a repeat")
        x = runs[0][name]
        on_host = digest_torch(x.cpu(), digest_weights(seq_len, 256, "cpu"))
        if not torch.equal(digest(x).cpu(), on_host):
            red.append(f"{name} has another digest on the GPU than on the CPU")
    for buffer, size in buffers:
        if not bool(buffer[:guard].isnan().all()) or not bool(buffer[guard + size :].isnan().all()):
            red.append("written outside a tensor")
    return red


def _inputs(
    batch: int, heads: int, seq_len: int, head_dim: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v ~ N(0, 0.5^2), dO ~ N(0, 1), on the GPU."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(sigma: float) -> torch.Tensor:
        x = torch.randn((batch, heads, seq_len, head_dim), generator=generator, device="cuda")
        return (x * sigma).to(dtype)

    return normal(0.5), normal(0.5), normal(0.5), normal(1.0)


# --- figures
# ---------------------------------------------------------------------------------------------------------


def milliseconds(launches: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """The median of each, all taking turns. Launches queue up behind a wait, so that what the host does
    between them costs nobody anything."""
    import torch

    timed: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
    for launch in launches.values():
        launch()
    torch.cuda.synchronize()
    times: dict[str, list[tuple[Any, Any]]] = {name: [] for name in launches}
    for _ in range(ROUNDS):
        for name, launch in launches.items():
            torch.cuda._sleep(LEAD_MS * CLOCK_KHZ)  # type: ignore[no-untyped-call]  # torch's
            launch()
            for _ in range(REPEATS):
                start, stop = (timed() for _ in range(2))
                start.record()
                launch()
                stop.record()
                times[name].append((start, stop))
            torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in each) for name, each in times.items()}


def ours(
    kernel: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool
) -> Contender:
    """A kernel of the lineage, without an allocation in what is timed. Raises ValueError where this card has
    none of that name."""
    from soak_kernels.device import architecture
    from soak_kernels.frame import dtype_name, shape_of

    shape = shape_of(q, k, v)
    used = _used(kernel, shape, dtype_name(q))
    config = used.plan(architecture(q.device), shape, causal=causal, dtype=dtype_name(q))
    rest: dict[str, Any] = {"causal": causal, "workspace": used.allocate(q, k, config)}
    calls: list[Call] = []
    used.forward(q, k, v, **rest, launch=calls.append)  # nothing is launched
    o, lse = used.forward(q, k, v, **rest)
    gradients = used.backward(q, k, v, o, lse, do, **rest)
    return Contender(
        lambda: used.forward(q, k, v, out=(o, lse), **rest),
        lambda: used.backward(q, k, v, o, lse, do, out=gradients, **rest),
        dict(zip(TENSORS, (o, lse, *gradients), strict=True)),
        max(call.n_programs for call in calls),
    )


def compare(kernels: Sequence[str], peers: Sequence[str], seq_len: int, causal: bool) -> list[Row]:
    """Everybody at one shape, float16, HEADS heads, TOKENS tokens, HEAD_DIM; ratios are to kernels[0]. Who
    does not run here has a row that says why."""
    import torch

    q, k, v, do = _inputs(TOKENS // seq_len, HEADS, seq_len, HEAD_DIM, torch.float16)
    found: dict[str, Contender] = {}
    rows: dict[str, Row] = {}
    for name in (*kernels, *peers):
        rows[name] = Row(name, name in kernels, seq_len, causal)
        begin = ours if name in kernels else peer
        try:
            found[name] = begin(name, q, k, v, do, causal)
        except Exception as error:  # noqa: BLE001 - each may fail to run here in any way; its row says how
            said = (str(error).splitlines() or [""])[0][:100]
            rows[name] = dataclasses.replace(rows[name], failed=f"{type(error).__name__}: {said}")
    forward_ms = milliseconds({name: each.forward for name, each in found.items()})
    backward_ms = milliseconds({name: each.backward for name, each in found.items()})
    shape = (TOKENS // seq_len, HEADS, seq_len, seq_len, HEAD_DIM)
    flops = forward_flops(*shape, causal=causal), backward_flops(*shape, causal=causal)
    for name, each in found.items():
        l2, largest = errors(q, k, v, do, causal, each.results)
        rows[name] = dataclasses.replace(
            rows[name],
            n_programs=each.n_programs,
            forward_tflops=flops[0] / forward_ms[name] / 1e9,
            backward_tflops=flops[1] / backward_ms[name] / 1e9,
            forward_ratio=forward_ms[name] / forward_ms.get(kernels[0], math.nan),
            backward_ratio=backward_ms[name] / backward_ms.get(kernels[0], math.nan),
            error=l2,
            largest_difference=largest,
        )
    return list(rows.values())


def errors(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
    results: dict[str, torch.Tensor],
) -> tuple[dict[str, float], dict[str, float]]:
    """Relative L2 and largest difference of each tensor in the last (batch, head)."""
    from soak_kernels.reference import reference_slice, relative_l2

    truth = reference_slice(q[-1, -1], k[-1, -1], v[-1, -1], do[-1, -1], causal=causal)
    l2, largest = {}, {}
    for name, x in results.items():
        true = getattr(truth, name)
        l2[name] = relative_l2(x[-1, -1], true)
        seen = true.isfinite()
        largest[name] = float((x[-1, -1].detach().double().cpu() - true)[seen].abs().max())
    return l2, largest


def peer(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool
) -> Contender:
    """The framework's own attention: "flash", "cudnn" or "flex". Raises RuntimeError, and what its compiler
    raises, where it does not run here."""
    import torch

    run = _flex(q.shape[2], causal) if name == "flex" else _scaled_dot_product(name, causal)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    o = run(q, k, v)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
    return Contender(
        lambda: run(q, k, v),
        lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True),
        {"o": o, "dq": dq, "dk": dk, "dv": dv},
    )


def _scaled_dot_product(name: str, causal: bool) -> Callable[..., torch.Tensor]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[name]

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return run


def _flex(seq_len: int, causal: bool) -> Callable[..., torch.Tensor]:
    """FlexAttention, compiled for this shape: seconds."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def visible(_b: Any, _h: Any, row: Any, key: Any) -> Any:
        return row >= key

    mask = create_block_mask(visible, None, None, seq_len, seq_len, device="cuda") if causal else None
    compiled: Any = torch.compile(flex_attention, dynamic=False)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        o: torch.Tensor = compiled(q, k, v, block_mask=mask)
        return o

    return run


def _tune(arch: str, seq_lens: Sequence[int], *, tell: bool) -> list[dict[str, Any]]:
    """Time each candidate tile of each pass; what does not compile or fit is left out, and said."""
    import torch

    best = []
    for seq_len in (seq_lens[0], seq_lens[-1]):
        for causal in (False, True):
            mask = "causal" if causal else "full"
            base = plan(arch, head_dim=HEAD_DIM, seq_len=seq_len, causal=causal)
            for pass_ in PASSES:
                timed = []
                for tile in candidates(arch, pass_):
                    config = _with_tile(base, pass_, tile)
                    try:
                        timed.append((_time_pass(config, pass_, seq_len, causal), tile.name))
                    except Exception as error:  # noqa: BLE001  (a candidate may fail to compile in any way)
                        torch.cuda.synchronize()
                        why = f"{type(error).__name__} {str(error).splitlines()[:1]}"
                        print(f"{pass_} {tile.name}: {why}", file=sys.stderr, flush=True)
                timed.sort()
                for ms, name in timed[:4]:
                    best.append(
                        {
                            "seq_len": seq_len,
                            "causal": causal,
                            "pass": pass_,
                            "tile": name,
                            "ms": ms,
                        }
                    )
                    if tell:
                        print(f"seq_len {seq_len} {mask:6} {pass_:8} {name:34} {ms:.3f} ms", flush=True)
    return best


def _with_tile(base: AttentionConfig, pass_: Pass, tile: TileConfig) -> AttentionConfig:
    changes: dict[str, Any] = {pass_: tile}
    return dataclasses.replace(base, **changes)


def candidates(arch: str, pass_: Pass) -> list[TileConfig]:
    """Tiles worth timing for head_dim 128, the product's among them."""
    product = getattr(plan(arch, head_dim=HEAD_DIM, seq_len=4096, causal=False), pass_)
    if arch.startswith("gfx"):
        chunks = [
            (m, n, qk, pv, w)
            for m, n in ((128, 32), (64, 32), (64, 64), (32, 64))
            for qk in (16, 32)
            for pv in (16, 32)
            for w in (4,)
        ]
        more = [TileConfig(m, n, qk, pv, True, w, 1) for m, n, qk, pv, w in chunks]
    else:
        sizes = ((128, 128, 8), (128, 64, 8), (128, 64, 4), (64, 128, 8), (64, 128, 4), (64, 64, 4))
        more = [
            TileConfig(m, n, HEAD_DIM, HEAD_DIM, False, w, stages)
            for m, n, w in sizes
            for stages in (2, 3, 4)
        ]
    return [product, *(tile for tile in more if tile != product)]


def _time_pass(config: AttentionConfig, pass_: Pass, seq_len: int, causal: bool) -> float:
    """Milliseconds of a forward, or of a backward in which only the tile of `pass_` differs between
    candidates."""
    import torch

    from soak_kernels import flash_v2

    q, k, v, do = _inputs(TOKENS // seq_len, HEADS, seq_len, HEAD_DIM, torch.float16)
    space = flash_v2.allocate(q, k, config)
    o, lse = flash_v2.forward(q, k, v, causal=causal, workspace=space)
    rest: dict[str, Any] = {"causal": causal, "workspace": space}
    if pass_ == "forward":
        launch: Callable[[], Any] = partial(flash_v2.forward, q, k, v, out=(o, lse), **rest)
    else:
        out = flash_v2.backward(q, k, v, o, lse, do, **rest)
        launch = partial(flash_v2.backward, q, k, v, o, lse, do, out=out, **rest)
    return milliseconds({pass_: launch})[pass_]


# --- output
# ----------------------------------------------------------------------------------------------------------


def _print(facts: dict[str, Any], rows: Sequence[Row]) -> None:
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    print(
        f"TFLOP/s, float16, {HEADS} heads, {TOKENS} tokens, head_dim {HEAD_DIM}; in brackets how many times "
        "as fast the first of each group is; relative L2 and largest difference from float64"
    )
    print(
        f"{'seq':>5} {'mask':6} {'kernel':13} {'programs':>8} {'forward':>15} {'backward':>15}"
        f" {'error':>8} {'largest':>8}"
    )
    for row in rows:
        where = f"{row.seq_len:5} {'causal' if row.causal else 'full':6} {row.name:13}"
        if row.failed:
            print(f"{where} {'':8} {row.failed}")
            continue
        error, largest = (
            max(x for name, x in each.items() if name != "lse")
            for each in (row.error, row.largest_difference)
        )
        forward = f"{row.forward_tflops:.1f} ({row.forward_ratio:.2f})"
        backward = f"{row.backward_tflops:.1f} ({row.backward_ratio:.2f})"
        n = "" if row.n_programs is None else row.n_programs
        print(f"{where} {n:>8} {forward:>15} {backward:>15} {error:8.1e} {largest:8.1e}")


if __name__ == "__main__":
    sys.exit(main())
