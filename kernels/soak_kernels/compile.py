"""What the compiler makes of every product configuration, without the card: registers, spills, scratch, LDS.

    python -m soak_kernels.compile gfx906

The compiler is given what the JIT would give it on the card: pointers aligned to 16 bytes and, on AMD,
tensors under 2 GB.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from soak_kernels import digest_kernels, flash_v2, frame
from soak_kernels.launch import Call
from soak_kernels.tuning import PASSES, POLICY, PRODUCT_HEAD_DIMS, TileConfig, choose

TRITON_OF_GFX906 = (3, 8)
_POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64", "int32": "*i32"}


@dataclass(frozen=True)
class CompiledKernel:
    """One compiled kernel. vgprs: registers a thread; spills: registers spilled (NVIDIA: instructions that
    store or load one); loop_spills: those of them in an innermost loop with matrix products, NVIDIA only;
    scratch_bytes: private memory a thread; lds_bytes: shared memory a workgroup; waves_per_simd: by registers
    alone, AMD only; dot2: v_dot2_f32_f16 in the text, AMD only (NVIDIA: wgmma). None: does not apply or was
    not read."""

    name: str
    arch: str
    role: str
    pass_: str
    head_dim: int | None
    causal: bool | None
    dtype: str
    config: str
    vgprs: int
    spills: int
    loop_spills: int | None
    scratch_bytes: int
    lds_bytes: int
    waves_per_simd: int | None
    dot2: int | None
    wgmma: int | None
    triton: str
    reason: str

    @property
    def is_spilling(self) -> bool:
        """Whether it goes through memory where it matters: in its loops, or where they were not read, at all.
        A register that is saved once per tile of the result costs nothing that can be measured."""
        return bool(self.spills or self.scratch_bytes) if self.loop_spills is None else self.loop_spills > 0

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON wants it: the key is `pass`, a word that Python keeps for itself."""
        row = dataclasses.asdict(self)
        return {("pass" if key == "pass_" else key): value for key, value in row.items()}


@dataclass(frozen=True)
class _Job:
    name: str
    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any]
    num_warps: int
    num_stages: int
    pass_: str
    head_dim: int | None
    causal: bool | None
    dtype: str
    config: str
    reason: str


def product_dtypes(arch: str) -> tuple[str, ...]:
    """The types for which `arch` has a tile of its own."""
    found = {dtype for rule in POLICY if rule.arch == arch for dtype in rule.dtypes}
    return tuple(sorted(found))


def compile_all(
    arch: str, *, dtypes: Iterable[str] = ("float16",), seq_len: int = 4096
) -> list[CompiledKernel]:
    """Compile every product kernel for `arch` ("gfx906", "sm_90"): three passes, both head dimensions, full
    and causal, and the small kernels around them. Takes seconds a kernel; Triton's cache makes a second call
    quick.

    Raises ValueError where this Triton cannot compile for the architecture or is in interpreter mode.
    """
    target = _target(arch)
    dtypes = tuple(dtypes)
    rows = [_compile(job, arch, target) for job in _jobs(arch, dtypes, seq_len)]
    return rows + (list(_hopper(dtypes)) if arch == "sm_90" else [])


def _hopper(dtypes: tuple[str, ...]) -> Iterable[CompiledKernel]:
    """flash_hopper's, from what its launchers launch; nothing where this Triton is too old for it."""
    from soak_kernels.members import MEMBERS

    if _triton_version() < (MEMBERS["flash_hopper"].triton or (0, 0)):
        return
    from soak_kernels import flash_hopper

    for dtype in dtypes:
        if dtype not in flash_hopper.DTYPES:
            continue
        for head_dim, config in flash_hopper.CONFIGS.items():
            for causal in (False, True):
                q = torch.empty((1, 1, 128, head_dim), dtype=getattr(torch, dtype))
                space, calls = flash_hopper.allocate(q, q, config), list[Call]()
                rest: dict[str, Any] = {"causal": causal, "workspace": space, "launch": calls.append}
                o, lse = flash_hopper.forward(q, q, q, **rest)
                flash_hopper.backward(q, q, q, o, lse, q, **rest)
                attention = [call for call in calls if call.kernel is not frame._preprocess_kernel]
                for pass_, call in zip(PASSES, attention, strict=True):
                    yield CompiledKernel(
                        name=f"flash_hopper-{pass_}-d{head_dim}-{'causal' if causal else 'full'}-{dtype}",
                        arch="sm_90",
                        role="product",
                        pass_=pass_,
                        head_dim=head_dim,
                        causal=causal,
                        dtype=dtype,
                        config=config.name,
                        triton=triton.__version__,
                        reason="; ".join(config.reasons),
                        **compile_call(call, "sm_90"),
                    )


