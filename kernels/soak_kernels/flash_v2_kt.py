"""FlashAttention-2 with K transposed beforehand: Q K^T reads K^T as it lies in memory, [D, S].

The transpose is part of the operation and of its time. It pays where the compiler gives the right operand of
a product a layout with bank conflicts (plain Triton on gfx906, where `flash_v2` does it for every product of
the kind; float32 without tensor cores); matrix units take K either way. The kernels, and the backward, are
those of flash_v2.py.
"""

from __future__ import annotations

from dataclasses import replace

from soak_kernels import flash_v2
from soak_kernels.flash_v2 import allocate, backward, forward
from soak_kernels.shape import Shape
from soak_kernels.tuning import AttentionConfig

__all__ = ["allocate", "backward", "forward", "plan"]


def plan(
    arch: str, shape: Shape, *, causal: bool, dtype: str, n_processors: int | None = None
) -> AttentionConfig:
    """flash_v2's tiles, the forward's with K transposed."""
    config = flash_v2.plan(arch, shape, causal=causal, dtype=dtype, n_processors=n_processors)
    return replace(config, forward=replace(config.forward, transposed=True))
