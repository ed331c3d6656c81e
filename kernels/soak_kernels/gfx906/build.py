"""Triton source -> machine code of gfx906, without the card.

The compiler is given what the JIT would give it there: pointers aligned to 16 bytes, tensors under 2 GB, and
integers that are known to be multiples of 16 (padded row counts, the run-time zero). So the text is the code
that a card runs, where TRITON_DEFAULT_FP_FUSION is the same (`environment.pin_compiler`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from soak_kernels.gfx906.parse import Program, parse
from soak_kernels.launch import Call

ARCH = "gfx906"
WAVE = 64
FIRST_TRITON = (3, 8)
_TYPES = {"float16": "*fp16", "float32": "*fp32", "float64": "*fp64", "int32": "*i32", "int64": "*i64"}


Attributes = dict[tuple[int, ...], list[list[Any]]]


@dataclass(frozen=True)
class Build:
    """A compiled kernel: its assembly, read, and what a launch needs to know."""

    text: str
    program: Program
    arguments: tuple[str, ...]  # names, in the order of the signature, constants left out
    num_warps: int
    lds_bytes: int


def require_triton() -> None:
    """ValueError where this Triton has no gfx906, or only interprets."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    if version < FIRST_TRITON:
        raise ValueError(f"arch is {ARCH} but Triton is {triton.__version__}; legal: Triton 3.8 and above")
    if triton.knobs.runtime.interpret:
        raise ValueError("TRITON_INTERPRET is 1; legal: unset, since the interpreter has no compiler")


def build(call: Call) -> Build:
    """Compile the kernel of a call for gfx906; tensors may be anywhere, only their types count."""
    require_triton()
    kernel = call.kernel
    signature, attributes = specialization(call)
    source = _source(kernel)(kernel, signature, constexprs=dict(call.constants), attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("hip", ARCH, WAVE), options=call.options.as_keywords())
    text = compiled.asm["amdgcn"]
    return Build(
        text=text,
        program=parse(text),
        arguments=tuple(name for name in kernel.arg_names if name not in call.constants),
        num_warps=call.options.num_warps,
        lds_bytes=int(compiled.metadata.shared),
    )


def specialization(call: Call) -> tuple[dict[str, str], Attributes]:
    """What the compiler is told of a call's arguments: the type of each by name, and by position what is
    known of its value. Calls that agree in it, and in kernel, constants and options, share a build."""
    kernel = call.kernel
    signature: dict[str, str] = {}
    attributes: Attributes = {}
    for i, name in enumerate(kernel.arg_names):
        if name in call.constants:
            signature[name] = "constexpr"
            continue
        value = call.arguments[name]
        signature[name] = _type(value)
        if signature[name].startswith("*"):
            attributes[(i,)] = [["tt.divisibility", 16], ["tt.pointer_range", 32]]
        elif signature[name] == "i32" and i not in _unspecialized(kernel) and value % 16 == 0:
            attributes[(i,)] = [["tt.divisibility", 16]]
    return signature, attributes


def _type(value: Any) -> str:
    if isinstance(value, float):
        return "fp32"
    if isinstance(value, int):
        return "i32"
    return _TYPES[str(value.dtype).removeprefix("torch.")]


def _unspecialized(kernel: Any) -> set[int]:
    return {i for i, parameter in enumerate(kernel.params) if parameter.do_not_specialize}


def _source(kernel: Any) -> Any:
    if not getattr(kernel, "is_gluon", lambda: False)():
        return ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource  # absent before Triton 3.4

    return GluonASTSource
