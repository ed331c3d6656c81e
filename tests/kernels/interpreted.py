"""What the interpreter child can do; runs with TRITON_INTERPRET=1 (see conftest.py). Results are plain
numbers."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from soak_kernels import attention as attention_module
from soak_kernels import digest_kernels
from soak_kernels.attention import allocate_workspace, attention, attention_backward, attention_forward
from soak_kernels.digest import digest_shape, digest_torch, digest_weights
from soak_kernels.reference import reference, relative_l2
from soak_kernels.tuning import AttentionConfig, TileConfig, plan

GUARD = 4096  # poisoned elements on either side of a tensor
TENSORS = ("o", "lse", "dq", "dk", "dv")


class Guarded:
    """Tensors inside NaN: what is read outside them shows in the result, what is written there shows in
    `intact`."""

    def __init__(self) -> None:
        self._buffers: list[tuple[torch.Tensor, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = torch.Size(shape).numel()
        buffer = torch.full((size + 2 * GUARD,), float("nan"), dtype=dtype)
        self._buffers.append((buffer, size))
        return buffer[GUARD : GUARD + size].view(shape)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return self.empty(tuple(x.shape), x.dtype).copy_(x)

    def intact(self) -> bool:
        return all(
            bool(buffer[:GUARD].isnan().all()) and bool(buffer[GUARD + size :].isnan().all())
            for buffer, size in self._buffers
        )


def _inputs(
    batch: int, heads: int, seq_len: int, head_dim: int, dtype: torch.dtype, seed: int
) -> list[torch.Tensor]:
    """The product's recipe: q, k, v ~ N(0, 0.5^2), dO ~ N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, heads, seq_len, head_dim)
    return [(torch.randn(shape, generator=generator) * sigma).to(dtype) for sigma in (0.5, 0.5, 0.5, 1.0)]


def _run(
    inputs: list[torch.Tensor], causal: bool, config: AttentionConfig, guarded: Guarded
) -> dict[str, torch.Tensor]:
    """Forward and backward with every tensor, the workspace too, inside NaN and full of it."""
    q, k, v, do = (guarded.of(x) for x in inputs)
    shape, dtype = tuple(q.shape), q.dtype
    plain = allocate_workspace(q, config)
    parts = {
        name: guarded.empty(tuple(x.shape), x.dtype)
        for name in ("high", "low", "delta", "k_t", "v_t", "q_t", "do_t")
        if (x := getattr(plain, name)) is not None
    }
    workspace = type(plain)(
        seq_pad=plain.seq_pad, **{"k_t": None, "v_t": None, "q_t": None, "do_t": None, **parts}
    )
    out = (guarded.empty(shape, dtype), guarded.empty(shape[:3], torch.float64))
    o, lse = attention_forward(q, k, v, causal=causal, config=config, out=out, workspace=workspace)
    assert o is out[0]
    assert lse is out[1]
    gradients = tuple(guarded.empty(shape, dtype) for _ in range(3))
    back = attention_backward(
        q, k, v, o, lse, do, causal=causal, config=config, out=gradients, workspace=workspace
    )
    assert all(a is b for a, b in zip(back, gradients, strict=True))
    return dict(zip(TENSORS, (o, lse, *back), strict=True))


class _Recorder:
    """Stands in for a kernel, notes the constants that it was launched with, and launches it."""

    def __init__(self, kernel: Any, launches: list[dict[str, Any]]) -> None:
        self._kernel, self._launches = kernel, launches

    def __getitem__(self, grid: Any) -> Any:
        def launch(**arguments: Any) -> None:
            self._launches.append(
                {key: value for key, value in arguments.items() if key.isupper() or key.startswith("num")}
            )
            self._kernel[grid](**arguments)

        return launch


