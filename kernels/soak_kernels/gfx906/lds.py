"""The local data share: reads and writes of waves, and who may see whose bytes.

Between two barriers a workgroup's waves run in any order. So a byte pair that one wave wrote and another
reads or writes, or that one read and another writes, in the same stretch between barriers is a missing
barrier, whatever the result was; it is reported. Fresh LDS is all ones (NaN).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from soak_kernels.gfx906 import operands
from soak_kernels.gfx906.machine import LANES, Bool, EmulationError, Index, Waves
from soak_kernels.gfx906.parse import Instruction

Step = Callable[[Waves], None]

_WIDTHS = {"b128": 16, "b96": 12, "b64": 8, "b32": 4, "b16": 2, "u16": 2, "i16": 2, "b8": 1, "u8": 1, "i8": 1}
_NAME = re.compile(r"ds_(read|write)(2st64|2)?_(b128|b96|b64|b32|[bui]16|[bui]8)(_d16_hi|_d16)?")


class Lds:
    """The LDS of every workgroup of a launch, and which waves touched what since the last barrier."""

    def __init__(self, n_workgroups: int, n_waves: int, size: int, cell: int) -> None:
        """size: bytes a workgroup; cell: bytes that are watched as one (4 where no access is narrower, else
        2)."""
        self.size = size
        self.room = -(-size // 16) * 16 + 16
        self.bytes = np.full(n_workgroups * self.room, 0xFF, np.uint8)
        self.words = self.bytes.view(np.uint32)
        self.cell = cell
        n_cells = self.room // cell
        self._writer = np.zeros((n_workgroups, n_cells), np.uint8)  # wave + 1
        self._read_by = np.zeros((n_waves, n_workgroups, n_cells), np.bool_)
        self._flat_writer = self._writer.reshape(-1)
        self._flat_read = self._read_by.reshape(-1)
        self._per_wave = n_workgroups * n_cells

    def barrier(self, workgroups: Index) -> None:
        """These workgroups passed a barrier: what was done before is ordered before what follows."""
        self._writer[workgroups] = 0
        self._read_by[:, workgroups] = False

    def cells(self, at: Index, width: int) -> Index:
        """Numbers of the cells of each access: at [n] -> [n, cells]."""
        return (at // self.cell)[:, None] + np.arange(max(1, width // self.cell))

    def note_read(self, cells: Index, wave: Index) -> Bool | None:
        """Mark a read; the cells [n, cells] that another wave wrote since the last barrier, None where there
        is none."""
        writer = self._flat_writer[cells]
        self._flat_read[cells + (wave * self._per_wave)[:, None]] = True
        if not writer.any():
            return None
        bad = (writer != 0) & (writer != (wave + 1).astype(np.uint8)[:, None])
        return bad if bool(bad.any()) else None

    def note_write(self, cells: Index, wave: Index) -> Bool | None:
        """Mark a write; the cells that another wave read or wrote since the last barrier, None where there is
        none."""
        mine = (wave + 1).astype(np.uint8)[:, None]
        writer = self._flat_writer[cells]
        bad = (writer != 0) & (writer != mine)
        for other in range(len(self._read_by)):
            bad |= self._flat_read[cells + other * self._per_wave] & (wave != other)[:, None]
        self._flat_writer[cells] = mine
        # Two waves of this very instruction may have met in a cell; the later mark stands, the earlier sees
        # it.
        bad |= self._flat_writer[cells] != mine
        return bad if bool(bad.any()) else None


def narrowest(instructions: tuple[Instruction, ...]) -> int:
    """Bytes of the narrowest access in a program: 1, 2 or 4."""
    found = [_NAME.fullmatch(i.opcode) for i in instructions if i.opcode.startswith("ds_")]
    return min([4, *(_WIDTHS[f.group(3)] for f in found if f)])


def decode(instruction: Instruction, number: int) -> Step:
    """The function of an LDS instruction; `number` is its index in the program. Where the launch counts LDS
    clocks, it counts those of its first workgroup."""
    if instruction.opcode in ("ds_bpermute_b32", "ds_permute_b32"):
        return _permute(instruction)
    found = _NAME.fullmatch(instruction.opcode)
    if found is None:
        raise EmulationError(f"unknown LDS instruction: {instruction.text}")
    read, width = found.group(1) == "read", _WIDTHS[found.group(3)]
    part = found.group(4) or ""
    if found.group(2):
        unit = width * (64 if found.group(2) == "2st64" else 1)
        offsets = [instruction.integer("offset0") * unit, instruction.integer("offset1") * unit]
    else:
        offsets = [instruction.integer("offset")]
    address = operands.vector(instruction.operands[1 if read else 0])
    per_access = max(1, width // 4)
    if read:
        first = operands.register(instruction.operands[0])
        data = [first + k * per_access for k in range(len(offsets))]
    else:
        data = [operands.register(text) for text in instruction.operands[1 : 1 + len(offsets)]]
    move = _read if read else _write
    signed = found.group(3).startswith("i")
    if signed:
        raise EmulationError(f"unknown LDS instruction: {instruction.text}")

    def step(w: Waves) -> None:
        base = np.broadcast_to(address(w), (w.n, LANES)).astype(
            np.int64
        )  # a copy: ds_read may overwrite its address
        lds, counter = w.shared.lds, w.shared.counter
        room = (w.workgroup * lds.room)[:, None]
        for register, offset in zip(data, offsets, strict=True):
            at = base + offset if offset else base
            if counter is not None:
                for wave in np.flatnonzero(w.workgroup == 0):
                    counter.count(number, at[wave], w.active()[wave], width, read=read)
            good = w.mask
            if good is not None or not _all_allowed(at, width, lds.size):
                good = _checked(w, at, width, number, instruction)
            flat = at + room
            _watch(w, flat if good is None else flat[good], good, width, number, read=read)
            move(w, flat, good, width, part, register)

    return step


def _all_allowed(at: Index, width: int, size: int) -> bool:
    aligned = int(np.bitwise_or.reduce(at, axis=None)) % min(width, 8) == 0
    return aligned and int(at.min()) >= 0 and int(at.max()) + width <= size


def _checked(w: Waves, at: Index, width: int, number: int, instruction: Instruction) -> Bool:
    """The lanes whose access is allowed; the others are reported, misalignment is an error."""
    active = w.active()
    if bool((at[active] % min(width, 8)).any()):
        raise EmulationError(f"misaligned: {instruction.text}")
    outside = active & ((at < 0) | (at + width > w.shared.lds.size))
    if not bool(outside.any()):
        return active
    wave, lane = (int(x[0]) for x in np.nonzero(outside))
    w.shared.findings.add(
        "outside LDS", number, int(w.workgroup[wave]), int(w.slot[wave]), lane, int(at[wave, lane])
    )
    return active & ~outside


def _watch(w: Waves, flat: Index, good: Bool | None, width: int, number: int, *, read: bool) -> None:
    """Whether another wave may touch the same bytes in the same stretch. flat: the addresses of the good
    lanes."""
    lds = w.shared.lds
    wave = np.repeat(w.slot, LANES) if good is None else np.repeat(w.slot, LANES)[good.reshape(-1)]
    cells = lds.cells(flat.reshape(-1), width)
    bad = lds.note_read(cells, wave) if read else lds.note_write(cells, wave)
    if bad is not None:
        which = int(np.flatnonzero(bad.any(axis=1))[0])
        waves, lanes = np.nonzero(np.ones((w.n, LANES), np.bool_) if good is None else good)
        at = int(flat.reshape(-1)[which]) % lds.room
        w.shared.findings.add(
            "missing barrier", number, int(w.workgroup[waves[which]]), int(wave[which]), int(lanes[which]), at
        )


def _read(w: Waves, at: Index, good: Bool | None, width: int, part: str, register: int) -> None:
    lds = w.shared.lds
    at = at if good is None else np.where(good, at, 0)
    if width >= 4:
        word = at >> 2
        for k in range(width // 4):
            w.put(register + k, lds.words[word + k])
        return
    value = lds.bytes[at].astype(np.uint32)
    if width == 2:
        value |= lds.bytes[at + 1].astype(np.uint32) << np.uint32(8)
    old = w.v[register]
    if part == "_d16":
        value = (old & np.uint32(0xFFFF_0000)) | value
    elif part == "_d16_hi":
        value = (old & np.uint32(0xFFFF)) | (value << np.uint32(16))
    w.put(register, value)


def _write(w: Waves, at: Index, good: Bool | None, width: int, part: str, register: int) -> None:
    lds = w.shared.lds
    lanes: Any = ... if good is None else good
    where = at[lanes]
    if width >= 4:
        word = where >> 2
        for k in range(width // 4):
            lds.words[word + k] = w.v[register + k][lanes]
        return
    value = w.v[register][lanes] >> np.uint32(16 if part == "_d16_hi" else 0)
    lds.bytes[where] = (value & np.uint32(0xFF)).astype(np.uint8)
    if width == 2:
        lds.bytes[where + 1] = (value >> np.uint32(8) & np.uint32(0xFF)).astype(np.uint8)


def _permute(instruction: Instruction) -> Step:
    """Lanes exchange registers; the LDS itself is not touched."""
    if instruction.opcode != "ds_bpermute_b32":
        raise EmulationError(f"unknown LDS instruction: {instruction.text}")
    destination = operands.register(instruction.operands[0])
    address, data = operands.vector(instruction.operands[1]), operands.vector(instruction.operands[2])
    offset = instruction.integer("offset")

    def step(w: Waves) -> None:
        lane = (np.broadcast_to(address(w), (w.n, LANES)).astype(np.int64) + offset) // 4 % LANES
        values: Any = np.broadcast_to(data(w), (w.n, LANES))
        values = np.where(w.active(), values, np.uint32(0))  # a lane that is off gives 0
        w.put(destination, np.take_along_axis(values, lane, axis=1))

    return step
