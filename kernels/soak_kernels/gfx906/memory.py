"""Global memory: the tensors of a launch, with forbidden ground between them, and the loads and stores that
reach them.

A read outside every tensor gives all ones (NaN in each float type) and is reported; a write there is dropped
and reported. Buffer instructions beyond their descriptor's num_records read 0 and write nothing, as the card
does, without a report: that is their contract.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from soak_kernels.gfx906 import operands
from soak_kernels.gfx906.machine import LANES, Bool, EmulationError, Index, Waves
from soak_kernels.gfx906.parse import Instruction

Step = Callable[[Waves], None]

BASE = 0x7000_0000_0000  # where the first tensor lies: above 32 bits, so that a cut address shows
GAP = 1 << 16  # forbidden bytes before, between and after tensors
_WIDTHS = {
    "dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "ushort": 2, "short": 2, "sshort": 2, "ubyte": 1,
    "sbyte": 1, "byte": 1,
}  # fmt: skip
_NAME = re.compile(r"(?:buffer|global)_(load|store)_(dword(?:x\d)?|[us]?short|[us]?byte)(_d16_hi|_d16)?")


class Memory:
    """The tensors of one launch, each at an address of its own."""

    def __init__(self, tensors: Sequence[np.ndarray[Any, Any]]) -> None:
        self._tensors = list(tensors)
        starts, end = [], GAP
        for tensor in tensors:
            starts.append(end)
            end += -(-tensor.nbytes // 256) * 256 + GAP
        self._starts = np.array([*starts, end], np.int64)
        self._ends = np.array(
            [start + t.nbytes for start, t in zip(starts, tensors, strict=True)] + [end], np.int64
        )
        self._bytes = np.full(end, 0xFF, np.uint8)
        self._words = self._bytes.view(np.uint32)
        for number, tensor in enumerate(tensors):
            self.load(number, tensor)

    def load(self, number: int, tensor: np.ndarray[Any, Any]) -> None:
        """What tensor `number` holds."""
        start = int(self._starts[number])
        self._bytes[start : start + tensor.nbytes] = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)

    def address(self, number: int) -> int:
        """Where tensor `number` begins."""
        return BASE + int(self._starts[number])

    def write_back(self) -> None:
        """What the launch wrote, into the arrays that it was given."""
        for start, tensor in zip(self._starts[:-1], self._tensors, strict=True):
            data = self._bytes[start : start + tensor.nbytes]
            tensor[...] = data.view(tensor.dtype).reshape(tensor.shape)

    def inside(self, offset: Index, width: int) -> Bool:
        """Whether `width` bytes at each offset are all of one tensor."""
        number = np.searchsorted(self._starts, offset, side="right") - 1
        return (number >= 0) & (offset + width <= self._ends[number])

    def read(self, offset: Index, width: int) -> list[Any]:
        """The values at offsets that are inside, as uint32 arrays, one per dword."""
        if width >= 4:
            word = offset >> 2
            return [self._words[word + k] for k in range(width // 4)]
        value = self._bytes[offset].astype(np.uint32)
        if width == 2:
            value |= self._bytes[offset + 1].astype(np.uint32) << np.uint32(8)
        return [value]

    def write(self, offset: Index, width: int, values: Sequence[Any]) -> None:
        if width >= 4:
            word = offset >> 2
            for k, value in enumerate(values):
                self._words[word + k] = value
            return
        self._bytes[offset] = (values[0] & np.uint32(0xFF)).astype(np.uint8)
        if width == 2:
            self._bytes[offset + 1] = (values[0] >> np.uint32(8) & np.uint32(0xFF)).astype(np.uint8)


def scalar_load(instruction: Instruction) -> Step:
    """s_load_dword*: the same address for each wave's own lanes, so one value a wave."""
    width = instruction.opcode.removeprefix("s_load_dword").removeprefix("x")
    n = int(width or "1")
    destination = operands.register(instruction.operands[0])
    base = operands.scalar64(instruction.operands[1])
    offset = operands.scalar(instruction.operands[2])

    def step(w: Waves) -> None:
        at = base(w).astype(np.int64) - BASE + offset(w).astype(np.int64)
        memory = w.shared.memory
        if not bool(memory.inside(at, 4 * n).all()):
            raise EmulationError(f"scalar load outside every tensor: {instruction.text}")
        for k, value in enumerate(memory.read(at, 4 * n)):
            w.s[:, destination + k] = value

    return step


