"""What the emulator child can do: kernels compiled for gfx906, their machine code executed, results against
float64."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from soak_kernels import mi50, mi50_frame, mi50_portable
from soak_kernels.gfx906.build import build, specialization
from soak_kernels.gfx906.configurations import configurations
from soak_kernels.gfx906.emulator import Emulator
from soak_kernels.gfx906.inspect import inspect_all
from soak_kernels.gfx906.launch import EmulatedCard, execute
from soak_kernels.gfx906.parse import main_loop
from soak_kernels.reference import relative_l2

FORWARD: dict[str, Callable[..., Any]] = {
    "mi50": mi50.mi50_forward,
    "mi50_portable": mi50_portable.mi50_portable_forward,
}
BACKWARD: dict[str, Callable[..., Any]] = {
    "mi50": mi50.mi50_backward,
    "mi50_portable": mi50_portable.mi50_portable_backward,
}
_CARD = EmulatedCard()  # of the whole session: it compiles each kernel once


def attention(
    *,
    kernel: str,
    head_dim: int,
    causal: bool,
    seq_q: int,
    seq_k: int | None = None,
    heads: int = 2,
    kv_heads: int = 2,
    seed: int = 0,
    scores: str = "recipe",
) -> dict[str, Any]:
    """Forward and backward on the emulated card, by the product's recipe; scores "largest": every q and k the
    largest float16; "mixed": of either sign and up to the largest."""
    seq_k = seq_q if seq_k is None else seq_k
    q, k, v, do = _inputs(heads, kv_heads, seq_q, seq_k, head_dim, seed)
    if scores == "largest":
        q, k = torch.full_like(q, 65504.0), torch.full_like(k, 65504.0)
    elif scores == "mixed":
        q, k = ((x.float() * 4e4).clamp(-65504.0, 65504.0).half() for x in (q, k))
    _CARD.findings.clear()
    outputs = _run(_CARD, kernel, q, k, v, do, causal)
    truth = _truth(q, k, v, do, causal)
    return {
        "findings": [f"{f.kind}: {f.text}" for f in _CARD.findings],
        "relative": {name: relative_l2(x, truth[name]) for name, x in outputs.items() if name != "lse"},
        "largest": {name: _largest(x, truth[name]) for name, x in outputs.items()},
        "finite": all(bool(x.isfinite().all()) for name, x in outputs.items() if name != "lse"),
    }


def over_read(*, kernel: str, pass_: str, planted: bool) -> list[str]:
    """Kinds of findings where the clamps of row numbers are taken out of one kernel's machine code."""

    def alter(name: str, text: str) -> str:
        return _without_clamps(text) if planted and name == f"_{pass_}_kernel" else text

    card = EmulatedCard(alter=alter)
    q, k, v, do = _inputs(1, 1, 130, 130, 64, 0)
    _run(card, kernel, q, k, v, do, False)
    return sorted({finding.kind for finding in card.findings})


def barriers(*, name: str) -> dict[str, Any]:
    """Each barrier of a configuration's main loop taken out of its machine code, one at a time: what is
    found."""
    (configuration,) = (c for c in configurations() if c.name == name)
    call = configuration.call()
    built = build(call)
    program = built.program
    loop = main_loop(program)
    assert loop is not None
    places = [n for n in range(loop.first, loop.last + 1) if program.instructions[n].opcode == "s_barrier"]

    def findings(without: int | None) -> dict[str, int]:
        instructions = tuple(
            replace(i, opcode="s_nop") if n == without else i for n, i in enumerate(program.instructions)
        )
        emulator = Emulator(replace(program, instructions=instructions))
        return dict(execute(emulator, built, call, workgroups=[(0, 0, 0)]).n_findings)

    return {
        "untouched": findings(None),
        "without": [findings(place).get("missing barrier", 0) for place in places],
    }


def same_build(*, pad_k: int) -> bool:
    """Whether a launch with other padding than a multiple of 128 shares the build of one with it."""
    call = next(c for c in configurations() if c.name == "mi50_portable-forward-d64-full").call()
    other = replace(call, arguments={**call.arguments, "pad_k": pad_k})
    return specialization(call) == specialization(other)


def rows(*, only: str) -> list[dict[str, Any]]:
    """The rows of `soak kernels inspect --arch gfx906` whose name contains `only`."""
    return [row.as_dict() for row in inspect_all(only, n_processes=os.cpu_count() or 1)]


def _inputs(
    heads: int, kv_heads: int, seq_q: int, seq_k: int, head_dim: int, seed: int
) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(n_heads: int, rows: int, sigma: float) -> torch.Tensor:
        return (torch.randn((1, n_heads, rows, head_dim), generator=generator) * sigma).half()

    return [
        draw(heads, seq_q, 0.5),
        draw(kv_heads, seq_k, 0.5),
        draw(kv_heads, seq_k, 0.5),
        draw(heads, seq_q, 1.0),
    ]


def _run(
    card: EmulatedCard,
    kernel: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
) -> dict[str, torch.Tensor]:
    """Every output and every scratch tensor full of NaN beforehand."""
    shape, _ = mi50_frame.checked(q, k, v, None)
    space = mi50_frame.allocate(q, shape, transposed=kernel == "mi50_portable")
    for x in vars(space).values():
        if isinstance(x, torch.Tensor):
            x.fill_(float("nan"))

    def poisoned(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.full_like(x, float("nan"), dtype=dtype)

    outputs = (poisoned(q), poisoned(q[..., 0].contiguous(), torch.float64))
    scratch = {"workspace": space} if kernel == "mi50_portable" else {}
    o, lse = FORWARD[kernel](q, k, v, causal=causal, out=outputs, launch=card, **scratch)
    gradients = (poisoned(q), poisoned(k), poisoned(v))
    BACKWARD[kernel](q, k, v, o, lse, do, causal=causal, out=gradients, workspace=space, launch=card)
    return dict(zip(("o", "lse", "dq", "dk", "dv"), (o, lse, *gradients), strict=True))


def _truth(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool
) -> dict[str, torch.Tensor]:
    """float64 by autograd over the explicit formula: causal at the bottom right, keys shared by groups of
    heads."""
    group = q.shape[1] // k.shape[1]
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    q64, k64, v64 = leaves[0], *(x.repeat_interleave(group, 1) for x in leaves[1:])
    s = q64 @ k64.transpose(-1, -2) * q.shape[-1] ** -0.5
    rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    visible = (keys <= rows + k.shape[2] - q.shape[2]) | torch.tensor(not causal)
    lse = torch.logsumexp(s.masked_fill(~visible, -torch.inf), -1)
    nothing = ~visible.any(1, keepdim=True)  # a row that sees no key
    p = torch.softmax(s.masked_fill(~(visible | nothing), -torch.inf), -1) * visible
    o = p @ v64
    gradients = torch.autograd.grad(o, leaves, do.double())
    return {"o": o.detach(), "lse": lse.detach(), **dict(zip(("dq", "dk", "dv"), gradients, strict=True))}


def _largest(x: torch.Tensor, truth: torch.Tensor) -> float:
    same = (x.double() == truth) | (x.isinf() & truth.isinf())
    return float(torch.where(same, 0.0, (x.double() - truth).abs()).max())


def _without_clamps(text: str) -> str:
    """The text with every lane's clamp of a row number undone: the minimum becomes the number itself."""
    changed, n = re.subn(r"\tv_min_i32_e32 (v\d+), [sv]\d+, (v\d+)\n", r"\tv_mov_b32_e32 \1, \2\n", text)
    assert n > 0
    return changed
