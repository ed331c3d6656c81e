"""The assembly that Triton leaves in `.asm["amdgcn"]`, as instructions, labels, loops and the kernel's
metadata."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LABEL = re.compile(r"^([.A-Za-z_$][\w.$]*):")
_ENCODING = re.compile(r"_(e32|e64|dpp|sdwa)$")
_COMMA = re.compile(r",\s*(?![^\[]*\])")  # a comma outside brackets


@dataclass(frozen=True)
class Instruction:
    """One instruction. opcode: without the encoding's suffix (`v_add_f32`); encoding: "", "e32", "e64",
    "dpp", "sdwa"; operands in the order of the text (a destination first); modifiers: what follows the last
    operand, a flag has the value ""."""

    opcode: str
    encoding: str
    operands: tuple[str, ...]
    modifiers: Mapping[str, str]
    text: str

    def integer(self, modifier: str) -> int:
        """The value of a numeric modifier (`offset:16`), 0 where it is not given."""
        return int(self.modifiers.get(modifier, "0"), 0)


@dataclass(frozen=True)
class Argument:
    """A kernel argument in the argument segment: offset and size in bytes; pointer or value."""

    offset: int
    size: int
    pointer: bool


@dataclass(frozen=True)
class Program:
    """A kernel: its instructions (an index is an address here), the index of each label, and what its
    metadata says.

    vgprs, sgprs: registers; spills: registers of both kinds that the compiler spilled; scratch_bytes: private
    memory a lane; arguments: the argument segment, Triton's own last two included; kernarg_sgpr: the scalar
    register pair that holds the segment's address at the start; group_sgprs: the registers with the
    workgroup's x, y and z, None where the kernel does not ask for one."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    vgprs: int
    sgprs: int
    spills: int
    scratch_bytes: int
    arguments: tuple[Argument, ...]
    kernarg_bytes: int
    kernarg_sgpr: int
    group_sgprs: tuple[int | None, int | None, int | None]


@dataclass(frozen=True)
class Loop:
    """A loop as the range of its instructions, first to last inclusive; last is the branch back."""

    first: int
    last: int


def parse(text: str) -> Program:
    """The one kernel in an assembly text. ValueError where there is none."""
    name, body = _body(text)
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in body:
        code = line.split(";")[0].strip()
        label = _LABEL.match(code)
        if label:
            labels[label.group(1)] = len(instructions)
        elif code and not code.startswith("."):
            instructions.append(_instruction(code))
    kernarg_sgpr, group_sgprs = _entry_registers(text)
    return Program(
        name=name,
        instructions=tuple(instructions),
        labels=labels,
        vgprs=_metadata(text, "vgpr_count"),
        sgprs=_metadata(text, "sgpr_count"),
        spills=_metadata(text, "vgpr_spill_count") + _metadata(text, "sgpr_spill_count"),
        scratch_bytes=_metadata(text, "private_segment_fixed_size"),
        arguments=tuple(_arguments(text)),
        kernarg_bytes=_metadata(text, "kernarg_segment_size"),
        kernarg_sgpr=kernarg_sgpr,
        group_sgprs=group_sgprs,
    )


def loops(program: Program) -> list[Loop]:
    """The innermost loops, by their branches backwards."""
    found = []
    for i, instruction in enumerate(program.instructions):
        if instruction.opcode.startswith(("s_cbranch", "s_branch")):
            target = program.labels[instruction.operands[0]]
            if target <= i:
                found.append(Loop(target, i))
    merged: dict[int, int] = {}
    for loop in found:  # a loop may have several branches back
        merged[loop.first] = max(loop.last, merged.get(loop.first, 0))
    spans = [Loop(first, last) for first, last in sorted(merged.items())]
    return [
        loop
        for loop in spans
        if not any(other != loop and loop.first <= other.first and other.last <= loop.last for other in spans)
    ]


