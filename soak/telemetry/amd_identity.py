"""Which amdgpu card this is: model, architecture, firmware, and whether an MI50 is one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from soak.telemetry.sysfs import entries, name_in, number_of, text_or_none

VEGA20_IDS = frozenset({"0x66a0", "0x66a1", "0x66a2", "0x66a3", "0x66a4", "0x66a7", "0x66af"})

# Board part in the VBIOS's name -> model. Sources: AMD's VBIOS names as boot logs and flash tools print them.
VEGA20_BOARDS: Mapping[str, str] = {
    "D16314": "AMD Instinct MI50 16GB",
    "D16317": "AMD Instinct MI50 32GB",
    "D36002": "AMD Radeon VII",
}
_RADEON_VII = "AMD Radeon VII"
_MODELS: Mapping[str, str] = {  # by PCI device id, where neither the board nor its firmware tells
    "0x66a0": "AMD Instinct (Vega 20)",
    "0x66a1": "AMD Instinct MI50/MI60",
    "0x66a3": "AMD Radeon Pro Vega II",
    "0x66af": _RADEON_VII,
}


def model(device: Path) -> str | None:
    """The board's own name, else what its firmware is for, else what its PCI id stands for."""
    return name_in(device / "product_name") or _board(device) or _MODELS.get(name_in(device / "device") or "")


def origin_notes(device: Path) -> tuple[str, ...]:
    """Whether the board is what it is sold as."""
    device_id, vbios, board = (
        name_in(device / "device"),
        name_in(device / "vbios_version"),
        _board(device),
    )
    if device_id not in VEGA20_IDS:
        return ()
    if board == _RADEON_VII or device_id == "0x66af":
        return (
            f"carries Radeon VII firmware (device {device_id}, VBIOS {vbios}): "
            "where it was sold as an MI50, its ECC is not an MI50's",
        )
    if board is not None:
        return (f"genuine {board} by device {device_id} and VBIOS {vbios}",)
    return (f"Vega 20 of an unknown board: device {device_id}, VBIOS {vbios}",)


def unique_id(device: Path) -> str | None:
    """`GPU-` and 16 hexadecimal digits, as the ROCm runtime names the card; None where the board has none."""
    text = name_in(device / "unique_id")
    if text is None or not re.fullmatch(r"[0-9a-fA-F]{16}", text) or set(text) == {"0"}:
        return None
    return f"GPU-{text.lower()}"


def arch(root: Path, gpu: str, device: Path) -> str | None:
    """The compiler's name of the architecture (`gfx906`), from the compute driver's topology; else from the
    PCI id of the cards that are known."""
    nodes = [_properties(path) for path in entries(root / "sys/class/kfd/kfd/topology/nodes")]
    gpus = [node for node in nodes if node.get("gfx_target_version", 0) > 0]
    here = [node for node in gpus if _address(node) == gpu]
    device_id = name_in(device / "device")
    alike = [
        node for node in gpus if "location_id" not in node and hex(node.get("device_id", 0)) == device_id
    ]
    for node in here or alike:
        major, rest = divmod(node["gfx_target_version"], 10_000)
        minor, stepping = divmod(rest, 100)
        return f"gfx{major}{minor:x}{stepping:x}"
    return "gfx906" if device_id in VEGA20_IDS else None


def driver(root: Path) -> str | None:
    """The driver's own version, else the kernel's."""
    own = name_in(root / "sys/module/amdgpu/version")
    kernel = name_in(root / "proc/sys/kernel/osrelease")
    return f"amdgpu {own}" if own else f"amdgpu of Linux {kernel}" if kernel else None


def _board(device: Path) -> str | None:
    part = re.match(r"\d{3}-(D\d{5})", name_in(device / "vbios_version") or "")
    return VEGA20_BOARDS.get(part.group(1)) if part else None


def _properties(node: Path) -> dict[str, int]:
    """A node's `key number` lines; {} where the container may not read it."""
    pairs = (line.split() for line in (text_or_none(node / "properties") or "").splitlines())
    return {pair[0]: value for pair in pairs if len(pair) == 2 and (value := number_of(pair[1])) is not None}


def _address(node: Mapping[str, int]) -> str | None:
    if "location_id" not in node:
        return None
    location = node["location_id"]
    domain = node.get("domain", 0)
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
