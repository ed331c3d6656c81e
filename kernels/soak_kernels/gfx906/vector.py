"""The vector instructions. `decode` gives a function that does the instruction for every lane of all waves.

Rounding: to nearest even, subnormals kept, as Triton sets the mode on gfx906. A fused multiply-add of float32
is computed in float64 and rounded from there, which differs from its one rounding only next to a tie.
v_dot2_f32_f16 adds its two exact products, then the accumulator, rounding twice: the card's own order is not
documented, and the difference is a last place of float32. v_exp, v_log and v_rcp are NumPy's, within a last
place of the card's. v_div_scale passes its value through and v_div_fixup divides, so a quotient is rounded
correctly where the card may be off by one.
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
_U = np.uint32
_LANE = np.arange(LANES)
_LOW = np.uint64(0xFFFF_FFFF)


def _fma(x: Any, y: Any, z: Any) -> Any:
    return (x.astype(np.float64) * y + z).astype(np.float32)


def _max(x: Any, y: Any) -> Any:
    return np.fmax(x, y)


def _min(x: Any, y: Any) -> Any:
    return np.fmin(x, y)


def _signed(x: Any) -> Any:
    return np.ascontiguousarray(x).view(np.int32)


def _unsigned(x: Any) -> Any:
    return np.ascontiguousarray(x.astype(np.int32)).view(np.uint32)


def _clip_to(low: int, high: int, dtype: Any) -> Callable[[Any], Any]:
    def convert(x: Any) -> Any:
        y = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=high, neginf=low))
        return np.clip(y, low, high).astype(np.int64).astype(dtype)

    return convert


def _perm(high: Any, low: Any, select: Any) -> Any:
    codes = np.unique(select)
    if len(codes) == 1:
        return _perm_uniform(high, low, int(codes[0]))
    result = np.zeros(np.broadcast_shapes(high.shape, low.shape, select.shape), np.uint32)
    for code in codes:
        np.copyto(result, _perm_uniform(high, low, int(code)), where=select == code)
    return result


def _perm_uniform(high: Any, low: Any, select: int) -> Any:
    """Bytes 0-3 of a selector name bytes of `low`, 4-7 of `high`, 12 is zero."""
    codes = [select >> shift & 0xFF for shift in (0, 8, 16, 24)]
    if any(7 < code != 12 for code in codes):
        raise EmulationError(f"v_perm_b32 with selector {select:#x}")
    parts = []
    for k in (0, 2):
        first, second = codes[k : k + 2]
        if first % 2 == 0 and second == first + 1:  # a half as it is, the usual case
            half = (high if first > 3 else low) >> _U(8 * (first % 4)) & _U(0xFFFF)
            parts.append(half << _U(8 * k) if k else half)
            continue
        for place, code in ((k, first), (k + 1, second)):
            if code != 12:
                byte = (high if code > 3 else low) >> _U(8 * (code % 4)) & _U(0xFF)
                parts.append(byte << _U(8 * place))
    result = parts[0] if parts else np.zeros_like(low)
    for part in parts[1:]:
        result = result | part
    return result


def _bfe_i32(x: Any, offset: Any, width: Any) -> Any:
    n = (width & _U(31)).astype(np.int64)
    value = (x >> (offset & _U(31))).astype(np.int64) & ((np.int64(1) << n) - 1)
    top = np.int64(1) << np.maximum(n - 1, 0)
    return np.where(n > 0, (value ^ top) - top, 0).astype(np.uint32)


def _bit_reverse(x: Any) -> Any:
    for shift, mask in ((1, 0x5555_5555), (2, 0x3333_3333), (4, 0x0F0F_0F0F), (8, 0x00FF_00FF)):
        x = ((x >> _U(shift)) & _U(mask)) | ((x & _U(mask)) << _U(shift))
    return (x >> _U(16)) | (x << _U(16))


def _mul_hi_u32(x: Any, y: Any) -> Any:
    return ((x.astype(np.uint64) * y.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)


def _half(x: Any) -> Any:
    """float32 -> the bits of float16 in the low half."""
    return x.astype(np.float16).view(np.uint16).astype(np.uint32)


def _half_toward_zero(x: Any) -> Any:
    near = x.astype(np.float16)
    wrong = np.abs(near.astype(np.float32)) > np.abs(x)
    return np.where(wrong, near.view(np.uint16) - np.uint16(1), near.view(np.uint16)).astype(np.uint32)


def _from_half(x: Any) -> Any:
    return (x & _U(0xFFFF)).astype(np.uint16).view(np.float16).astype(np.float32)


# float32 in, float32 out
_FLOAT: dict[str, Callable[..., Any]] = {
    "add_f32": lambda x, y: x + y,
    "sub_f32": lambda x, y: x - y,
    "subrev_f32": lambda x, y: y - x,
    "mul_f32": lambda x, y: x * y,
    "max_f32": _max,
    "min_f32": _min,
    "max3_f32": lambda x, y, z: _max(_max(x, y), z),
    "min3_f32": lambda x, y, z: _min(_min(x, y), z),
    "med3_f32": lambda x, y, z: _max(_min(x, y), _min(_max(x, y), z)),
    "fma_f32": _fma,
    "mad_f32": lambda x, y, z: x * y + z,
    "madak_f32": lambda x, y, constant: x * y + constant,
    "madmk_f32": lambda x, constant, z: x * constant + z,
    "div_fmas_f32": _fma,
    "div_fixup_f32": lambda q, denominator, numerator: numerator / denominator,  # noqa: ARG005 - the card's
    "exp_f32": np.exp2,
    "log_f32": np.log2,
    "rcp_f32": lambda x: np.float32(1) / x,
    "rcp_iflag_f32": lambda x: np.float32(1) / x,
    "rsq_f32": lambda x: np.float32(1) / np.sqrt(x),
    "sqrt_f32": np.sqrt,
    "rndne_f32": np.rint,
    "trunc_f32": np.trunc,
    "floor_f32": np.floor,
    "ceil_f32": np.ceil,
    "fract_f32": lambda x: x - np.floor(x),
}
# uint32 in, uint32 out
_BITS: dict[str, Callable[..., Any]] = {
    "mov_b32": lambda x: x,
    "not_b32": lambda x: ~x,
    "bfrev_b32": _bit_reverse,
    "and_b32": lambda x, y: x & y,
    "or_b32": lambda x, y: x | y,
    "xor_b32": lambda x, y: x ^ y,
    "xnor_b32": lambda x, y: ~(x ^ y),
    "or3_b32": lambda x, y, z: x | y | z,
    "and_or_b32": lambda x, y, z: (x & y) | z,
    "xad_u32": lambda x, y, z: (x ^ y) + z,
    "bfi_b32": lambda x, y, z: (x & y) | (~x & z),
    "bfe_u32": lambda x, y, z: (x >> (y & _U(31))) & ((_U(1) << (z & _U(31))) - _U(1)),
    "bfe_i32": _bfe_i32,
    "alignbit_b32": lambda x, y, z: (
        (((x.astype(np.uint64) << np.uint64(32)) | y) >> (z & _U(31)).astype(np.uint64)) & _LOW
    ).astype(np.uint32),
    "perm_b32": _perm,
    "lshlrev_b32": lambda n, x: x << (n & _U(31)),
    "lshrrev_b32": lambda n, x: x >> (n & _U(31)),
    "ashrrev_i32": lambda n, x: _unsigned(_signed(x) >> _signed(n & _U(31))),
    "lshl_or_b32": lambda x, n, y: (x << (n & _U(31))) | y,
    "lshl_add_u32": lambda x, n, y: (x << (n & _U(31))) + y,
    "add_lshl_u32": lambda x, y, n: (x + y) << (n & _U(31)),
    "add3_u32": lambda x, y, z: x + y + z,
    "add_u32": lambda x, y: x + y,
    "add_i32": lambda x, y: x + y,
    "sub_u32": lambda x, y: x - y,
    "sub_i32": lambda x, y: x - y,
    "subrev_u32": lambda x, y: y - x,
    "mul_lo_u32": lambda x, y: x * y,
    "mul_hi_u32": _mul_hi_u32,
    "mul_u32_u24": lambda x, y: (x & _U(0xFF_FFFF)) * (y & _U(0xFF_FFFF)),
    "mad_u32_u24": lambda x, y, z: (x & _U(0xFF_FFFF)) * (y & _U(0xFF_FFFF)) + z,
    "min_i32": lambda x, y: _unsigned(np.minimum(_signed(x), _signed(y))),
    "max_i32": lambda x, y: _unsigned(np.maximum(_signed(x), _signed(y))),
    "min_u32": np.minimum,
    "max_u32": np.maximum,
    "add_u16": lambda x, y: (x + y) & _U(0xFFFF),
    "lshlrev_b16": lambda n, x: (x << (n & _U(15))) & _U(0xFFFF),
    "lshrrev_b16": lambda n, x: (x & _U(0xFFFF)) >> (n & _U(15)),
}
# float32 in, bits out; bits in, float32 out
_FROM_FLOAT: dict[str, Callable[..., Any]] = {
    "cvt_f16_f32": _half,
    "cvt_pkrtz_f16_f32": lambda x, y: _half_toward_zero(x) | (_half_toward_zero(y) << _U(16)),
    "cvt_u32_f32": _clip_to(0, 2**32 - 1, np.uint32),
    "cvt_i32_f32": _clip_to(-(2**31), 2**31 - 1, np.uint32),
}
_TO_FLOAT: dict[str, Callable[[Any], Any]] = {
    "cvt_f32_f16": _from_half,
    "cvt_f32_i32": lambda x: _signed(x).astype(np.float32),
    "cvt_f32_u32": lambda x: x.astype(np.float32),
}
_DOUBLE: dict[str, Callable[..., Any]] = {
    "add_f64": lambda x, y: x + y,
    "mul_f64": lambda x, y: x * y,
    "fma_f64": lambda x, y, z: x * y + z,  # rounded twice: only preparations use it, outside every main loop
    "div_fmas_f64": lambda x, y, z: x * y + z,
    "div_fixup_f64": lambda q, denominator, numerator: numerator / denominator,  # noqa: ARG005 - the card's
    "rcp_f64": lambda x: 1.0 / x,
    "max_f64": _max,
    "min_f64": _min,
}
_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda x, y: x == y, "lg": lambda x, y: (x < y) | (x > y), "ne": lambda x, y: x != y,
    "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y, "lt": lambda x, y: x < y, "le": lambda x, y: x <= y,
    "o": lambda x, y: (x == x) & (y == y), "u": lambda x, y: (x != x) | (y != y),
    "neq": lambda x, y: ~(x == y), "nlg": lambda x, y: ~((x < y) | (x > y)), "ngt": lambda x, y: ~(x > y),
    "nge": lambda x, y: ~(x >= y), "nlt": lambda x, y: ~(x < y), "nle": lambda x, y: ~(x <= y),
}  # fmt: skip


def decode(instruction: Instruction) -> Step:
    """The function of a vector instruction."""
    name, args = instruction.opcode.removeprefix("v_"), instruction.operands
    unknown = {"clamp", "mul", "div", "neg_lo", "neg_hi"} & instruction.modifiers.keys()
    if instruction.encoding == "sdwa" or unknown:
        raise EmulationError(f"unknown form: {instruction.text}")
    special = _SPECIAL.get(name)
    if special is not None:
        return special(instruction)
    if name.startswith("cmp_"):
        return _compare(name, args, instruction.text)
    if name in _DOUBLE:
        return _double(_DOUBLE[name], args)
    if instruction.encoding == "dpp":
        return _across(instruction)
    destination = operands.register(args[0])
    if name in _FLOAT:
        floats = [operands.floating(arg) for arg in args[1:]]
        return _float_step(_FLOAT[name], destination, floats)
    if name in _BITS:
        return _bits_step(_BITS[name], destination, [operands.vector(arg) for arg in args[1:]])
    if name in _FROM_FLOAT:
        return _bits_step(_FROM_FLOAT[name], destination, [operands.floating(arg) for arg in args[1:]])
    if name in _TO_FLOAT:
        return _float_step(_TO_FLOAT[name], destination, [operands.vector(arg) for arg in args[1:]])
    raise EmulationError(f"unknown vector instruction: {instruction.text}")


def _float_step(
    function: Callable[..., Any], destination: int, sources: list[Callable[[Waves], Any]]
) -> Step:
    if len(sources) == 1:
        (one,) = sources
        return lambda w: w.put_float(destination, function(one(w)))
    if len(sources) == 2:
        left, right = sources
        return lambda w: w.put_float(destination, function(left(w), right(w)))
    return lambda w: w.put_float(destination, function(*(source(w) for source in sources)))


def _bits_step(function: Callable[..., Any], destination: int, sources: list[Callable[[Waves], Any]]) -> Step:
    if len(sources) == 1:
        (one,) = sources
        return lambda w: w.put(destination, function(one(w)))
    if len(sources) == 2:
        left, right = sources
        return lambda w: w.put(destination, function(left(w), right(w)))
    return lambda w: w.put(destination, function(*(source(w) for source in sources)))


def _dot2(instruction: Instruction) -> Step:
    """d = a.x * b.x + a.y * b.y + c: the instruction that everything here is about."""
    target, *sources = instruction.operands
    if instruction.modifiers.keys() - {"op_sel_hi"} or not all(operands.is_vector(s) for s in sources[:2]):
        raise EmulationError(f"unknown form: {instruction.text}")
    destination, a, b = (
        operands.register(target),
        operands.register(sources[0]),
        operands.register(sources[1]),
    )
    c = operands.floating(sources[2])

    def step(w: Waves) -> None:
        products = w.halves(a) * w.halves(b)
        total = products[0]
        total += products[1]
        total += c(w)
        w.put_float(destination, total)

    return step


def _fmac(instruction: Instruction) -> Step:
    if instruction.encoding == "dpp":
        raise EmulationError(f"unknown form: {instruction.text}")
    destination = operands.register(instruction.operands[0])
    left, right = (operands.floating(arg) for arg in instruction.operands[1:])
    return lambda w: w.put_float(destination, _fma(left(w), right(w), w.f[destination]))


def _selectors(instruction: Instruction, name: str, default: int) -> list[int]:
    text = instruction.modifiers.get(name)
    return [int(digit) for digit in text.strip("[]").split(",")] if text else [default] * 3


def _fma_mix(instruction: Instruction) -> Step:
    """fma of float32s or halves of registers, into float32 or a half of a register."""
    destination = operands.register(instruction.operands[0])
    halves, tops = _selectors(instruction, "op_sel_hi", 0), _selectors(instruction, "op_sel", 0)
    readers = []
    for arg, half, top in zip(instruction.operands[1:], halves, tops, strict=True):
        if half:
            bits = operands.vector(arg)
            readers.append(_half_reader(bits, 16 if top else 0))
        else:
            readers.append(operands.floating(arg))
    x, y, z = readers
    kind = instruction.opcode.removeprefix("v_fma_")

    def step(w: Waves) -> None:
        result = _fma(x(w), y(w), z(w))
        if kind == "mix_f32":
            w.put_float(destination, result)
        elif kind == "mixlo_f16":
            w.put(destination, (w.v[destination] & _U(0xFFFF_0000)) | _half(result))
        else:
            w.put(destination, (w.v[destination] & _U(0xFFFF)) | (_half(result) << _U(16)))

    return step


def _half_reader(bits: Callable[[Waves], Any], shift: int) -> Callable[[Waves], Any]:
    return lambda w: _from_half(bits(w) >> _U(shift))


def _pack(instruction: Instruction) -> Step:
    destination = operands.register(instruction.operands[0])
    low, high = (operands.vector(arg) for arg in instruction.operands[1:])
    top = _selectors(instruction, "op_sel", 0)

    def step(w: Waves) -> None:
        x, y = low(w) >> _U(16 * top[0]), high(w) >> _U(16 * top[1])
        w.put(destination, (x & _U(0xFFFF)) | (y << _U(16)))

    return step


def _ldexp(instruction: Instruction) -> Step:
    destination = operands.register(instruction.operands[0])
    mantissa, exponent = operands.floating(instruction.operands[1]), operands.vector(instruction.operands[2])
    return lambda w: w.put_float(destination, np.ldexp(mantissa(w), _signed(exponent(w))))


def _select(instruction: Instruction) -> Step:
    """v_cndmask: the second source where the mask's bit is set."""
    if instruction.encoding == "dpp":
        raise EmulationError(f"unknown form: {instruction.text}")
    target, if_clear, if_set, mask = instruction.operands
    destination, clear, set_ = operands.register(target), operands.vector(if_clear), operands.vector(if_set)
    flags = operands.lanes(mask)
    return lambda w: w.put(destination, np.where(flags(w), set_(w), clear(w)))