def main_loop(program: Program) -> Loop | None:
    """The loop over whole tiles: of the loops with dot products the one that compares least, since the others
    mask. None where no loop multiplies."""

    def cost(loop: Loop) -> tuple[int, int]:
        opcodes = [i.opcode for i in program.instructions[loop.first : loop.last + 1]]
        return sum(o.startswith(("v_cmp", "v_cndmask")) for o in opcodes), loop.first

    multiplying = [
        loop
        for loop in loops(program)
        if any(i.opcode == "v_dot2_f32_f16" for i in program.instructions[loop.first : loop.last + 1])
    ]
    return min(multiplying, key=cost, default=None)


def _body(text: str) -> tuple[str, list[str]]:
    """The kernel's name and the lines between its label and its end."""
    lines = text.splitlines()
    kernel = re.search(r"^\s*\.amdhsa_kernel\s+(\S+)", text, re.MULTILINE)
    if kernel is None:
        raise ValueError("the text has no .amdhsa_kernel; legal: the assembly of one kernel")
    name = kernel.group(1)
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{name}:"))
    end = next(i for i in range(start, len(lines)) if lines[i].startswith(".Lfunc_end"))
    return name, lines[start + 1 : end]


def _instruction(code: str) -> Instruction:
    mnemonic, _, rest = code.partition(" ")
    encoding = _ENCODING.search(mnemonic)
    opcode = _ENCODING.sub("", mnemonic)
    if opcode == "s_waitcnt":
        return Instruction(opcode, "", (), {}, code)
    operands = [part.strip() for part in _COMMA.split(rest)] if rest else []
    modifiers: dict[str, str] = {}
    if operands:
        words = operands[-1].split()
        if words and ":" in words[0] and "[" not in words[0].split(":")[0]:
            words = ["", *words]  # no operand at all, modifiers only
        operands[-1] = words[0] if words else ""
        for word in words[1:]:
            key, _, value = word.partition(":")
            modifiers[key] = value
        if not operands[-1]:
            operands.pop()
    return Instruction(opcode, encoding.group(1) if encoding else "", tuple(operands), modifiers, code)


def _metadata(text: str, key: str) -> int:
    found = re.search(rf"^\s+\.{key}:\s+(\d+)", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"the text has no .{key}; legal: assembly with its metadata")
    return int(found.group(1))


def _arguments(text: str) -> Iterator[Argument]:
    block = re.search(r"- \.args:\n(.*?)\n\s+\.group_segment_fixed_size", text, re.DOTALL)
    entries = re.split(r"\n\s+- ", "\n" + block.group(1)) if block else []
    for entry in entries:
        offset, size = (re.search(rf"\.{key}:\s+(\d+)", entry) for key in ("offset", "size"))
        kind = re.search(r"\.value_kind:\s+(\w+)", entry)
        if offset and size and kind:
            yield Argument(int(offset.group(1)), int(size.group(1)), kind.group(1) == "global_buffer")


def _entry_registers(text: str) -> tuple[int, tuple[int | None, int | None, int | None]]:
    """Where the hardware puts the argument segment's address and the workgroup's numbers, by the kernel
    descriptor."""

    def enabled(name: str) -> bool:
        return re.search(rf"\.amdhsa_{name}\s+1\b", text) is not None

    register = 0
    kernarg = 0
    for name, width in (
        ("user_sgpr_private_segment_buffer", 4),
        ("user_sgpr_dispatch_ptr", 2),
        ("user_sgpr_queue_ptr", 2),
        ("user_sgpr_kernarg_segment_ptr", 2),
        ("user_sgpr_dispatch_id", 2),
        ("user_sgpr_flat_scratch_init", 2),
        ("user_sgpr_private_segment_size", 1),
    ):
        if enabled(name):
            if name == "user_sgpr_kernarg_segment_ptr":
                kernarg = register
            register += width
    groups: list[int | None] = []
    for axis in "xyz":
        if enabled(f"system_sgpr_workgroup_id_{axis}"):
            groups.append(register)
            register += 1
        else:
            groups.append(None)
    return kernarg, (groups[0], groups[1], groups[2])
