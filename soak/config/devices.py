"""How a person names cards, and which cards are meant. A PCI address is an identity; an index is not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from soak.config.readers import Refused, texts
from soak.core.errors import CannotRun
from soak.core.records import Device

_LEGAL = "all, cpu, cuda:0,1, a PCI address like 0000:33:00.0, or a UUID like GPU-1a2b3c4d…"
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])", re.IGNORECASE)
_UUID = re.compile(r"gpu-([0-9a-f][0-9a-f-]{6,62}[0-9a-f])", re.IGNORECASE)
_CUDA = re.compile(r"cuda:([0-9]{1,3})", re.IGNORECASE)
_INDEX = re.compile(r"[0-9]{1,3}")
_MOST = 64


def devices(value: object) -> tuple[str, ...]:
    """Reads `--device`, to names in one spelling: `all`, `cpu`, `cuda:1`, `0000:33:00.0`, `GPU-1a2b…`."""
    names: list[str] = []
    for text in texts(value):
        after_index = bool(names) and names[-1].startswith("cuda:")
        names.append(f"cuda:{int(text)}" if after_index and _INDEX.fullmatch(text) else _one(text))
    for alone in ("all", "cpu"):
        if alone in names and len(names) > 1:
            raise Refused(f"{value!r} mixes {alone} with other devices; name {alone} alone, or each card")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Refused(f"{value!r} names {twice[0]} twice; name each card once")
    if len(names) > _MOST:
        raise Refused(f"{len(names)} devices are too many; at most {_MOST}")
    return tuple(names)


def _one(text: str) -> str:
    if text.lower() in ("all", "cpu"):
        return text.lower()
    if found := _CUDA.fullmatch(text):
        return f"cuda:{int(found[1])}"
    if _PCI.fullmatch(text):
        return pci_address(text)
    if found := _UUID.fullmatch(text):
        return f"GPU-{found[1].lower()}"
    hint = f"; for the card of that index write cuda:{text}" if _INDEX.fullmatch(text) else ""
    raise Refused(f"{text!r} is not a device; legal: {_LEGAL}{hint}")


def pci_address(text: str) -> str:
    """The kernel's spelling of a PCI address: four-digit domain, lower case. Takes one without a domain, and
    the eight-digit domain of NVIDIA's tools."""
    found = _PCI.fullmatch(text)
    assert found is not None
    return f"{int(found[1] or '0', 16):04x}:{found[2].lower()}:{found[3].lower()}.{found[4]}"


def select(wanted: Sequence[str], found: Sequence[Device]) -> tuple[Device, ...]:
    """The cards that `wanted` (names as `devices` makes them) means among those of the machine, in its order.

    Raises CannotRun where one is not there, naming those that are.
    """
    if "cpu" in wanted:
        return _present("cpu", [device for device in found if device.gpu == "cpu"], found)
    cards = [device for device in found if device.gpu != "cpu"]
    if "all" in wanted:
        return _present("all", cards, cards)
    chosen: list[Device] = []
    for name in wanted:
        (device,) = _present(name, [card for card in cards if name in _names(card)][:1], cards)
        if device in chosen:
            raise CannotRun(f"{device.gpu} is named twice, once as {name}; name each card once.")
        chosen.append(device)
    return tuple(chosen)


def _present(name: str, matching: Sequence[Device], found: Iterable[Device]) -> tuple[Device, ...]:
    if not matching:
        there = ", ".join(device.gpu for device in found) or "no GPU"
        raise CannotRun(
            f"The device {name} is not there; this machine offers {there}. `soak doctor` says why."
        )
    return tuple(matching)


def _names(device: Device) -> frozenset[str]:
    uuid = (device.uuid or "").lower().removeprefix("gpu-")
    return frozenset({device.gpu, f"cuda:{device.index}", f"GPU-{uuid}"})