def _read_lane(instruction: Instruction) -> Step:
    target, source, *lane = instruction.operands
    destination, value = operands.register(target), operands.vector(source)
    index = operands.scalar(lane[0]) if lane else None

    def step(w: Waves) -> None:
        chosen = np.argmax(w.active(), axis=1) if index is None else index(w).astype(np.int64) & 63
        values = np.broadcast_to(value(w), (w.n, LANES))
        w.s[:, destination] = values[np.arange(w.n), chosen]

    return step


def _write_lane(instruction: Instruction) -> Step:
    target, source, lane = instruction.operands
    destination, value, index = operands.register(target), operands.scalar(source), operands.scalar(lane)

    def step(w: Waves) -> None:
        values = w.v[destination].copy()
        values[np.arange(w.n), index(w).astype(np.int64) & 63] = value(w)
        _overwrite(w, destination, values)

    return step


def _overwrite(w: Waves, destination: int, value: Any) -> None:
    """A write that does not ask which lanes are on."""
    kept, w.mask = w.mask, None
    w.put(destination, value)
    w.mask = kept


def _carry(instruction: Instruction) -> Step:
    """Addition and subtraction with a carry per lane: destination, carry out, x, y (, carry in)."""
    name = instruction.opcode.removeprefix("v_")
    args = instruction.operands
    destination, out = operands.register(args[0]), operands.register(args[1])
    left, right = operands.vector(args[2]), operands.vector(args[3])
    carry_in = operands.lanes(args[4]) if len(args) > 4 else None
    negative = name.startswith("sub")
    swapped = "rev" in name

    def step(w: Waves) -> None:
        x, y = left(w).astype(np.int64), right(w).astype(np.int64)
        x, y = (y, x) if swapped else (x, y)
        extra: Any = carry_in(w).astype(np.int64) if carry_in is not None else 0
        result = x - y - extra if negative else x + y + extra
        result = np.broadcast_to(result, (w.n, LANES))
        w.put(destination, (result & 0xFFFF_FFFF).astype(np.uint32))
        w.set_lanes(out, result >> 32 != 0)

    return step