def decode(instruction: Instruction, number: int) -> Step:
    """The function of a buffer or global instruction; `number` is its index in the program."""
    found = _NAME.fullmatch(instruction.opcode)
    if found is None:
        raise EmulationError(f"unknown memory instruction: {instruction.text}")
    load, width, part = found.group(1) == "load", _WIDTHS[found.group(2)], found.group(3) or ""
    if instruction.opcode.startswith("buffer_"):
        data, address = _buffer_address(instruction, width)
    else:
        data, address = _global_address(instruction, load)
    signed = found.group(2) in ("sshort", "sbyte")
    finish = _loader(data, width, part, signed) if load else _storer(data, width, part)
    kind = "read outside tensors" if load else "write outside tensors"

    def step(w: Waves) -> None:
        at, in_range = address(w)
        active = w.active() if in_range is None else w.active() & in_range
        inside = w.shared.memory.inside(at, width)
        outside = active & ~inside
        if bool(outside.any()):
            wave, lane = (int(x[0]) for x in np.nonzero(outside))
            w.shared.findings.add(
                kind, number, int(w.workgroup[wave]), int(w.slot[wave]), lane, int(at[wave, lane]) + BASE
            )
        if width >= 4 and bool((at[active] & 3).any()):
            raise EmulationError(f"misaligned: {instruction.text}")
        finish(w, at, inside & active, in_range)

    return step


def _buffer_address(
    instruction: Instruction, width: int
) -> tuple[int, Callable[[Waves], tuple[Index, Bool | None]]]:
    target, lane_offset, descriptor, scalar_offset = instruction.operands
    resource, immediate = operands.register(descriptor), instruction.integer("offset")
    uses_lane = "offen" in instruction.modifiers
    lanes_, scalar = operands.vector(lane_offset) if uses_lane else None, operands.scalar(scalar_offset)

    def address(w: Waves) -> tuple[Index, Bool | None]:
        base = w.s[:, resource].astype(np.int64) | ((w.s[:, resource + 1].astype(np.int64) & 0xFFFF) << 32)
        offset = lanes_(w).astype(np.int64) if lanes_ is not None else np.zeros((w.n, LANES), np.int64)
        offset = np.broadcast_to(offset + immediate, (w.n, LANES))
        records = w.s[:, resource + 2].astype(np.int64)[:, None]
        return offset + (base + scalar(w).astype(np.int64) - BASE)[:, None], offset + width <= records

    return operands.register(target), address


def _global_address(
    instruction: Instruction, load: bool
) -> tuple[int, Callable[[Waves], tuple[Index, Bool | None]]]:
    first, second, base_text = instruction.operands
    data, lane_text = (first, second) if load else (second, first)
    immediate = instruction.integer("offset") - BASE
    if base_text == "off":
        wide = operands.vector64(lane_text)
        return operands.register(data), lambda w: (wide(w).astype(np.int64) + immediate, None)
    base, lanes_ = operands.scalar64(base_text), operands.vector(lane_text)

    def address(w: Waves) -> tuple[Index, Bool | None]:
        offset = np.broadcast_to(lanes_(w).astype(np.int64), (w.n, LANES))
        return offset + (base(w).astype(np.int64) + immediate)[:, None], None

    return operands.register(data), address


def _loader(data: int, width: int, part: str, signed: bool) -> Callable[..., None]:
    sign_shift = 32 - 8 * width if signed and not part else 0

    def finish(w: Waves, at: Index, good: Bool, in_range: Bool | None) -> None:
        values = w.shared.memory.read(np.where(good, at, 0), width)  # offset 0 is forbidden ground: all ones
        for k, value in enumerate(values):
            if in_range is not None:
                value = np.where(in_range, value, np.uint32(0))
            if sign_shift:
                value = ((value << np.uint32(sign_shift)).view(np.int32) >> np.int32(sign_shift)).view(
                    np.uint32
                )
            w.put(data + k, _placed(value, part, w.v[data + k]))

    return finish


def _storer(data: int, width: int, part: str) -> Callable[..., None]:
    def finish(w: Waves, at: Index, good: Bool, in_range: Bool | None) -> None:  # noqa: ARG001 - as loads
        shift = np.uint32(16 if part == "_d16_hi" else 0)
        values = [w.v[data + k][good] >> shift for k in range(max(1, width // 4))]
        w.shared.memory.write(at[good], width, values)

    return finish


def _placed(value: Any, part: str, old: Any) -> Any:
    """A loaded 16-bit value in the half of the register that the instruction names."""
    if part == "_d16":
        return (old & np.uint32(0xFFFF_0000)) | value
    if part == "_d16_hi":
        return (old & np.uint32(0xFFFF)) | (value << np.uint32(16))
    return value