def compare_with_reference(
    arch: str,
    batch: int,
    heads: int,
    seq_len: int,
    head_dim: int,
    causal: bool,
    dtype: str = "float16",
    repeat: bool = False,
) -> dict[str, Any]:
    """Relative L2 of each tensor, what was written outside, and the tiles that ran."""
    inputs = _inputs(batch, heads, seq_len, head_dim, getattr(torch, dtype), seed=seq_len)
    config = plan(arch, head_dim=head_dim, seq_len=seq_len, causal=causal, dtype=dtype)
    launches: dict[str, list[dict[str, Any]]] = {name: [] for name in ("forward", "dq", "dkv")}
    kernels = {name: getattr(attention_module, f"_{name}_kernel") for name in launches}
    guarded = Guarded()
    for name, kernel in kernels.items():
        setattr(attention_module, f"_{name}_kernel", _Recorder(kernel, launches[name]))
    try:
        results = _run(inputs, causal, config, guarded)
    finally:
        for name, kernel in kernels.items():
            setattr(attention_module, f"_{name}_kernel", kernel)
    truth = reference(*inputs, causal=causal)
    answer: dict[str, Any] = {name: relative_l2(results[name], getattr(truth, name)) for name in TENSORS}
    answer["intact"] = guarded.intact()
    answer["ran"] = {name: _ran(launches[name]) for name in launches}
    if repeat:
        again = _run(inputs, causal, config, Guarded())
        answer["identical"] = all(_same_bits(results[name], again[name]) for name in TENSORS)
    return answer


def _ran(launches: list[dict[str, Any]]) -> str:
    (launch,) = launches
    return TileConfig(
        block_m=launch["BLOCK_M"],
        block_n=launch["BLOCK_N"],
        chunk_qk=launch["CHUNK_QK"],
        chunk_pv=launch["CHUNK_PV"],
        transposed=launch["TRANSPOSED"],
        num_warps=launch["num_warps"],
        num_stages=launch["num_stages"],
    ).name


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a.contiguous().view(torch.int16) == b.contiguous().view(torch.int16)).all())


def neighbour_is_nan(arch: str, seq_len: int, causal: bool) -> dict[str, Any]:
    """Whether head 0 keeps its bits when head 1 turns into NaN, and whether head 1 then shows it
    everywhere."""
    inputs = _inputs(1, 2, seq_len, 64, torch.float16, seed=1)
    config = plan(arch, head_dim=64, seq_len=seq_len, causal=causal)
    clean = _run(inputs, causal, config, Guarded())
    for x in inputs:
        x[:, 1] = float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy remarks on the NaN that are the point
        poisoned = _run(inputs, causal, config, Guarded())
    return {
        "head_0_same": all(_same_bits(clean[name][:, 0], poisoned[name][:, 0]) for name in TENSORS),
        "head_1_nan": all(bool(poisoned[name][:, 1].isnan().all()) for name in TENSORS),
    }


def extreme(kind: str, arch: str, seq_len: int, causal: bool) -> dict[str, Any]:
    """Scores at the ends of fp16: relative L2 of o, lse, dv (dq and dk of equal rows are 0 and have no
    relative error)."""
    q, k, v, do = _inputs(1, 1, seq_len, 128, torch.float16, seed=2)
    if kind == "largest":
        q, k, v = (torch.full_like(x, 65504.0) for x in (q, k, v))
    elif kind == "tiny":
        q, k, v = (x * 1e-8 for x in (q, k, v))
    elif kind == "mixed":
        q, k = ((x.float() * 4e4).clamp(-65504.0, 65504.0).to(x.dtype) for x in (q, k))
    elif kind == "one-huge-row":
        q[:, :, seq_len // 2] = 65504.0
    else:
        raise AssertionError(kind)
    config = plan(arch, head_dim=128, seq_len=seq_len, causal=causal)
    results = _run([q, k, v, do], causal, config, Guarded())
    truth = reference(q, k, v, do, causal=causal)
    answer: dict[str, Any] = {
        name: relative_l2(results[name], getattr(truth, name)) for name in ("o", "lse", "dv")
    }
    answer["finite"] = all(bool(x.isfinite().all()) for x in results.values())
    return answer


def autograd(causal: bool, scale: float | None) -> dict[str, float]:
    """The public function's gradients, on inputs that are not contiguous."""
    q, k, v, do = _inputs(1, 2, 33, 64, torch.float32, seed=3)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v))
    o = attention(q, k, v, is_causal=causal, scale=scale)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
    truth = reference(q, k, v, do, causal=causal, scale=scale)
    pairs = {"o": o, "dq": dq, "dk": dk, "dv": dv}
    return {name: relative_l2(x, getattr(truth, name)) for name, x in pairs.items()}