def _mad64(instruction: Instruction) -> Step:
    """64-bit sum of a 32 x 32 product: destination, carry out (not computed), x, y, z."""
    args = instruction.operands
    signed = "i64" in instruction.opcode
    destination = operands.register(args[0])
    left, right, addend = operands.vector(args[2]), operands.vector(args[3]), operands.vector64(args[4])

    def step(w: Waves) -> None:
        x, y = left(w), right(w)
        if signed:
            product = (_signed(x).astype(np.int64) * _signed(y).astype(np.int64)).view(np.uint64)
        else:
            product = x.astype(np.uint64) * y.astype(np.uint64)
        operands.put64(w, destination, np.broadcast_to(product + addend(w), (w.n, LANES)))

    return step


def _shift64(instruction: Instruction) -> Step:
    name = instruction.opcode.removeprefix("v_")
    destination = operands.register(instruction.operands[0])
    amount, value = operands.vector(instruction.operands[1]), operands.vector64(instruction.operands[2])

    def step(w: Waves) -> None:
        n, x = amount(w).astype(np.uint64) & np.uint64(63), value(w)
        if name == "lshlrev_b64":
            result = x << n
        elif name == "lshrrev_b64":
            result = x >> n
        else:
            result = (x.astype(np.int64) >> n.astype(np.int64)).astype(np.uint64)
        operands.put64(w, destination, np.broadcast_to(result, (w.n, LANES)))

    return step


