"""amdgpu's binary `gpu_metrics`: a header with a version, then a table of that version.

Layouts: kgd_pp_interface.h of the kernel. A field full of ones is one that the firmware does not fill.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from soak.core.records import Reading

SIZE_MAX = 4096  # bytes; the file is never longer


@dataclass(frozen=True, slots=True)
class Field:
    offset: int
    format: str  # of `struct`, little-endian
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Metrics:
    """`values`: filled fields by name, in %, °C, W, MHz; `version`: format and content revision."""

    version: tuple[int, int]
    values: Mapping[str, float]
    throttle: int | None  # the vendor-wide bits where this version has them, else the ASIC's own
    throttle_is_common: bool
    residency: tuple[int, int] | None = None  # v3 counts throttled time instead: heat, power


def _fields(start: int, names: str, scale: float = 1.0) -> dict[str, Field]:
    """16-bit fields one after another; `-` skips one."""
    named = ((name, start + 2 * index) for index, name in enumerate(names.split()))
    return {name: Field(offset, "H", scale) for name, offset in named if name != "-"}


_V1_0 = {
    **_fields(16, "edge_c junction_c memory_c"),
    **_fields(28, "busy_pct memory_busy_pct - power_w"),
    **_fields(54, "core_mhz - memory_mhz"),
    "throttle": Field(68, "I"),
}
_V1_1 = {
    **_fields(4, "edge_c junction_c memory_c - - - busy_pct memory_busy_pct - power_w"),
    **_fields(54, "core_mhz - memory_mhz"),
    "throttle": Field(68, "I"),
}
_V2 = {  # activity and power are in units of 1 or 1/100 %, W or mW, by ASIC: not taken
    **_fields(4, "edge_c", 0.01),
    **_fields(64, "core_mhz - memory_mhz"),
    "throttle": Field(108, "I"),
}
_V3_0 = {
    **_fields(4, "edge_c", 0.01),
    **_fields(42, "busy_pct"),
    "power_w": Field(112, "I", 0.001),
    **_fields(174, "core_mhz - - - - - memory_mhz"),
}
_LAYOUTS: Mapping[tuple[int, int], tuple[int, Mapping[str, Field]]] = {  # version: (size, fields)
    (1, 0): (80, _V1_0),
    (1, 1): (96, _V1_1),
    (1, 2): (104, _V1_1),
    (1, 3): (120, _V1_1 | {"common_throttle": Field(112, "Q")}),
    (2, 1): (120, _V2),
    (2, 2): (128, _V2 | {"common_throttle": Field(120, "Q")}),
    (2, 3): (152, _V2 | {"common_throttle": Field(120, "Q")}),
    (2, 4): (168, _V2 | {"common_throttle": Field(120, "Q")}),
    (3, 0): (264, _V3_0),
}
_RESIDENCY_HEAT = Field(244, "3I")  # core, gfx, soc
_RESIDENCY_POWER = Field(232, "3I")  # sustained, fast and slow power limits

COMMON_HEAT = sum(1 << bit for bit in (*range(32, 48),))  # SMU_THROTTLER_TEMP_*, VRHOT*, PROCHOT_*
COMMON_POWER = sum(1 << bit for bit in (*range(8), *range(16, 24)))  # PPT, SPL; current limits
VEGA20_HEAT = sum(1 << bit for bit in range(1, 11))  # THROTTLER_STATUS_TEMP_* of smu11_driver_if.h
VEGA20_POWER = sum(1 << bit for bit in (11, 12, 13))  # current of gfx and soc, package power


def decoded(data: bytes) -> Metrics | Reading:
    """The table, or why there is none. `data` may be longer than the table (some kernels pad a page)."""
    if len(data) < 4:
        return Reading.unreadable(f"gpu_metrics has {len(data)} bytes")
    size, format_revision, content_revision = struct.unpack_from("<HBB", data)
    version = (format_revision, content_revision)
    if version not in _LAYOUTS:
        return Reading.unsupported(f"gpu_metrics v{format_revision}.{content_revision} is not known here")
    expected, fields = _LAYOUTS[version]
    if size != expected or len(data) < size:
        name = f"gpu_metrics v{format_revision}.{content_revision}"
        return Reading.unreadable(f"{name} has {len(data)} bytes, says {size}, is {expected}")
    raw = {name: _filled(data, field) for name, field in fields.items()}
    common, own = raw.pop("common_throttle", None), raw.pop("throttle", None)
    residency = None
    if version == (3, 0):
        heat, power = (struct.unpack_from("<3I", data, f.offset) for f in (_RESIDENCY_HEAT, _RESIDENCY_POWER))
        residency = (sum(heat), sum(power))
    return Metrics(
        version=version,
        values={name: value * fields[name].scale for name, value in raw.items() if value is not None},
        throttle=own if common is None else common,
        throttle_is_common=common is not None,
        residency=residency,
    )


def throttled(metrics: Metrics, *, is_vega20: bool) -> tuple[bool, bool] | None:
    """Whether the card slows itself for heat, for power; None where these bits are not known."""
    if metrics.throttle is None:
        return None
    if metrics.throttle_is_common:
        masks = COMMON_HEAT, COMMON_POWER
    elif is_vega20:
        masks = VEGA20_HEAT, VEGA20_POWER
    else:
        return None
    return bool(metrics.throttle & masks[0]), bool(metrics.throttle & masks[1])


def _filled(data: bytes, field: Field) -> int | None:
    (value,) = struct.unpack_from("<" + field.format, data, field.offset)
    all_ones = (1 << 8 * struct.calcsize("<" + field.format)) - 1
    return None if value == all_ones else int(value)
