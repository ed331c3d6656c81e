"""Operands as functions: text is read once, when the program is loaded; what is left reads registers.

Scalar readers give [W] (one value a wave), vector readers [W, 64] or what broadcasts to it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from soak_kernels.gfx906.machine import EXEC, F32, M0, U32, VCC, Bool, EmulationError, Waves

Read = Callable[[Waves], Any]

_NAMED = {
    "vcc": VCC, "vcc_lo": VCC, "vcc_hi": VCC + 1, "exec": EXEC, "exec_lo": EXEC, "exec_hi": EXEC + 1,
    "m0": M0,
}  # fmt: skip
_SIGN = np.uint32(0x8000_0000)
_MAGNITUDE = np.uint32(0x7FFF_FFFF)


def register(text: str) -> int:
    """The number of the first register of `v3`, `v[3:4]`, `s[8:9]`, `vcc`, `exec`, ..."""
    if text in _NAMED:
        return _NAMED[text]
    found = re.fullmatch(r"[sv](?:(\d+)|\[(\d+):\d+\])", text)
    if found is None:
        raise EmulationError(f"no register: {text!r}")
    return int(found.group(1) or found.group(2))


def is_vector(text: str) -> bool:
    return re.match(r"[-|]*v[\d\[]", text) is not None


def is_scalar(text: str) -> bool:
    return text in _NAMED or re.match(r"s[\d\[]", text) is not None


def literal(text: str) -> int:
    """The 32 bits of a constant: an integer, or a float in decimal notation as float32."""
    negated = re.fullmatch(r"neg\((.*)\)", text)
    if negated:
        return literal(negated.group(1)) ^ 0x8000_0000
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)", text):
        return int(text, 0) & 0xFFFF_FFFF
    try:
        return int(struct.unpack("<I", struct.pack("<f", float(text)))[0])
    except ValueError:
        raise EmulationError(f"no constant: {text!r}") from None


def scalar(text: str) -> Read:
    """uint32, one a wave."""
    if is_scalar(text):
        number = register(text)
        return lambda w: w.s[:, number]
    value = np.uint32(literal(text))
    return lambda w: np.full(w.n, value)


def scalar64(text: str) -> Read:
    """uint64, one a wave; a constant is sign-extended."""
    if is_scalar(text):
        number = register(text) // 2
        return lambda w: w.s64[:, number]
    bits = literal(text)
    value = np.uint64(
        (bits - (1 << 32)) & 0xFFFF_FFFF_FFFF_FFFF if bits >> 31 and text.startswith("-") else bits
    )
    return lambda w: np.full(w.n, value)


def lanes(text: str) -> Callable[[Waves], Bool]:
    """A mask of lanes."""
    if is_scalar(text):
        number = register(text)
        return lambda w: w.lanes(number)
    bits = scalar64(text)

    def read(w: Waves) -> Bool:
        flags: Bool = (bits(w)[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)).astype(np.bool_)
        return flags

    return read


def vector(text: str) -> Callable[[Waves], U32]:
    """uint32 per lane, with -x and |x| as the sign bit of a float32."""
    plain, negate, absolute = _signs(text)
    read: Read
    if is_vector(plain):
        number = register(plain)
        read = lambda w: w.v[number]  # noqa: E731 - a way to read
    elif is_scalar(plain):
        number = register(plain)
        read = lambda w: w.s[:, number, None]  # noqa: E731 - a way to read
    else:
        value = np.full((1, 1), literal(plain), np.uint32)
        read = lambda w: value  # noqa: ARG005, E731 - whoever asks
    if negate and absolute:
        return lambda w: read(w) | _SIGN
    if negate:
        return lambda w: read(w) ^ _SIGN
    if absolute:
        return lambda w: read(w) & _MAGNITUDE
    return read


def floating(text: str) -> Callable[[Waves], F32]:
    """float32 per lane."""
    plain, negate, absolute = _signs(text)
    if is_vector(plain) and not negate and not absolute:
        number = register(plain)
        return lambda w: w.f[number]
    bits = vector(text)
    return lambda w: np.ascontiguousarray(bits(w)).view(np.float32)


def vector64(text: str) -> Read:
    """uint64 per lane from a pair of registers; a constant is zero-extended (sign-extended where
    negative)."""
    if is_vector(text):
        number = register(text)
        return lambda w: w.v[number].astype(np.uint64) | (w.v[number + 1].astype(np.uint64) << np.uint64(32))
    read = scalar64(text)
    return lambda w: read(w)[:, None]


def floating64(text: str) -> Read:
    """float64 per lane; a constant is what the text says."""
    negate = text.startswith("-") and not re.match(r"-[\d.]", text)
    plain = text.removeprefix("-").strip("|") if negate or text.startswith("|") else text
    if not is_vector(plain) and not is_scalar(plain):
        value = np.full((1, 1), _double(plain))
        return lambda w: value  # noqa: ARG005 - whoever asks
    bits = vector64(plain)

    def read(w: Waves) -> Any:
        x = np.ascontiguousarray(bits(w)).view(np.float64)
        x = np.abs(x) if "|" in text else x
        return -x if negate else x

    return read


def put64(w: Waves, number: int, bits: Any) -> None:
    """uint64 per lane into a pair of vector registers."""
    w.put(number, (bits & np.uint64(0xFFFF_FFFF)).astype(np.uint32))
    w.put(number + 1, (bits >> np.uint64(32)).astype(np.uint32))


def _double(text: str) -> float:
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", text):  # a 32-bit constant is the high half of a double
        return float(struct.unpack("<d", struct.pack("<Q", int(text, 16) << 32))[0])
    return float(text)


def _signs(text: str) -> tuple[str, bool, bool]:
    """(operand without signs, negated, absolute); the sign of a constant stays with it."""
    negate = bool(re.match(r"-[vs|]", text))
    plain = text[1:] if negate else text
    absolute = plain.startswith("|")
    return plain.strip("|"), negate, absolute