def _div_scale(instruction: Instruction) -> Step:
    """Passes the value through and scales nothing; see the module's words on division."""
    target, flags, source = instruction.operands[:3]
    wide = instruction.opcode.endswith("f64")
    destination, out = operands.register(target), operands.register(flags)
    bits = operands.vector64(source) if wide else operands.vector(source)

    def step(w: Waves) -> None:
        value = np.broadcast_to(bits(w), (w.n, LANES))
        if wide:
            operands.put64(w, destination, value)
        else:
            w.put(destination, value)
        w.set_lanes(out, np.zeros((w.n, LANES), np.bool_))

    return step


def _double(function: Callable[..., Any], args: tuple[str, ...]) -> Step:
    destination = operands.register(args[0])
    sources = [operands.floating64(arg) for arg in args[1:]]

    def step(w: Waves) -> None:
        result = np.broadcast_to(function(*(source(w) for source in sources)), (w.n, LANES))
        operands.put64(w, destination, np.ascontiguousarray(result).view(np.uint64))

    return step


def _convert64(instruction: Instruction) -> Step:
    target, source = instruction.operands
    destination, name = operands.register(target), instruction.opcode.removeprefix("v_cvt_")
    if name == "f32_f64":
        double = operands.floating64(source)
        return lambda w: w.put_float(destination, double(w).astype(np.float32))
    narrow: Callable[[Waves], Any] = (
        operands.floating(source) if name == "f64_f32" else operands.vector(source)
    )
    signed = name == "f64_i32"

    def step(w: Waves) -> None:
        value = narrow(w)
        value = np.broadcast_to((_signed(value) if signed else value).astype(np.float64), (w.n, LANES))
        operands.put64(w, destination, np.ascontiguousarray(value).view(np.uint64))

    return step


