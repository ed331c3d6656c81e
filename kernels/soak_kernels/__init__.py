"""Deterministic attention kernels in Triton, with their reference, tuning, flop counts and digests.

    from soak_kernels.environment import pin_compiler; pin_compiler(os.environ)   # before triton is imported
    from soak_kernels import attention
    o = attention(q, k, v, is_causal=True)

Importing this package imports nothing else: no torch, no triton, no device is touched. `attention`, `choose`
and `KERNELS` bring their module with them when they are first used. docs/kernels.md tells what there is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from soak_kernels.functional import KERNELS as KERNELS
    from soak_kernels.functional import attention as attention
    from soak_kernels.functional import choose as choose
    from soak_kernels.functional import copied as copied

_PUBLIC = ("KERNELS", "attention", "choose", "copied")


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module("soak_kernels.functional"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
