"""What the compiler child can do; runs without the interpreter (see conftest.py)."""

from __future__ import annotations

from typing import Any

from soak_kernels.compile import compile_all


def rows(arch: str) -> list[dict[str, Any]]:
    """Every product kernel of `arch` in the type of the product, float16."""
    return [row.as_dict() for row in compile_all(arch)]


def refusal(arch: str) -> str:
    try:
        compile_all(arch)
    except ValueError as error:
        return str(error)
    return "accepted"