def refusals() -> dict[str, str]:
    """What each bad input is refused with; "accepted" where it is not."""
    q, k, v, do = _inputs(1, 2, 17, 64, torch.float16, seed=4)
    config = plan("cpu", head_dim=64, seq_len=17, causal=False)
    o, lse = attention_forward(q, k, v, causal=False, config=config)
    other = plan("gfx906", head_dim=64, seq_len=17, causal=False)
    wide = torch.randn(1, 2, 17, 96).half()
    forward = {
        "head_dim": {"q": wide, "k": wide, "v": wide},
        "dtype": {"q": q.int(), "k": k.int(), "v": v.int()},
        "mixed dtype": {"k": k.float()},
        "empty batch": {"q": q[:0], "k": k[:0], "v": v[:0]},
        "no rows": {"q": q[:, :, :0], "k": k[:, :, :0], "v": v[:, :, :0]},
        "other shape": {"k": k[:, :, :16].contiguous()},
        "three dimensions": {"q": q[0], "k": k[0], "v": v[0]},
        "strides": {"v": v[:, :1].expand(1, 2, 17, 64)},
        "device": {"v": v.to("meta")},
        "scale": {"scale": float("nan")},
        "negative scale": {"scale": -1.0},
        "out": {"out": (o, lse.float())},
        "workspace": {"config": other, "workspace": allocate_workspace(q, config)},
    }
    answers = {}
    for name, changes in forward.items():
        arguments: dict[str, Any] = {"q": q, "k": k, "v": v, "causal": False, "config": config, **changes}
        tensors = [arguments.pop(x) for x in ("q", "k", "v")]
        answers[name] = _refusal(lambda t=tensors, a=arguments: attention_forward(*t, **a))
    answers["do"] = _refusal(
        lambda: attention_backward(q, k, v, o, lse, do.bfloat16(), causal=False, config=config)
    )
    answers["lse"] = _refusal(
        lambda: attention_backward(q, k, v, o, lse[:, :1], do, causal=False, config=config)
    )
    answers["public"] = _refusal(lambda: attention(wide, wide, wide))
    return answers


def _refusal(call: Any) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "accepted"


def digest_paths(shape: list[int], dtype: str) -> bool:
    """Whether the Triton kernel and torch give the same digest of arbitrary bits, NaN patterns included."""
    generator = torch.Generator().manual_seed(5)
    size = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), generator=generator, dtype=torch.uint8)
    x = raw.view(getattr(torch, dtype)).view(shape)
    n_words = (shape[3] if len(shape) == 4 else 1) * size // 4
    weights = digest_weights(shape[2] + 300, n_words, "cpu")
    out = torch.full(digest_shape(x), -1, dtype=torch.int64)
    digest_kernels.launch_digest(
        x.view(torch.int32), weights.rows, weights.words, out, n_rows=shape[2], n_words=n_words
    )
    return bool((out == digest_torch(x, weights)).all())


def compare_counts(n: int, differing: int) -> int:
    """What the compare kernel counts in two calls on top of 5."""
    golden = torch.arange(n, dtype=torch.int64).reshape(1, n)
    digests = golden.clone()
    digests[0, n - differing :] ^= 1 << 62
    mismatches = torch.tensor([5], dtype=torch.int64)
    digest_kernels.launch_compare(digests, golden, mismatches)
    digest_kernels.launch_compare(digests, golden, mismatches)
    return int(mismatches[0])
