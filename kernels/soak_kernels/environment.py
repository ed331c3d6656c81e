"""The compiler settings that a bitwise golden depends on, set by an explicit call and never at import."""

from __future__ import annotations

from collections.abc import MutableMapping

FP_FUSION = "TRITON_DEFAULT_FP_FUSION"


def pin_compiler(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Fix the Triton settings that change the bits of a result, and return what is now in force.

    Call it with `os.environ` before triton is imported. A value that the user has set is kept: it is theirs
    to choose, and the returned mapping is stored with the run, so that two runs with different settings are
    not compared.
    Fusing a * b + c into one rounding is Triton's default up to 3.9; 3.10 turns it off
    (github.com/triton-lang/triton).
    """
    environ.setdefault(FP_FUSION, "1")
    return {FP_FUSION: environ[FP_FUSION]}