def compile_first(arch: str, *, dtype: str = "float16") -> CompiledKernel:
    """Compile one forward kernel for `arch`: the quick answer to whether this Triton can. Raises what
    Triton raises, and ValueError as `compile_all`."""
    target = _target(arch)
    return _compile(next(iter(_jobs(arch, (dtype,), seq_len=1024))), arch, target)


def compile_call(call: Call, arch: str) -> dict[str, Any]:
    """Compile what a launcher would launch (`launch=calls.append` gathers it), for tensors like those of the
    call: vgprs, spills, scratch_bytes, ... as in `CompiledKernel`, and lds_bytes. Errors as `compile_all`."""
    target, kernel = _target(arch), call.kernel
    types = {name: _type_of(x) for name, x in call.arguments.items()}
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    nothing = {name: None for name, x in call.arguments.items() if x is None}
    source = _source_of(kernel)(
        kernel,
        signature,
        constexprs={**call.constants, **nothing},
        attrs=_attributes(kernel, signature, target),
    )
    compiled = triton.compile(source, target=target, options=call.options.as_keywords())
    return {**_facts(compiled, target), "lds_bytes": int(compiled.metadata.shared)}


def _source_of(kernel: Any) -> Any:
    """What the compiler takes of a kernel in Triton, or in Gluon."""
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource
    return ASTSource


def _type_of(x: Any) -> str:
    """Triton's name for the type of an argument."""
    if hasattr(x, "block_shape"):  # a tensor descriptor
        element = _POINTERS[str(x.base.dtype).removeprefix("torch.")].removeprefix("*")
        return f"tensordesc<{element}{list(x.block_shape)},{x.layout!r}>"
    if isinstance(x, torch.Tensor):
        return _POINTERS[str(x.dtype).removeprefix("torch.")]
    return "constexpr" if x is None else "fp32" if isinstance(x, float) else "i32"


def _triton_version() -> tuple[int, int]:
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def _target(arch: str) -> GPUTarget:
    if triton.knobs.runtime.interpret:
        raise ValueError("TRITON_INTERPRET is 1; legal: unset, since the interpreter has no compiler")
    if re.fullmatch(r"sm_\d+", arch):
        return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    if re.fullmatch(r"gfx[0-9a-f]+", arch):
        if arch == "gfx906" and _triton_version() < TRITON_OF_GFX906:
            raise ValueError(
                f"arch is gfx906 but Triton is {triton.__version__}; legal: Triton 3.8 and above"
            )
        return GPUTarget("hip", arch, 32 if arch.startswith("gfx1") else 64)
    raise ValueError(f"arch is {arch!r}; legal: sm_<number> or gfx<number>")


