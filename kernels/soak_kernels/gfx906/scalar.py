"""The scalar instructions, one value a wave. `decode` gives a function that does the instruction for all
waves."""

# ruff: noqa: ARG005 - a table of functions of one form; few need every argument

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from soak_kernels.gfx906 import operands
from soak_kernels.gfx906.machine import EXEC, EmulationError, Waves
from soak_kernels.gfx906.parse import Instruction

Step = Callable[[Waves], None]

NOTHING = frozenset(
    {"s_waitcnt", "s_nop", "s_setprio", "s_sleep", "s_inst_prefetch", "s_setreg_imm32_b32", "s_setreg_b32"}
)
CONDITIONS: dict[str, Callable[[Waves], Any]] = {
    "s_branch": lambda w: np.ones(w.n, np.bool_),
    "s_cbranch_scc0": lambda w: ~w.scc,
    "s_cbranch_scc1": lambda w: w.scc,
    "s_cbranch_vccz": lambda w: w.s64[:, 53] == 0,
    "s_cbranch_vccnz": lambda w: w.s64[:, 53] != 0,
    "s_cbranch_execz": lambda w: w.s64[:, EXEC // 2] == 0,
    "s_cbranch_execnz": lambda w: w.s64[:, EXEC // 2] != 0,
}  # fmt: skip

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda x, y: x == y, "lg": lambda x, y: x != y, "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
}  # fmt: skip


def _signed(x: Any) -> Any:
    return x.view(np.int32) if x.flags.c_contiguous else x.astype(np.int64).astype(np.int32)


def _i64(x: Any) -> Any:
    return x.astype(np.uint32).view(np.int32).astype(np.int64)


def _field(x: Any, y: Any) -> tuple[Any, Any]:
    """(value shifted down, width) of a bit field; y holds offset and width."""
    return x >> (y & 31), (y >> 16) & 0x7F


def _bfe_u32(x: Any, y: Any) -> Any:
    value, width = _field(x, y)
    return value & ((np.int64(1) << width) - 1)


def _bfe_i32(x: Any, y: Any) -> Any:
    value, width = _field(x, y)
    value = value & ((np.int64(1) << width) - 1)
    return np.where(
        (width > 0) & ((value >> np.maximum(width - 1, 0)) & 1 == 1), value - (np.int64(1) << width), value
    )


# On int64 copies of the unsigned values; the result is cut to 32 bits. scc: None stays, else by (x, y, wide
# result).
_ARITHMETIC: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any, Any], Any] | None]] = {
    "add_u32": (lambda x, y: x + y, lambda x, y, r: r >> 32 != 0),
    "add_i32": (lambda x, y: x + y, lambda x, y, r: (_i64(x) + _i64(y)) != _i64(r)),
    "sub_u32": (lambda x, y: x - y, lambda x, y, r: x < y),
    "sub_i32": (lambda x, y: x - y, lambda x, y, r: (_i64(x) - _i64(y)) != _i64(r)),
    "mul_i32": (lambda x, y: x * _i64(y), None),
    "mul_hi_i32": (lambda x, y: (_i64(x) * _i64(y)) >> 32, None),
    "mul_hi_u32": (
        lambda x, y: ((x.astype(np.uint64) * y.astype(np.uint64)) >> np.uint64(32)).astype(np.int64),
        None,
    ),
    "lshl_b32": (lambda x, y: x << (y & 31), lambda x, y, r: (r & 0xFFFF_FFFF) != 0),
    "lshr_b32": (lambda x, y: x >> (y & 31), lambda x, y, r: r != 0),
    "ashr_i32": (lambda x, y: _i64(x) >> (y & 31), lambda x, y, r: r != 0),
    "and_b32": (lambda x, y: x & y, lambda x, y, r: r != 0),
    "or_b32": (lambda x, y: x | y, lambda x, y, r: r != 0),
    "xor_b32": (lambda x, y: x ^ y, lambda x, y, r: r != 0),
    "andn2_b32": (lambda x, y: x & ~y & 0xFFFF_FFFF, lambda x, y, r: r != 0),
    "min_i32": (lambda x, y: np.minimum(_i64(x), _i64(y)), lambda x, y, r: _i64(x) <= _i64(y)),
    "max_i32": (lambda x, y: np.maximum(_i64(x), _i64(y)), lambda x, y, r: _i64(x) >= _i64(y)),
    "min_u32": (np.minimum, lambda x, y, r: x <= y),
    "max_u32": (np.maximum, lambda x, y, r: x >= y),
    "bfe_u32": (_bfe_u32, lambda x, y, r: r != 0),
    "bfe_i32": (_bfe_i32, lambda x, y, r: r != 0),
    "pack_ll_b32_b16": (lambda x, y: (x & 0xFFFF) | ((y & 0xFFFF) << 16), None),
    "lshl1_add_u32": (lambda x, y: (x << 1) + y, lambda x, y, r: r >> 32 != 0),
    "lshl2_add_u32": (lambda x, y: (x << 2) + y, lambda x, y, r: r >> 32 != 0),
    "lshl3_add_u32": (lambda x, y: (x << 3) + y, lambda x, y, r: r >> 32 != 0),
    "lshl4_add_u32": (lambda x, y: (x << 4) + y, lambda x, y, r: r >> 32 != 0),
}
_OTHER = ("addk_i32", "mulk_i32", "cselect_b32", "addc_u32", "subb_u32")
_UNARY: dict[str, tuple[Callable[[Any], Any], bool]] = {  # bool: scc is set to (result != 0)
    "mov_b32": (lambda x: x, False),
    "movk_i32": (lambda x: x, False),
    "not_b32": (lambda x: ~x, True),
    "abs_i32": (lambda x: np.abs(_i64(x)), True),
    "sext_i32_i16": (lambda x: ((x & 0xFFFF) ^ 0x8000) - 0x8000, False),
    "sext_i32_i8": (lambda x: ((x & 0xFF) ^ 0x80) - 0x80, False),
}
_WIDE: dict[str, Callable[[Any, Any], Any]] = {  # uint64 and uint64 or uint32; scc: result != 0
    "and_b64": lambda x, y: x & y,
    "or_b64": lambda x, y: x | y,
    "xor_b64": lambda x, y: x ^ y,
    "andn2_b64": lambda x, y: x & ~y,
    "orn2_b64": lambda x, y: x | ~y,
}
_WIDE_SHIFTS: dict[str, Callable[[Any, Any], Any]] = {
    "lshl_b64": lambda x, n: x << n,
    "lshr_b64": lambda x, n: x >> n,
    "ashr_i64": lambda x, n: (x.astype(np.int64) >> n.astype(np.int64)).astype(np.uint64),
}
_SAVE_EXEC: dict[str, Callable[[Any, Any], Any]] = {
    "and_saveexec_b64": lambda exec_, x: exec_ & x,
    "or_saveexec_b64": lambda exec_, x: exec_ | x,
    "andn2_saveexec_b64": lambda exec_, x: x & ~exec_,
    "xor_saveexec_b64": lambda exec_, x: exec_ ^ x,
}


