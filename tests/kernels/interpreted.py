"""What the interpreter child can do; runs with TRITON_INTERPRET=1 (see conftest.py). Results are plain
numbers."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from soak_kernels import attention, choose, copied, digest_kernels
from soak_kernels.digest import digest_shape, digest_torch, digest_weights
from soak_kernels.frame import shape_of
from soak_kernels.launch import Call, on_card
from soak_kernels.members import operation
from soak_kernels.preflight import wrong_on
from soak_kernels.reference import reference, relative_l2

# A row that sees no key has a sum of 0; NumPy computes the side of a `where` that is not taken, and remarks
# on it. Any other remark of NumPy's stays an error.
warnings.filterwarnings("ignore", "divide by zero encountered in (divide|log2)", RuntimeWarning)

GUARD = 4096  # poisoned elements on either side of a tensor
TENSORS = ("o", "lse", "dq", "dk", "dv")
NAN = float("nan")


class Guarded:
    """Tensors inside NaN: what is read outside them shows in the result, what is written there shows in
    `intact`."""

    def __init__(self) -> None:
        self._buffers: list[tuple[torch.Tensor, int]] = []

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = torch.Size(shape).numel()
        buffer = torch.full((size + 2 * GUARD,), NAN, dtype=dtype)
        self._buffers.append((buffer, size))
        return buffer[GUARD : GUARD + size].view(shape)

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return self.empty(tuple(x.shape), x.dtype).copy_(x)

    def scratch(self, space: Any) -> Any:
        """A workspace like this one, every tensor of it inside NaN and full of it."""
        changes = {}
        for field in dataclasses.fields(space):
            value = getattr(space, field.name)
            if isinstance(value, torch.Tensor):
                changes[field.name] = self.empty(tuple(value.shape), value.dtype)
            elif field.name == "backward" and dataclasses.is_dataclass(value):
                changes[field.name] = self.scratch(value)
        return dataclasses.replace(space, **changes)

    def intact(self) -> bool:
        return all(
            bool(buffer[:GUARD].isnan().all()) and bool(buffer[GUARD + size :].isnan().all())
            for buffer, size in self._buffers
        )


def _inputs(
    batch: int, heads: tuple[int, int], seq: tuple[int, int], head_dim: int, dtype: str, seed: int
) -> list[torch.Tensor]:
    """The product's recipe: q, k, v ~ N(0, 0.5^2), dO ~ N(0, 1)."""
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)

    def draw(n_heads: int, rows: int, sigma: float) -> torch.Tensor:
        return (torch.randn((batch, n_heads, rows, head_dim), generator=generator) * sigma).to(kind)

    (queries, keys), (seq_q, seq_k) = heads, seq
    return [
        draw(queries, seq_q, 0.5), draw(keys, seq_k, 0.5), draw(keys, seq_k, 0.5), draw(queries, seq_q, 1.0),
    ]  # fmt: skip


def _run(
    kernel: str,
    arch: str,
    inputs: list[torch.Tensor],
    causal: bool,
    guarded: Guarded,
    calls: list[Call] | None = None,
    scale: float | None = None,
) -> dict[str, torch.Tensor]:
    """Forward and backward with every tensor, the workspace too, inside NaN and full of it."""
    used = operation(kernel)
    q, k, v, do = (guarded.of(x) for x in inputs)
    config = used.plan(arch, shape_of(q, k, v), causal=causal, dtype=str(q.dtype).removeprefix("torch."))
    workspace = guarded.scratch(used.allocate(q, k, config))

    def launch(call: Call) -> None:
        if calls is not None:
            calls.append(call)
        on_card(call)

    rest: dict[str, Any] = {"causal": causal, "scale": scale, "workspace": workspace, "launch": launch}
    out = (guarded.empty(tuple(q.shape), q.dtype), guarded.empty(tuple(q.shape[:3]), torch.float64))
    o, lse = used.forward(q, k, v, out=out, **rest)
    assert o is out[0]
    assert lse is out[1]
    gradients = tuple(guarded.empty(tuple(x.shape), x.dtype) for x in (q, k, v))
    back = used.backward(q, k, v, o, lse, do, out=gradients, **rest)
    assert all(a is b for a, b in zip(back, gradients, strict=True))
    return dict(zip(TENSORS, (o, lse, *back), strict=True))