def _jobs(arch: str, dtypes: tuple[str, ...], seq_len: int) -> Iterable[_Job]:
    kernels = {"forward": flash_v2._forward_kernel, "dq": flash_v2._dq_kernel, "dkv": flash_v2._dkv_kernel}
    for dtype in dtypes:
        for pass_ in PASSES:
            for head_dim in PRODUCT_HEAD_DIMS:
                for causal in (False, True):
                    tile, reason = choose(
                        arch, head_dim=head_dim, seq_len=seq_len, causal=causal, pass_=pass_, dtype=dtype
                    )
                    yield _attention_job(kernels[pass_], pass_, head_dim, causal, dtype, tile, reason)
        for head_dim in PRODUCT_HEAD_DIMS:
            constants = {"DIM": head_dim, "HEAD_DIM": head_dim, "BLOCK": frame.PREPARE_BLOCK}
            for name, kernel in (
                ("preprocess", frame._preprocess_kernel),
                ("transpose", frame._transpose_kernel),
            ):
                yield _Job(
                    f"{name}-d{head_dim}-{dtype}", kernel, _signature(kernel, dtype, constants), constants,
                    frame.PREPARE_WARPS, 1, name, head_dim, None, dtype,
                    f"{frame.PREPARE_BLOCK} rows", "bound by memory",
                )  # fmt: skip
    for n_words in (1, 2, *(head_dim // 2 for head_dim in PRODUCT_HEAD_DIMS)):
        constants, kernel = digest_kernels.constants(n_words), digest_kernels._digest_kernel
        yield _Job(
            f"digest-w{n_words}", kernel, _signature(kernel, "float16", constants), constants,
            digest_kernels.NUM_WARPS, 1, "digest", None, None, "int32", f"{n_words} words", "bound by memory",
        )  # fmt: skip


def _attention_job(
    kernel: Any, pass_: str, head_dim: int, causal: bool, dtype: str, tile: TileConfig, reason: str
) -> _Job:
    square = {"seq_k": None, "pad_k": None, "group": None}  # what the load runs
    constants = {**flash_v2.constants(tile, head_dim, causal), **square}
    if pass_ == "forward":
        constants |= {"V_TRANSPOSED": tile.v_transposed, "p_vt": None}
    name = f"{pass_}-d{head_dim}-{'causal' if causal else 'full'}-{dtype}"
    signature = _signature(kernel, dtype, constants)
    return _Job(
        name,
        kernel,
        signature,
        constants,
        tile.num_warps,
        tile.num_stages,
        pass_,
        head_dim,
        causal,
        dtype,
        tile.name,
        reason,
    )


def _signature(kernel: Any, dtype: str, constants: dict[str, Any]) -> dict[str, str]:
    """Types by name: the house's names say what an argument is."""
    types = {}
    for name in kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        elif name == "p_lse":
            types[name] = "*fp64"
        elif name in ("p_high", "p_low", "p_delta"):
            types[name] = "*fp32"
        elif name == "p_words":
            types[name] = "*i32"
        elif name in ("p_digest", "p_golden", "p_mismatches", "p_row_weight", "p_word_weight"):
            types[name] = "*i64"
        elif name.startswith("p_"):
            types[name] = _POINTERS[dtype]
        else:
            types[name] = "fp32" if name.startswith("scale") else "i32"
    return types


def _compile(job: _Job, arch: str, target: GPUTarget) -> CompiledKernel:
    attributes = _attributes(job.kernel, job.signature, target)
    source = ASTSource(job.kernel, job.signature, constexprs=job.constants, attrs=attributes)
    compiled = triton.compile(
        source, target=target, options={"num_warps": job.num_warps, "num_stages": job.num_stages}
    )
    return CompiledKernel(
        name=job.name,
        arch=arch,
        role="product",
        pass_=job.pass_,
        head_dim=job.head_dim,
        causal=job.causal,
        dtype=job.dtype,
        config=job.config,
        lds_bytes=int(compiled.metadata.shared),
        triton=triton.__version__,
        reason=job.reason,
        **_facts(compiled, target),
    )


def _attributes(
    kernel: Any, signature: dict[str, str], target: GPUTarget
) -> dict[tuple[int, ...], list[list[Any]]]:
    """What the JIT would see of the arguments' values: aligned pointers, padded counts."""
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for i, name in enumerate(kernel.arg_names):
        if signature[name].startswith("*"):
            attributes[(i,)] = [["tt.divisibility", 16]]
            if target.backend == "hip":
                attributes[(i,)].append(["tt.pointer_range", 32])
        elif name in ("pad", "pad_q", "pad_k", "zero") and signature[name] != "constexpr":
            attributes[(i,)] = [["tt.divisibility", 16]]
    return attributes


def _facts(compiled: Any, target: GPUTarget) -> dict[str, Any]:
    if target.backend == "hip":
        return _amd_facts(compiled.asm["amdgcn"])
    return _nvidia_facts(compiled.asm["cubin"], compiled.asm["ptx"])


def _amd_facts(text: str) -> dict[str, Any]:
    def value(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", text)
        assert found is not None, f"no .{key} in the kernel's metadata"
        return int(found.group(1))

    vgprs = value("vgpr_count")
    return {
        "vgprs": vgprs,
        "spills": value("vgpr_spill_count") + value("sgpr_spill_count"),
        "loop_spills": None,
        "scratch_bytes": value("private_segment_fixed_size"),
        "waves_per_simd": min(
            10, 256 // max(4, -(-vgprs // 4) * 4)
        ),  # 256 registers a lane, given out by four
        "dot2": len(re.findall(r"\bv_dot2_f32_f16\b", text)),
        "wgmma": None,
    }


def _nvidia_facts(cubin: bytes, ptx: str) -> dict[str, Any]:
    """From the binary that would run, read with the cuobjdump that Triton ships."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "kernel.cubin"
        binary.write_bytes(cubin)
        usage = _output(tool, "--dump-resource-usage", binary)
        # Without local memory there is nothing to look for, and disassembling takes longer than compiling.
        code = _output(tool, "--dump-sass", binary) if re.search(r"\b(?:STACK|LOCAL):[1-9]", usage) else ""
    registers = re.search(r"\bREG:(\d+)", usage)
    stack = re.search(r"\bSTACK:(\d+)", usage)
    local = re.search(r"\bLOCAL:(\d+)", usage)
    assert registers is not None, "no resource usage in the binary"
    assert stack is not None
    assert local is not None
    return {
        "vgprs": int(registers.group(1)),
        "spills": len(_SPILL.findall(code)),
        "loop_spills": loop_spills(code),
        "scratch_bytes": int(stack.group(1)) + int(local.group(1)),
        "waves_per_simd": None,
        "dot2": None,
        "wgmma": len(re.findall(r"\bwgmma\.mma_async\b", ptx)),
    }


_SPILL = re.compile(r"\b(?:STL|LDL)\b")
_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);", re.MULTILINE)
_BACK = re.compile(r"^@\S+ BRA\b.*\b0x([0-9a-f]+)$")  # without a condition it returns from a wait out of line
_PRODUCT = re.compile(r"\b(?:HGMMA|HMMA)\b")


def loop_spills(code: str) -> int:
    """Instructions that spill or reload in the innermost loops of a disassembly that multiply matrices; where
    none does, in all innermost loops. (Around a product, waiting for a tile is a loop of its own.)"""
    lines = [(int(address, 16), text) for address, text in _INSTRUCTION.findall(code)]
    loops: list[tuple[int, int]] = []
    for address, text in lines:
        branch = _BACK.search(text.strip())
        if branch is not None and (begin := int(branch.group(1), 16)) < address:
            loops.append((begin, address))
    products = [at for at, text in lines if _PRODUCT.search(text)]
    multiplying = [(b, e) for b, e in loops if any(b <= at <= e for at in products)]
    loops = multiplying or loops
    innermost = [
        (begin, end)
        for begin, end in loops
        if not any((b, e) != (begin, end) and begin <= b and e <= end for b, e in loops)
    ]
    return sum(
        bool(_SPILL.search(text)) for at, text in lines if any(begin <= at <= end for begin, end in innermost)
    )


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of `compile_all` for each architecture named, or with --json a list; 0, 1 where a
    kernel spills in a loop (AMD: anywhere), 2 where this Triton cannot compile for one."""
    parser = argparse.ArgumentParser(
        prog="python -m soak_kernels.compile", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("arch", nargs="*", default=["gfx906", "sm_90"], help="sm_<number> or gfx<number>")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON instead of the table")
    options = parser.parse_args(arguments)
    try:
        rows = [row for arch in options.arch for row in compile_all(arch, dtypes=product_dtypes(arch))]
    except ValueError as error:
        print(f"compile: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps([row.as_dict() for row in rows], indent=1))
        return int(any(row.is_spilling for row in rows))
    print(
        f"{'arch':8}{'kernel':42}{'config':34}{'vgprs':>6}{'spills':>7}{'in loop':>8}{'scratch':>8}{'lds':>8}"
        f"{'dot2':>6}{'wgmma':>6}"
    )
    for row in rows:
        in_loop, dot2, wgmma = ("" if x is None else x for x in (row.loop_spills, row.dot2, row.wgmma))
        print(
            f"{row.arch:8}{row.name:42}{row.config:34}{row.vgprs:6}{row.spills:7}{in_loop:>8}"
            f"{row.scratch_bytes:8}{row.lds_bytes:8}{dot2:>6}{wgmma:>6}"
        )
    return int(any(row.is_spilling for row in rows))


if __name__ == "__main__":
    sys.exit(main())
