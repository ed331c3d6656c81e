"""What a sensor can possibly say: one table for every backend. Outside of it a value is unreadable."""

from __future__ import annotations

import math
from collections.abc import Mapping

from soak.core.records import Quantity, Reading

_TEMPERATURE_C = (1.0, 150.0)  # a powered chip at exactly 0 is a sensor that is not there; 65535 is all ones
_CLOCK_HZ = (0.0, 10e9)  # 0: gated
_PERCENT = (0.0, 100.0)
_FLAG = (0.0, 1.0)

BOUNDS: Mapping[Quantity, tuple[float, float]] = {
    Quantity.UTILISATION_PCT: _PERCENT,
    Quantity.MEMORY_BUSY_PCT: _PERCENT,
    Quantity.TEMPERATURE_EDGE_C: _TEMPERATURE_C,
    Quantity.TEMPERATURE_JUNCTION_C: _TEMPERATURE_C,
    Quantity.TEMPERATURE_MEMORY_C: _TEMPERATURE_C,
    Quantity.TEMPERATURE_CORE_C: _TEMPERATURE_C,
    Quantity.POWER_W: (0.0, 5000.0),  # 0 W under load is judged where the load is known
    Quantity.CLOCK_CORE_HZ: _CLOCK_HZ,
    Quantity.CLOCK_MEMORY_HZ: _CLOCK_HZ,
    Quantity.MEMORY_TOTAL_BYTES: (1.0, 2.0**46),  # 64 TiB; the vendors' blanks begin at 2^47
    Quantity.MEMORY_FREE_BYTES: (0.0, 2.0**46),
    Quantity.THERMAL_THROTTLE: _FLAG,
    Quantity.POWER_THROTTLE: _FLAG,
    Quantity.PCIE_WIDTH: (1.0, 32.0),  # a dead device answers all ones, which reads as 63 lanes
    Quantity.PCIE_SPEED_GTS: (1.0, 256.0),
    Quantity.PCIE_REPLAYS: (0.0, 2.0**32 - 2),
    Quantity.SM_ACTIVE_PCT: _PERCENT,
    Quantity.TENSOR_ACTIVE_PCT: _PERCENT,
    Quantity.DRAM_ACTIVE_PCT: _PERCENT,
    Quantity.MEMORY_GTT_USED_BYTES: (0.0, 2.0**46),
    Quantity.MEMORY_VISIBLE_USED_BYTES: (0.0, 2.0**46),
    Quantity.ENERGY_J: (0.0, 2.0**44),  # 5 kW for a century
}

COUNT_MAX = 2**40  # no card counts a million million errors in its life
ALL_ONES = frozenset({2**32 - 1})  # what an unfilled 32-bit counter holds; wider ones are above COUNT_MAX


def judged(quantity: Quantity, value: float, raw: str = "") -> Reading:
    """`value` as a reading, or unreadable with what the sensor said (`raw`, else the value itself)."""
    low, high = BOUNDS[quantity]
    if math.isfinite(value) and low <= value <= high:
        return Reading.ok(float(value))
    return Reading.unreadable(f"impossible value {shown(raw) if raw else f'{value:g}'}")


def counted(value: int, raw: str = "") -> Reading:
    """An error counter as a reading, or unreadable with what it said."""
    if 0 <= value <= COUNT_MAX and value not in ALL_ONES:
        return Reading.ok(float(value))
    return Reading.unreadable(f"impossible count {shown(raw) if raw else value}")


def is_name(text: str) -> bool:
    """Whether a text may be shown as a name: printable and decoded (a worn EEPROM gives other bytes)."""
    return bool(text) and text.isprintable() and "\ufffd" not in text


def printable(text: str) -> str:
    """Words of others for a terminal: what would steer it, or end the line, is a question mark."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def shown(text: str, limit: int = 60) -> str:
    """A sensor's own words, short and printable."""
    return repr(text if len(text) <= limit else text[:limit] + "…")