def compare_with_reference(
    kernel: str,
    arch: str,
    seq: list[int],
    head_dim: int,
    causal: bool,
    heads: list[int],
    batch: int = 1,
    dtype: str = "float16",
    repeat: bool = False,
) -> dict[str, Any]:
    """Relative L2 of each tensor (rows that see no key apart), what was written outside, and the constants of
    the kernels that ran."""
    inputs = _inputs(batch, (heads[0], heads[1]), (seq[0], seq[1]), head_dim, dtype, seed=sum(seq))
    guarded, calls = Guarded(), []
    results = _run(kernel, arch, inputs, causal, guarded, calls)
    truth = reference(*inputs, causal=causal)
    empty = truth.lse == -torch.inf
    answer: dict[str, Any] = {
        "errors": {
            "o": _error(results["o"], truth.o),
            "lse": _error(results["lse"][~empty], truth.lse[~empty]),
            "dq": _error(results["dq"], truth.dq),
            "dk": _error(results["dk"], truth.dk),
            "dv": _error(results["dv"], truth.dv),
        },
        "intact": guarded.intact(),
        "n_empty_rows": int(empty.sum()),
        "empty_rows_are_zero": bool((results["o"][empty] == 0).all() and (results["dq"][empty] == 0).all())
        and bool((results["lse"][empty] == -torch.inf).all()),
        "ran": [
            {"kernel": call.kernel.__name__, **{n: x for n, x in call.constants.items() if n.isupper()}}
            for call in calls
        ],
    }
    if repeat:
        again = _run(kernel, arch, inputs, causal, Guarded())
        answer["identical"] = all(_same_bits(results[name], again[name]) for name in TENSORS)
    return answer


