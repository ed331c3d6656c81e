"""Speed and accuracy of the attention kernels against torch's flash backend, on shapes that do not change.

    python -m soak_kernels.bench [--json FILE] [--kernel NAME] [--tune] [--quick]

First every shape is checked (against float64, bit for bit on repeats, no byte written outside); a red check
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from soak_kernels.environment import pin_compiler
from soak_kernels.flops import backward_flops, forward_flops
from soak_kernels.members import Operation
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


@dataclass(frozen=True)
class Contender:
    """Somebody's attention on given tensors. results: its o, dq, dk, dv, and lse where it has one."""

    forward: Callable[[], Any]
    backward: Callable[[], Any]
    results: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Row:
    """One shape: TFLOP/s (median of ROUNDS * REPEATS launches, backward counted as 2.5 forwards) and relative
    L2 against float64."""

    seq_len: int
    causal: bool
    forward_tflops: float
    backward_tflops: float
    torch_forward_tflops: float | None
    torch_backward_tflops: float | None
    error: dict[str, float]
    torch_error: dict[str, float] | None
    digest_ms: float
    digest_gb_per_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    """0: measured; 1: a check is red; 2: no GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m soak_kernels.bench", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--kernel", default="auto", metavar="NAME", help="auto, or a name of the lineage")
    parser.add_argument("--tune", action="store_true", help="time candidate tiles of each pass instead")
    parser.add_argument("--quick", action="store_true", help="the smallest and the largest shape only")
    options = parser.parse_args(arguments)
    pinned = pin_compiler(os.environ)
    import torch

    if not torch.cuda.is_available():
        print(
            "bench: torch sees no GPU; run it on a machine with one, with a torch built for it",
            file=sys.stderr,
        )
        return 2
    seq_lens = (SEQ_LENS[0], SEQ_LENS[-1]) if options.quick else SEQ_LENS
    red = _check(options.kernel, CHECK_SEQ_LENS)
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
        best = _tune(arch, seq_lens)
        _write(options.json, {**facts, "tiles": best})
        return 0
    rows = [_measure(options.kernel, seq_len, causal) for seq_len in seq_lens for causal in (False, True)]
    _write(options.json, {**facts, "rows": [dataclasses.asdict(row) for row in rows]})
    _print(facts, rows)
    return 0


# --- checks
# ----------------------------------------------------------------------------------------------------------


def _relative_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative L2; a truth of nothing but rounding (dQ and dK of a single key are 0) counts as its scale's
    ten-thousandth, since relative to 0 every result is wrong."""
    from soak_kernels.reference import relative_l2

    norm = float(truth.norm())
    floor = 1e-4 * math.sqrt(truth.numel())
    return relative_l2(result, truth) * norm / max(norm, floor) if norm > 0 else relative_l2(result, truth)


def _used(kernel: str, shape: Shape, dtype: str) -> Operation | None:
    """The operation of that name, or of the kernel that `auto` takes; None where this card or shape has none
    of that name."""
    import torch

    from soak_kernels.functional import card_of, proven
    from soak_kernels.members import operation

    device = torch.device("cuda", torch.cuda.current_device())
    try:
        return operation(proven(card_of(device), shape, device, dtype=dtype, kernel=kernel).kernel)
    except ValueError:
        return None


def _check(kernel: str, seq_lens: Sequence[int]) -> list[str]:
    """What is wrong, one line each: accuracy, repeatability, and NaN around every tensor, for the kernels
    that would run here."""
    red, n_checked = [], 0
    for dtype in ("float16", "bfloat16", "float32"):
        for head_dim in (64, 128):
            for seq_len in seq_lens if dtype == "float16" else seq_lens[:4]:
                used = _used(kernel, Shape(2, 2, 2, seq_len, seq_len, head_dim), dtype)
                for causal in (False, True):
                    if used is None:
                        continue
                    wrong = _check_one(used, seq_len, head_dim, causal, dtype)
                    mask = "causal" if causal else "full"
                    where = f"{used.name} {dtype} head_dim {head_dim} seq_len {seq_len} {mask}"
                    red += [f"{where}: {line}" for line in wrong]
                    n_checked += 1
    if not n_checked:
        red.append(f"{kernel} cannot run here")
    print(f"checked {kernel}: seq_len {', '.join(map(str, seq_lens))}; {len(red)} red", flush=True)
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

    for launch in launches.values():
        launch()
    torch.cuda.synchronize()
    times: dict[str, list[tuple[Any, Any]]] = {name: [] for name in launches}
    for _ in range(ROUNDS):
        for name, launch in launches.items():
            torch.cuda._sleep(LEAD_MS * CLOCK_KHZ)  # type: ignore[no-untyped-call]  # torch's
            launch()
            for _ in range(REPEATS):
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                start.record()
                launch()
                stop.record()
                times[name].append((start, stop))
            torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in each) for name, each in times.items()}


def _tflops(flops: float, milliseconds: float) -> float:
    return flops / milliseconds / 1e9


