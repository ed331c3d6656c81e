"""Speed and accuracy of the attention kernels against torch's flash backend, on shapes that do not change.

    python -m soak_kernels.bench [--json FILE] [--tune] [--quick]

First every shape is checked (against float64, bit for bit on repeats, no byte written outside); a red check
ends the program with 1 and no figure is shown. `--tune` times the candidate tiles of each pass and prints the
best. The table comes last.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from soak_kernels.environment import pin_compiler
from soak_kernels.flops import backward_flops, forward_flops
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
REPEATS = 20
TENSORS = ("o", "lse", "dq", "dk", "dv")


@dataclass(frozen=True)
class Row:
    """One shape: TFLOP/s (median of REPEATS launches, backward counted as 2.5 forwards) and relative L2
    against float64."""

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
    red = _check(CHECK_SEQ_LENS)
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
    rows = [_measure(arch, seq_len, causal) for seq_len in seq_lens for causal in (False, True)]
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


def _check(seq_lens: Sequence[int]) -> list[str]:
    """What is wrong, one line each: accuracy, repeatability, and NaN around every tensor, for the kernels
    that would run here."""
    import torch

    from soak_kernels.device import architecture

    arch = architecture(torch.device("cuda"))
    red = []
    for dtype in ("float16", "bfloat16", "float32"):
        for head_dim in (64, 128):
            for seq_len in seq_lens if dtype == "float16" else seq_lens[:4]:
                for causal in (False, True):
                    config = plan(arch, head_dim=head_dim, seq_len=seq_len, causal=causal, dtype=dtype)
                    wrong = _check_one(config, seq_len, head_dim, causal, dtype)
                    mask = "causal" if causal else "full"
                    red += [
                        f"{arch} {dtype} head_dim {head_dim} seq_len {seq_len} {mask}: {line}"
                        for line in wrong
                    ]
    print(f"checked {arch}: seq_len {', '.join(map(str, seq_lens))}; {len(red)} red", flush=True)
    return red


def _check_one(config: AttentionConfig, seq_len: int, head_dim: int, causal: bool, dtype: str) -> list[str]:
    import torch

    from soak_kernels import flash_v2
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
    runs = []
    for _ in range(3):
        out = (guarded(tuple(q.shape), kind), guarded(tuple(q.shape[:3]), torch.float64))
        gradients = (
            guarded(tuple(q.shape), kind),
            guarded(tuple(q.shape), kind),
            guarded(tuple(q.shape), kind),
        )
        space = flash_v2.allocate(q, k, config)
        for x in (space.high, space.low, space.delta, space.k_t, space.v_t, space.q_t, space.do_t):
            if x is not None:
                x.fill_(float("nan"))
        o, lse = flash_v2.forward(q, k, v, causal=causal, out=out, workspace=space)
        back = flash_v2.backward(q, k, v, o, lse, do, causal=causal, out=gradients, workspace=space)
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


def _milliseconds(launch: Callable[[], Any], repeats: int = REPEATS) -> float:
    """The median over launches, each between two events, with 5 to warm up."""
    import torch

    for _ in range(5):
        launch()
    times: list[float] = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        launch()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return statistics.median(times)


def _tflops(flops: float, milliseconds: float) -> float:
    return flops / milliseconds / 1e9


def _measure(arch: str, seq_len: int, causal: bool) -> Row:
    import torch

    from soak_kernels import flash_v2
    from soak_kernels.digest import digest, digest_shape, digest_weights

    batch = TOKENS // seq_len
    q, k, v, do = _inputs(batch, HEADS, seq_len, HEAD_DIM, torch.float16)
    config = plan(arch, head_dim=HEAD_DIM, seq_len=seq_len, causal=causal)
    space = flash_v2.allocate(q, k, config)
    o, lse = flash_v2.forward(q, k, v, causal=causal, workspace=space)
    gradients = flash_v2.backward(q, k, v, o, lse, do, causal=causal, workspace=space)

    def forward() -> None:
        flash_v2.forward(q, k, v, causal=causal, out=(o, lse), workspace=space)

    def backward() -> None:
        flash_v2.backward(q, k, v, o, lse, do, causal=causal, out=gradients, workspace=space)

    shape = (batch, HEADS, seq_len, seq_len, HEAD_DIM)
    forward_tflops = _tflops(forward_flops(*shape, causal=causal), _milliseconds(forward))
    backward_tflops = _tflops(backward_flops(*shape, causal=causal), _milliseconds(backward))
    error = _errors(q, k, v, do, causal, dict(zip(TENSORS, (o, lse, *gradients), strict=True)))

    weights = digest_weights(seq_len, HEAD_DIM // 2, q.device)
    sums = torch.empty(digest_shape(o), dtype=torch.int64, device=q.device)
    digest_ms = _milliseconds(lambda: [digest(x, weights=weights, out=sums) for x in (o, *gradients)])
    gigabytes = 4 * o.numel() * o.element_size() / 1e9
    peer = _torch_flash(q, k, v, do, causal)
    return Row(
        seq_len=seq_len,
        causal=causal,
        forward_tflops=forward_tflops,
        backward_tflops=backward_tflops,
        torch_forward_tflops=peer and _tflops(forward_flops(*shape, causal=causal), peer[0]),
        torch_backward_tflops=peer and _tflops(backward_flops(*shape, causal=causal), peer[1]),
        error=error,
        torch_error=peer and _errors(q, k, v, do, causal, peer[2]),
        digest_ms=digest_ms,
        digest_gb_per_s=gigabytes / digest_ms * 1e3,
    )


def _errors(
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
) -> tuple[float, float, dict[str, torch.Tensor]] | None:
    """Milliseconds forward and backward, and the results, of torch's flash backend; None where torch has none
    here."""
    try:
        return peer("flash", q, k, v, do, causal)
    except RuntimeError as error:
        print(f"torch's flash backend: {str(error).splitlines()[0]}", flush=True)
        return None


def peer(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool
) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Milliseconds forward and backward, and the results, of the framework's own attention: "flash", "cudnn"
    or "flex". Raises RuntimeError, and what its compiler raises, where it does not run here."""
    import torch

    run = _flex(q.shape[2], causal) if name == "flex" else _scaled_dot_product(name, causal)
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    o = run(q, k, v)
    forward_ms = _milliseconds(lambda: run(q, k, v))
    backward_ms = _milliseconds(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True))
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
    return forward_ms, backward_ms, {"o": o, "dq": dq, "dk": dk, "dv": dv}


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
    if pass_ == "forward":
        return _milliseconds(lambda: flash_v2.forward(q, k, v, causal=causal, out=(o, lse), workspace=space))
    out = flash_v2.backward(q, k, v, o, lse, do, causal=causal, workspace=space)
    return _milliseconds(
        lambda: flash_v2.backward(q, k, v, o, lse, do, causal=causal, out=out, workspace=space)
    )


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