def decode(instruction: Instruction) -> Step:
    """The function of a scalar instruction that neither branches nor loads."""
    opcode, args = instruction.opcode, instruction.operands
    if opcode in NOTHING:
        return _nothing
    name = opcode.removeprefix("s_")
    if name.startswith("cmp"):
        return _compare(name, args)
    if name.startswith("bitcmp"):
        return _bit_compare(name, args)
    if name in _SAVE_EXEC:
        return _save_exec(_SAVE_EXEC[name], args)
    if name.endswith(("_b64", "_i64", "_u64")):
        return _wide(name, args)
    return _narrow(name, args, instruction.text)


def _nothing(w: Waves) -> None:  # noqa: ARG001 - as every instruction
    return


def _write(w: Waves, number: int, value: Any) -> None:
    w.s[:, number] = (value & 0xFFFF_FFFF).astype(np.uint32)
    if number in (EXEC, EXEC + 1):
        w.exec_changed()


def _write64(w: Waves, number: int, value: Any) -> None:
    w.s64[:, number // 2] = value
    if number == EXEC:
        w.exec_changed()


def _narrow(name: str, args: tuple[str, ...], text: str) -> Step:
    if name not in _UNARY and name not in _ARITHMETIC and name not in _OTHER:
        raise EmulationError(f"unknown scalar instruction: {text}")
    destination = operands.register(args[0])
    if name in _UNARY:
        unary, sets_scc = _UNARY[name]
        source = _constant16(args[1]) if name == "movk_i32" else operands.scalar(args[1])

        def step_unary(w: Waves) -> None:
            result = unary(source(w).astype(np.int64)) & 0xFFFF_FFFF
            if sets_scc:
                w.scc = result != 0
            _write(w, destination, result)

        return step_unary
    if name in ("addk_i32", "mulk_i32"):
        args = (args[0], args[0], str(_signed16(args[1])))
        name = name.replace("k_", "_")
    left, right = operands.scalar(args[1]), operands.scalar(args[2])
    if name == "cselect_b32":
        return lambda w: _write(w, destination, np.asarray(np.where(w.scc, left(w), right(w)), np.int64))
    if name in ("addc_u32", "subb_u32"):
        sign = 1 if name == "addc_u32" else -1

        def step_carry(w: Waves) -> None:
            result = left(w).astype(np.int64) + sign * (right(w).astype(np.int64) + w.scc)
            w.scc = result >> 32 != 0
            _write(w, destination, result)

        return step_carry
    function, condition = _ARITHMETIC[name]

    def step(w: Waves) -> None:
        x, y = left(w).astype(np.int64), right(w).astype(np.int64)
        result = function(x, y)
        if condition is not None:
            w.scc = condition(x, y, result)
        _write(w, destination, result)

    return step


def _wide(name: str, args: tuple[str, ...]) -> Step:
    destination = operands.register(args[0])
    left = operands.scalar64(args[1])
    if name == "mov_b64":
        return lambda w: _write64(w, destination, left(w))
    if name == "not_b64":
        return lambda w: _write64(w, destination, ~left(w))
    if name == "cselect_b64":
        other = operands.scalar64(args[2])
        return lambda w: _write64(w, destination, np.where(w.scc, left(w), other(w)))
    if name in _WIDE_SHIFTS:
        shift, amount = _WIDE_SHIFTS[name], operands.scalar(args[2])

        def step_shift(w: Waves) -> None:
            result = shift(left(w), amount(w).astype(np.uint64) & np.uint64(63))
            w.scc = result != 0
            _write64(w, destination, result)

        return step_shift
    if name not in _WIDE:
        raise EmulationError(f"unknown scalar instruction: s_{name}")
    function, right = _WIDE[name], operands.scalar64(args[2])

    def step(w: Waves) -> None:
        result = function(left(w), right(w))
        w.scc = result != 0
        _write64(w, destination, result)

    return step


def _save_exec(function: Callable[[Any, Any], Any], args: tuple[str, ...]) -> Step:
    destination, source = operands.register(args[0]), operands.scalar64(args[1])

    def step(w: Waves) -> None:
        old, new = w.s64[:, EXEC // 2].copy(), source(w).copy()
        _write64(w, destination, old)
        _write64(w, EXEC, function(old, new))
        w.scc = w.s64[:, EXEC // 2] != 0

    return step


def _compare(name: str, args: tuple[str, ...]) -> Step:
    found = re.fullmatch(r"cmp(k?)_(\w+)_([iu](?:32|64))", name)
    if found is None or found.group(2) not in _COMPARE:
        raise EmulationError(f"unknown scalar comparison: s_{name}")
    relation, kind = _COMPARE[found.group(2)], found.group(3)
    if kind.endswith("64"):
        left, right = operands.scalar64(args[0]), operands.scalar64(args[1])
    else:
        left = operands.scalar(args[0])
        right = _constant16(args[1]) if found.group(1) and kind == "i32" else operands.scalar(args[1])

    def step(w: Waves) -> None:
        x, y = left(w), right(w)
        w.scc = relation(_signed(x), _signed(y)) if kind == "i32" else relation(x, y)

    return step


def _bit_compare(name: str, args: tuple[str, ...]) -> Step:
    left, right, wanted = operands.scalar(args[0]), operands.scalar(args[1]), int(name[6])

    def step(w: Waves) -> None:
        w.scc = (left(w) >> (right(w) & np.uint32(31)) & np.uint32(1)) == wanted

    return step


def _signed16(text: str) -> int:
    value = int(text, 0) & 0xFFFF
    return value - 0x1_0000 if value & 0x8000 else value


def _constant16(text: str) -> operands.Read:
    return operands.scalar(str(_signed16(text)))
