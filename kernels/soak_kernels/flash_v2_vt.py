"""FlashAttention-2 with V transposed beforehand, [D, S]: for comparison with K's (`flash_v2_kt`).

The transpose is part of the operation and of its time. On cards without a matrix unit it spares the packing
of V's columns into pairs for the dot instruction. The kernels, and the backward, are those of flash_v2.py.
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
    """flash_v2's tiles, the forward's with V transposed."""
    config = flash_v2.plan(arch, shape, causal=causal, dtype=dtype, n_processors=n_processors)
    return replace(config, forward=replace(config.forward, v_transposed=True))
