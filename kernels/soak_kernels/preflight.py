"""Whether a kernel is right on the card that is here: a short run, forward and backward, against float64."""

from __future__ import annotations

from functools import lru_cache

import torch

from soak_kernels.device import architecture
from soak_kernels.frame import shape_of
from soak_kernels.members import operation
from soak_kernels.reference import reference, relative_l2

SEQ_LEN = 130  # a whole block, and a tail
HEADS = 2
LIMITS = {"o": 1e-3, "lse": 1e-3, "dq": 2e-3, "dk": 2e-3, "dv": 2e-3}  # relative L2, float16 and float32
BFLOAT16_FACTOR = 8.0  # rounding 2^-8 against 2^-11
_TENSORS = ("o", "lse", "dq", "dk", "dv")


@lru_cache(maxsize=64)
def wrong_on(name: str, device: torch.device, head_dim: int, dtype: str) -> str | None:
    """What went wrong when this kernel ran on this device, in one sentence; None where it was right, full and
    causal, twice with the same bits. Remembered, but for what is no finding: memory that others have raises
    torch.OutOfMemoryError, a first trial while a CUDA graph is captured RuntimeError."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{name} was not tried on {device} yet; call it once before a graph is captured")
    try:
        for causal in (False, True):
            wrong = _compared(name, device, head_dim, dtype, causal)
            if wrong is not None:
                return wrong
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a compiler raises whatever its stages raise, a card what it can
        first = (str(error).strip().splitlines() or [""])[0][:200]
        return f"it does not run here ({type(error).__name__}: {first})"
    return None


def _compared(name: str, device: torch.device, head_dim: int, dtype: str, causal: bool) -> str | None:
    used, kind = operation(name), getattr(torch, dtype)
    generator = torch.Generator().manual_seed(head_dim)
    size = (1, HEADS, SEQ_LEN, head_dim)
    q, k, v, do = ((torch.randn(size, generator=generator) * s).to(kind) for s in (0.5, 0.5, 0.5, 1.0))
    on_card = [x.to(device) for x in (q, k, v, do)]
    runs = []
    for _ in range(2):
        q_, k_, v_, do_ = on_card
        config = used.plan(architecture(device), shape_of(q_, k_, v_), causal=causal, dtype=dtype)
        space = used.allocate(q_, k_, config)
        o, lse = used.forward(q_, k_, v_, causal=causal, workspace=space)
        gradients = used.backward(q_, k_, v_, o, lse, do_, causal=causal, workspace=space)
        runs.append([x.cpu() for x in (o, lse, *gradients)])
    truth = reference(q, k, v, do, causal=causal)
    mask = "causal" if causal else "full"
    for tensor, first, again in zip(_TENSORS, *runs, strict=True):
        limit = LIMITS[tensor] * (BFLOAT16_FACTOR if dtype == "bfloat16" else 1.0)
        error = relative_l2(first, getattr(truth, tensor))
        if not error < limit:  # NaN is wrong
            return f"its {tensor} was wrong here ({mask}: relative L2 {error:.1e}, limit {limit:.0e})"
        if not torch.equal(first.view(torch.int16), again.view(torch.int16)):
            return f"its {tensor} had other bits when it ran again ({mask})"
    return None
