"""The PCI bus as sysfs shows it; nothing here asks a driver."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from soak.core.records import Quantity, Reading
from soak.telemetry.plausible import judged, shown
from soak.telemetry.sysfs import entries, is_there, number_of, read_bytes, text_or_none, text_or_reading

VENDOR_IDS = {"amd": "0x1002", "nvidia": "0x10de"}
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_GT_PER_S = re.compile(r"([0-9.]+) GT/s")


def is_address(text: str) -> bool:
    """Whether this is a PCI address such as `0000:33:00.0`."""
    return _ADDRESS.fullmatch(text) is not None


def address_of(text: str) -> str | None:
    """A PCI address in the form used everywhere here (lower case, four digits of domain), or None."""
    parts = re.fullmatch(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text.strip().lower())
    if parts is None:
        return None
    domain, bus, device, function = parts.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or 0}"


def gpus_on_bus(root: Path, vendor: str) -> tuple[str, ...]:
    """Addresses of this vendor's display and 3D controllers, with or without a driver."""
    return tuple(
        folder.name
        for folder in entries(root / "sys/bus/pci/devices")
        if is_address(folder.name)
        and text_or_none(folder / "vendor") == VENDOR_IDS[vendor]
        and (text_or_none(folder / "class") or "").startswith("0x03")
    )


def links_to_root(device: Path) -> tuple[Path, ...]:
    """The PCI folders between a card and the root whose links carry its traffic, the card's own first.

    Cards with a bridge on board (Vega 20 is one) always tell the full speed on their own link; the slot's is
    the bridge's.
    """
    chain = [device, *device.parents]
    return tuple(f for f in chain if is_address(f.name) and is_there(f / "current_link_width")) or (device,)


def link_width(links: Sequence[Path]) -> Reading:
    """Lanes of the narrowest of these links."""
    return _least([_width(link / "current_link_width") for link in links])


def link_speed(links: Sequence[Path]) -> Reading:
    """Gigatransfers a second of the slowest of these links."""
    return _least([_speed(link / "current_link_speed") for link in links])


def link_width_max(links: Sequence[Path]) -> Reading:
    """Lanes that the narrowest of these links could have."""
    return _least([_width(link / "max_link_width") for link in links])


def link_speed_max(links: Sequence[Path]) -> Reading:
    """Gigatransfers a second that the slowest of these links could do."""
    return _least([_speed(link / "max_link_speed") for link in links])


def answers(device: Path) -> bool:
    """False where the device answers all ones in its configuration space: it fell off the bus."""
    try:
        return read_bytes(device / "config", 4) != b"\xff\xff\xff\xff"
    except OSError:
        return True  # not told here


def _least(readings: Sequence[Reading]) -> Reading:
    known = [reading for reading in readings if reading.value is not None]
    return min(known, key=lambda reading: reading.value or 0.0) if known else readings[0]


def _width(path: Path) -> Reading:
    text = text_or_reading(path)
    if isinstance(text, Reading):
        return text
    lanes = number_of(text)
    return _not_understood(path, text) if lanes is None else judged(Quantity.PCIE_WIDTH, lanes, text)


def _speed(path: Path) -> Reading:
    text = text_or_reading(path)
    if isinstance(text, Reading):
        return text
    found = _GT_PER_S.match(text)
    try:
        speed = float(found.group(1)) if found else None
    except ValueError:
        speed = None
    return _not_understood(path, text) if speed is None else judged(Quantity.PCIE_SPEED_GTS, speed, text)


def _not_understood(path: Path, text: str) -> Reading:
    return Reading.unreadable(f"{path.name} says {shown(text)}")