def _compare(name: str, args: tuple[str, ...], text: str) -> Step:
    found = re.fullmatch(r"cmp_(\w+)_([a-z]\d+)", name)
    if found is None or found.group(1) not in _RELATIONS:
        raise EmulationError(f"unknown comparison: {text}")
    relation, kind = _RELATIONS[found.group(1)], found.group(2)
    destination = operands.register(args[0])
    if kind in ("f32", "f64"):
        read = operands.floating if kind == "f32" else operands.floating64
        left, right = read(args[1]), read(args[2])
    elif kind in ("i32", "u32", "i64", "u64"):
        wide = operands.vector64 if kind.endswith("64") else operands.vector
        left, right = wide(args[1]), wide(args[2])
    else:
        raise EmulationError(f"unknown comparison: {text}")
    cast = {"i32": np.int32, "i64": np.int64}.get(kind)

    def step(w: Waves) -> None:
        x, y = left(w), right(w)
        if cast is not None:
            x, y = np.ascontiguousarray(x).view(cast), np.ascontiguousarray(y).view(cast)
        w.set_lanes(destination, np.broadcast_to(relation(x, y), (w.n, LANES)))

    return step


def _across(instruction: Instruction) -> Step:
    """DPP: the first source comes from other lanes of the wave."""
    name, args = instruction.opcode.removeprefix("v_"), instruction.operands
    destination = operands.register(args[0])
    index, inside = _lane_pattern(instruction)
    rows = (instruction.integer("row_mask") >> (_LANE // 16)) & 1
    banks = (instruction.integer("bank_mask") >> (_LANE // 4 % 4)) & 1
    enabled = (rows & banks).astype(np.bool_)
    zero_outside = "bound_ctrl" in instruction.modifiers
    if not zero_outside:
        enabled = enabled & inside
    every = bool(enabled.all())
    floats = name in _FLOAT
    function = _FLOAT[name] if floats else _BITS.get(name)
    if function is None:
        raise EmulationError(f"unknown vector instruction: {instruction.text}")
    first = operands.vector(args[1])
    others = [operands.floating(arg) if floats else operands.vector(arg) for arg in args[2:]]
    all_inside = bool(inside.all())

    def step(w: Waves) -> None:
        moved = np.broadcast_to(first(w), (w.n, LANES))[:, index]
        if not all_inside:
            moved = np.where(inside, moved, _U(0))
        value = function(moved.view(np.float32) if floats else moved, *(other(w) for other in others))
        bits = value.view(np.uint32) if floats else value
        if every:
            w.put(destination, bits)
        else:
            w.put_where(destination, bits, np.broadcast_to(enabled, (w.n, LANES)))

    return step


def _lane_pattern(instruction: Instruction) -> tuple[Index, Bool]:
    """For each lane the lane it reads, and whether there is one."""
    modifiers = instruction.modifiers
    inside = np.ones(LANES, np.bool_)
    row, within = _LANE // 16 * 16, _LANE % 16
    if "quad_perm" in modifiers:
        order = np.array([int(x) for x in modifiers["quad_perm"].strip("[]").split(",")])
        return _LANE // 4 * 4 + order[_LANE % 4], inside
    if "row_half_mirror" in modifiers:
        return _LANE // 8 * 8 + 7 - _LANE % 8, inside
    if "row_mirror" in modifiers:
        return row + 15 - within, inside
    if "row_ror" in modifiers:
        return row + (within - int(modifiers["row_ror"])) % 16, inside
    if "row_shr" in modifiers:
        n = int(modifiers["row_shr"])
        return np.maximum(_LANE - n, 0), within >= n
    if "row_shl" in modifiers:
        n = int(modifiers["row_shl"])
        return np.minimum(_LANE + n, LANES - 1), within + n < 16
    if modifiers.get("row_bcast") == "15":
        return np.maximum(row - 1, 0), _LANE >= 16
    if modifiers.get("row_bcast") == "31":
        return np.full(LANES, 31), _LANE >= 32
    raise EmulationError(f"unknown lane pattern: {instruction.text}")


_SPECIAL: dict[str, Callable[[Instruction], Step]] = {
    "dot2_f32_f16": _dot2,
    "fmac_f32": _fmac,
    "mac_f32": _fmac,
    "fma_mix_f32": _fma_mix,
    "fma_mixlo_f16": _fma_mix,
    "fma_mixhi_f16": _fma_mix,
    "pack_b32_f16": _pack,
    "ldexp_f32": _ldexp,
    "cndmask_b32": _select,
    "readfirstlane_b32": _read_lane,
    "readlane_b32": _read_lane,
    "writelane_b32": _write_lane,
    "add_co_u32": _carry,
    "addc_co_u32": _carry,
    "sub_co_u32": _carry,
    "subb_co_u32": _carry,
    "subrev_co_u32": _carry,
    "subbrev_co_u32": _carry,
    "mad_u64_u32": _mad64,
    "mad_i64_i32": _mad64,
    "lshlrev_b64": _shift64,
    "lshrrev_b64": _shift64,
    "ashrrev_i64": _shift64,
    "div_scale_f32": _div_scale,
    "div_scale_f64": _div_scale,
    "cvt_f32_f64": _convert64,
    "cvt_f64_f32": _convert64,
    "cvt_f64_i32": _convert64,
    "cvt_f64_u32": _convert64,
}