def _error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative L2; where the truth is 0 or rounding (dQ and dK of a single key), absolute, a hundred times
    over."""
    if float(truth.norm()) < 1e-6 * max(truth.numel(), 1) ** 0.5:
        return 100 * float((result.double() - truth).abs().max())
    return relative_l2(result, truth)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a.contiguous().view(torch.int16) == b.contiguous().view(torch.int16)).all())


def neighbour_is_nan(kernel: str, arch: str, seq_len: int, causal: bool) -> dict[str, Any]:
    """Whether head 0 keeps its bits when head 1 turns into NaN, and whether head 1 then shows it
    everywhere."""
    inputs = _inputs(1, (2, 2), (seq_len, seq_len), 64, "float16", seed=1)
    clean = _run(kernel, arch, inputs, causal, Guarded())
    for x in inputs:
        x[:, 1] = NAN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # numpy remarks on the NaN that are the point
        poisoned = _run(kernel, arch, inputs, causal, Guarded())
    return {
        "head_0_same": all(_same_bits(clean[name][:, 0], poisoned[name][:, 0]) for name in TENSORS),
        "head_1_nan": all(bool(poisoned[name][:, 1].isnan().all()) for name in TENSORS),
    }


def extreme(kernel: str, kind: str, arch: str, seq_len: int, causal: bool) -> dict[str, Any]:
    """Scores at the ends of the type: relative L2 of o, lse, dv (dq and dk of equal rows are 0 and have no
    relative error)."""
    scale = None
    q, k, v, do = _inputs(1, (1, 1), (seq_len, seq_len), 128, "float16", seed=2)
    if kind == "largest":
        q, k, v = (torch.full_like(x, 65504.0) for x in (q, k, v))
    elif kind == "tiny":
        q, k, v = (x * 1e-8 for x in (q, k, v))
    elif kind == "mixed":
        q, k = ((x.float() * 4e4).clamp(-65504.0, 65504.0).to(x.dtype) for x in (q, k))
    elif kind == "one-huge-row":
        q[:, :, seq_len // 2] = 65504.0
    elif kind == "all-equal":
        q, k, v = (torch.full_like(x, 0.5) for x in (q, k, v))
    elif kind == "rounding":  # the maximum times the scale rounds up, the score times it fused does not
        q, k, v, do = _inputs(1, (1, 1), (seq_len, seq_len), 32, "float32", seed=2)
        for x in (q, k):
            x.zero_()[..., 0] = 133120.0
        scale = 0.25
    else:
        raise AssertionError(kind)
    results = _run(kernel, arch, [q, k, v, do], causal, Guarded(), scale=scale)
    truth = reference(q, k, v, do, causal=causal, scale=scale)
    answer: dict[str, Any] = {
        name: relative_l2(results[name], getattr(truth, name)) for name in ("o", "lse", "dv")
    }
    answer["finite"] = all(bool(x.isfinite().all()) for x in results.values())
    return answer


def autograd(kernel: str, causal: bool, scale: float | None, heads: list[int], layout: str) -> dict[str, Any]:
    """The public function's gradients, on inputs laid out as torch's users have them."""
    dtype = "float16" if kernel == "mi50_portable" else "float32"
    q, k, v, do = _inputs(1, (heads[0], heads[1]), (33, 40), 64, dtype, seed=3)
    if layout == "rows first":  # [B, S, H, D] in memory
        q, k, v, do = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, do))
    elif layout == "unaligned":
        q, k, v, do = (_shifted(x) for x in (q, k, v, do))
    elif layout == "expanded":
        k, v = (x[:, :1].expand_as(x) for x in (k, v))
    elif layout == "minus":
        q, k, v, do = (torch._neg_view(x.neg()) for x in (q, k, v, do))
    elif layout == "sliced":
        q, k, v, do = (torch.cat([x, torch.full_like(x, NAN)], -1)[..., :64] for x in (q, k, v, do))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o, lse = attention(
        *leaves, is_causal=causal, scale=scale, enable_gqa=heads[0] != heads[1], kernel=kernel,
        return_lse=True,
    )  # fmt: skip
    dq, dk, dv = torch.autograd.grad(o, leaves, do)
    truth = reference(q, k, v, do, causal=causal, scale=scale)
    pairs = {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv}
    return {
        "errors": {name: _error(x.detach(), getattr(truth, name)) for name, x in pairs.items()},
        "copied": list(copied(q=q, k=k, v=v)),
        "lse_has_no_gradient": not lse.requires_grad,
    }


def _shifted(x: torch.Tensor) -> torch.Tensor:
    """x at an address that is no multiple of 16, NaN before and after it."""
    buffer = torch.full((x.numel() + 2,), NAN, dtype=x.dtype)
    return buffer[1:-1].view(x.shape).copy_(x)


def choices() -> dict[str, Any]:
    """What `auto` and names come to here, in words."""
    q, k, v, _ = _inputs(1, (2, 2), (17, 17), 64, "float16", seed=4)
    return {
        "auto": str(choose(q, k, v)),
        "by name": str(choose(q, k, v, kernel="naive")),
        "preflight": wrong_on("flash_v1", q.device, 64, "float16"),
        "preflight of one that cannot": wrong_on("flash_v1", q.device, 100, "float16"),
    }


def refusals() -> dict[str, str]:
    """What each bad input of the public function is refused with; "accepted" where it is not."""
    q, k, v, _ = _inputs(1, (4, 4), (17, 17), 64, "float16", seed=4)
    wide = torch.randn(1, 4, 17, 100).half()
    changes = {
        "head_dim": {"q": wide, "k": wide, "v": wide},
        "integers": {"q": q.int(), "k": k.int(), "v": v.int()},
        "mixed dtype": {"k": k.float()},
        "empty batch": {"q": q[:0], "k": k[:0], "v": v[:0]},
        "no rows": {"q": q[:, :, :0]},
        "no keys": {"k": k[:, :, :0], "v": v[:, :, :0]},
        "k and v differ": {"v": v[:, :, :16]},
        "batches differ": {"k": k.repeat(2, 1, 1, 1), "v": v.repeat(2, 1, 1, 1)},
        "three dimensions": {"q": q[0], "k": k[0], "v": v[0]},
        "device": {"v": v.to("meta")},
        "heads not divisible": {"k": k[:, :3], "v": v[:, :3], "enable_gqa": True},
        "fewer heads": {"k": k[:, :2], "v": v[:, :2]},
        "all on meta": {name: x.to("meta") for name, x in (("q", q), ("k", k), ("v", v))},
        "no tensor": {"q": [[1.0]]},
        "nothing": {"v": None},
        "sparse": {"k": k.to_sparse()},
        "scale": {"scale": NAN},
        "negative scale": {"scale": -1.0},
        "scale that float32 does not hold": {"scale": 1e-46},
        "scale beyond float32": {"scale": 1e39},
        "scale in words": {"scale": "1"},
        "scale that is true": {"scale": True},
        "scale without a value": {"scale": torch.tensor(1.0, device="meta")},
        "is_causal in words": {"is_causal": "False"},
        "is_causal of many": {"is_causal": torch.tensor([True, False])},
        "enable_gqa": {"enable_gqa": 1},
        "return_lse": {"return_lse": None},
        "bfloat16 without a card": {name: x.bfloat16() for name, x in (("q", q), ("k", k), ("v", v))},
        "kernel that is no name": {"kernel": ["flash_v2"]},
        "unknown kernel": {"kernel": "flash_v9"},
        "kernel of another head_dim": {
            **{name: x[..., :32] for name, x in (("q", q), ("k", k), ("v", v))},
            "kernel": "mi50_portable",
        },
        "kernel without interpreter": {"kernel": "mi50"},
    }
    given = {"q": q, "k": k, "v": v}
    return {name: _refusal(lambda a={**given, **change}: attention(**a)) for name, change in changes.items()}


def refusals_of_members(kernel: str) -> dict[str, str]:
    """The same of a member's own forward and backward, which take what is laid out for them and nothing
    else."""
    used = operation(kernel)
    q, k, v, do = _inputs(1, (2, 2), (17, 17), 64, "float16", seed=4)
    config = used.plan("cpu", shape_of(q, k, v), causal=False, dtype="float16")
    space = used.allocate(q, k, config)
    o, lse = used.forward(q, k, v, causal=False)
    strided = v[:, :1].expand(1, 2, 17, 64)
    calls: list[Call] = []
    forward = {
        "strides": {"v": strided},
        "address": {"k": _shifted(k)},
        "lse": {"out": (o, lse.float())},
        "out is an input": {"out": (q, lse)},
        "out overlaps": {"out": (o, lse), "v": o},
        "overlapping strides of out": {"out": (strided, lse)},
    }
    answers = {}
    for name, change in forward.items():
        arguments: dict[str, Any] = {"q": q, "k": k, "v": v, **change}
        arguments |= {"causal": False, "launch": calls.append}
        tensors = [arguments.pop(x) for x in ("q", "k", "v")]
        answers[name] = _refusal(lambda t=tensors, a=arguments: used.forward(*t, **a))
    backward = {
        "do": {"do": do.bfloat16()},
        "rows of lse": {"lse": lse[:, :1]},
        "one gradient for two": {"out": (torch.empty_like(q), o, o)},
    }
    for name, change in backward.items():
        arguments = {"lse": lse, "do": do, "causal": False, "launch": calls.append, **change}
        tensors = [q, k, v, o, arguments.pop("lse"), arguments.pop("do")]
        answers[name] = _refusal(lambda t=tensors, a=arguments: used.backward(*t, **a))
    longer = torch.cat([q, q], 2)
    answers["workspace"] = _refusal(
        lambda: used.forward(longer, longer, longer, causal=False, workspace=space, launch=calls.append)
    )
    answers["launched"] = str(len(calls))
    return answers


def _refusal(call: Callable[[], Any]) -> str:
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
