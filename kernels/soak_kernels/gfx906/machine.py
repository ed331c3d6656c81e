"""What waves hold: registers of many waves side by side, so that one NumPy call does an instruction for all
of them.

Waves that stand at the same instruction go together, of one workgroup or of many. They part where a branch
divides them and join again at barriers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from soak_kernels.gfx906.conflicts import Counter
    from soak_kernels.gfx906.findings import Findings
    from soak_kernels.gfx906.lds import Lds
    from soak_kernels.gfx906.memory import Memory

LANES = 64
U32 = npt.NDArray[np.uint32]
F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]
Index = npt.NDArray[np.int64]

VCC, M0, EXEC = 106, 124, 126  # where the hardware numbers them among the scalar registers
N_SCALARS = 128
ALL = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class EmulationError(Exception):
    """The program does what the emulator does not know, or what no program may do; with the instruction's
    text."""


@dataclass(frozen=True)
class Shared:
    """What the waves of one launch share; counter: None where LDS clocks are not counted."""

    memory: Memory
    lds: Lds
    findings: Findings
    counter: Counter | None


@dataclass
class Waves:
    """Waves at one instruction. W waves of 64 lanes:

    v: uint32 [vgprs, W, 64], f: the same bits as float32; s: uint32 [W, 128] (sgprs, vcc, m0, exec), s64: the
    same as uint64 [W, 64]; scc: bool [W]; workgroup, slot: int64 [W], the workgroup's number in the launch
    and the wave's number in its workgroup; shared: what belongs to the launch; pc: the instruction they are
    at."""

    v: U32
    s: U32
    scc: Bool
    workgroup: Index
    slot: Index
    shared: Shared
    pc: int = 0
    f: F32 = field(init=False)
    s64: npt.NDArray[np.uint64] = field(init=False)
    mask: Bool | None = field(init=False)  # lanes [W, 64] that are on; None: all
    _halves: list[F32 | None] = field(init=False)

    def __post_init__(self) -> None:
        self.f = self.v.view(np.float32)
        self.s64 = self.s.view(np.uint64)
        self._halves = [None] * len(self.v)
        self.mask = None
        self.exec_changed()

    @property
    def n(self) -> int:
        return len(self.s)

    def exec_changed(self) -> None:
        """To be called after exec was written."""
        on = self.s64[:, EXEC // 2]
        self.mask = None if bool((on == ALL).all()) else self.lanes(EXEC)

    def lanes(self, register: int) -> Bool:
        """A pair of scalar registers as a flag per lane [W, 64]."""
        bits = np.unpackbits(
            np.ascontiguousarray(self.s64[:, register // 2 : register // 2 + 1]).view(np.uint8),
            axis=1, bitorder="little",
        )  # fmt: skip
        return bits.view(np.bool_)

    def active(self) -> Bool:
        """The lanes that are on, as an array."""
        return np.ones((self.n, LANES), np.bool_) if self.mask is None else self.mask

    def set_lanes(self, register: int, flags: Bool) -> None:
        """A flag per lane into a pair of scalar registers; lanes that are off read as 0."""
        if self.mask is not None:
            flags = flags & self.mask
        self.s64[:, register // 2] = np.packbits(flags, axis=1, bitorder="little").view(np.uint64)[:, 0]
        if register == EXEC:
            self.exec_changed()

    def put(self, register: int, value: U32 | np.uint32) -> None:
        """Bits into a vector register, where lanes are on."""
        self._halves[register] = None
        if self.mask is None:
            self.v[register] = value
        else:
            np.copyto(self.v[register], value, where=self.mask)

    def put_float(self, register: int, value: F32) -> None:
        self._halves[register] = None
        if self.mask is None:
            self.f[register] = value
        else:
            np.copyto(self.f[register], value, where=self.mask)

    def put_where(self, register: int, value: U32, where: Bool) -> None:
        """As `put`, for those of the lanes that `where` names."""
        self._halves[register] = None
        np.copyto(self.v[register], value, where=where if self.mask is None else where & self.mask)

    def halves(self, register: int) -> F32:
        """The two float16 of a register as float32 [2, W, 64]; kept until the register is written, since an
        operand meets many products."""
        kept = self._halves[register]
        if kept is None:
            pairs = self.v[register].view(np.float16).reshape(self.n, LANES, 2)
            kept = np.ascontiguousarray(pairs.transpose(2, 0, 1)).astype(np.float32)
            self._halves[register] = kept
        return kept

    def take(self, which: Bool) -> Waves:
        """The waves that `which` [W] names, apart from the others."""
        return Waves(
            np.ascontiguousarray(self.v[:, which]), self.s[which], self.scc[which], self.workgroup[which],
            self.slot[which], self.shared, self.pc,
        )  # fmt: skip


def join(parts: Sequence[Waves]) -> Waves:
    """Waves at the same instruction as one."""
    if len(parts) == 1:
        return parts[0]
    assert len({part.pc for part in parts}) == 1
    return Waves(
        np.concatenate([part.v for part in parts], axis=1),
        np.concatenate([part.s for part in parts]),
        np.concatenate([part.scc for part in parts]),
        np.concatenate([part.workgroup for part in parts]),
        np.concatenate([part.slot for part in parts]),
        parts[0].shared,
        parts[0].pc,
    )