def ours(
    kernel: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool
) -> Contender:
    """A kernel of the lineage, without an allocation in what is timed. Raises ValueError where this card has
    none of that name."""
    from soak_kernels.device import architecture
    from soak_kernels.frame import dtype_name, shape_of

    shape = shape_of(q, k, v)
    used = _used(kernel, shape, dtype_name(q))
    if used is None:
        raise ValueError(f"kernel is {kernel!r}; legal: one that runs such tensors on this card")
    config = used.plan(architecture(q.device), shape, causal=causal, dtype=dtype_name(q))
    rest: dict[str, Any] = {"causal": causal, "workspace": used.allocate(q, k, config)}
    o, lse = used.forward(q, k, v, **rest)
    gradients = used.backward(q, k, v, o, lse, do, **rest)
    return Contender(
        lambda: used.forward(q, k, v, out=(o, lse), **rest),
        lambda: used.backward(q, k, v, o, lse, do, out=gradients, **rest),
        dict(zip(TENSORS, (o, lse, *gradients), strict=True)),
    )


def _measure(kernel: str, seq_len: int, causal: bool) -> Row:
    import torch

    from soak_kernels.digest import digest, digest_shape, digest_weights

    batch = TOKENS // seq_len
    q, k, v, do = _inputs(batch, HEADS, seq_len, HEAD_DIM, torch.float16)
    kernel_of_ours = ours(kernel, q, k, v, do, causal)
    digested = [x for name, x in kernel_of_ours.results.items() if name != "lse"]
    weights = digest_weights(seq_len, HEAD_DIM // 2, q.device)
    sums = torch.empty(digest_shape(digested[0]), dtype=torch.int64, device=q.device)
    launches: dict[str, Callable[[], Any]] = {
        "forward": kernel_of_ours.forward,
        "backward": kernel_of_ours.backward,
        "digest": lambda: [digest(x, weights=weights, out=sums) for x in digested],
    }
    theirs = _torch_flash(q, k, v, do, causal)
    if theirs is not None:
        launches |= {"their forward": theirs.forward, "their backward": theirs.backward}
    ms = milliseconds(launches)
    shape = (batch, HEADS, seq_len, seq_len, HEAD_DIM)
    forward, backward = forward_flops(*shape, causal=causal), backward_flops(*shape, causal=causal)
    gigabytes = len(digested) * q.numel() * q.element_size() / 1e9
    return Row(
        seq_len=seq_len,
        causal=causal,
        forward_tflops=_tflops(forward, ms["forward"]),
        backward_tflops=_tflops(backward, ms["backward"]),
        torch_forward_tflops=None if theirs is None else _tflops(forward, ms["their forward"]),
        torch_backward_tflops=None if theirs is None else _tflops(backward, ms["their backward"]),
        error=errors(q, k, v, do, causal, kernel_of_ours.results),
        torch_error=None if theirs is None else errors(q, k, v, do, causal, theirs.results),
        digest_ms=ms["digest"],
        digest_gb_per_s=gigabytes / ms["digest"] * 1e3,
    )


def errors(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
    results: dict[str, torch.Tensor],
) -> dict[str, float]:
    """Relative L2 of each tensor in the last (batch, head) slice."""
    from soak_kernels.reference import reference_slice, relative_l2

    truth = reference_slice(q[-1, -1], k[-1, -1], v[-1, -1], do[-1, -1], causal=causal)
    return {name: relative_l2(x[-1, -1], getattr(truth, name)) for name, x in results.items()}


def _torch_flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool
) -> Contender | None:
    """torch's flash backend; None where torch has none here."""
    try:
        return peer("flash", q, k, v, do, causal)
    except RuntimeError as error:
        print(f"torch's flash backend: {str(error).splitlines()[0]}", flush=True)
        return None


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


def _tune(arch: str, seq_lens: Sequence[int]) -> list[dict[str, Any]]:
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
                        print(
                            f"{pass_} {tile.name}: {type(error).__name__} {str(error).splitlines()[:1]}",
                            flush=True,
                        )
                timed.sort()
                for milliseconds, name in timed[:4]:
                    best.append(
                        {
                            "seq_len": seq_len,
                            "causal": causal,
                            "pass": pass_,
                            "tile": name,
                            "ms": milliseconds,
                        }
                    )
                    print(
                        f"seq_len {seq_len} {mask:6} {pass_:8} {name:34} {milliseconds:.3f} ms",
                        flush=True,
                    )
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


def _write(path: Path | None, figures: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(figures, indent=2) + "\n")


def _print(facts: dict[str, Any], rows: Sequence[Row]) -> None:
    def ratio(ours: float, theirs: float | None) -> str:
        return "" if theirs is None else f"{ours / theirs:.2f}x"

    def worst(error: dict[str, float] | None) -> str:
        return "" if error is None else f"{max(error[name] for name in ('o', 'dq', 'dk', 'dv')):.1e}"

    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    print(f"TFLOP/s, float16, {HEADS} heads, {TOKENS} tokens, head_dim {HEAD_DIM}; ratio to torch's flash")
    print(f"{'seq':>5} {'mask':6} {'fwd':>6} {'':>6} {'bwd':>6} {'':>6} {'error':>8} {'torch':>8}    digest")
    for row in rows:
        print(
            f"{row.seq_len:5} {'causal' if row.causal else 'full':6}"
            f" {row.forward_tflops:6.1f} {ratio(row.forward_tflops, row.torch_forward_tflops):>6}"
            f" {row.backward_tflops:6.1f} {ratio(row.backward_tflops, row.torch_backward_tflops):>6}"
            f" {worst(row.error):>8} {worst(row.torch_error):>8} {row.digest_gb_per_s:6.0f} GB/s"
        )


if __name__ == "__main__":
    sys.exit(main())
