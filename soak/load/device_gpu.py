"""The card as the runtime sees it, found by its PCI address: an index is not an identity."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from soak_kernels.device import architecture

from soak.load.engine import LoadError

_ADDRESS_BYTES = 32
_RUNTIMES = {"libcudart": "cudaDeviceGetPCIBusId", "libamdhip64": "hipDeviceGetPCIBusId"}


def find(gpu: str) -> torch.device:
    """The device at this PCI address (`0000:33:00.0`). Initialises the runtime. Raises LoadError."""
    if not torch.cuda.is_available():
        raise LoadError("worker_error", f"PyTorch {torch.__version__} offers no GPU; run soak doctor")
    addresses = [address(index) for index in range(torch.cuda.device_count())]
    if gpu not in addresses:
        offered = ", ".join(each or "one without a known PCI address" for each in addresses) or "none"
        raise LoadError("worker_error", f"the runtime does not offer {gpu}; it offers {offered}")
    return torch.device("cuda", addresses.index(gpu))


def address(index: int) -> str | None:
    """The PCI address of a device of the runtime; None where neither PyTorch nor the runtime tells."""
    properties = torch.cuda.get_device_properties(index)
    domain = getattr(properties, "pci_domain_id", None)
    bus, slot = getattr(properties, "pci_bus_id", None), getattr(properties, "pci_device_id", None)
    if domain is not None and bus is not None and slot is not None:
        return f"{domain:04x}:{bus:02x}:{slot:02x}.0"
    return _ask_runtime(index)


def facts(device: torch.device) -> dict[str, Any]:
    """The device in words, for the record."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "arch": architecture(device),
        "memory_total_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
    }


def versions() -> dict[str, str]:
    found = {"torch": str(torch.__version__), "cuda": torch.version.cuda, "hip": torch.version.hip}
    return {name: version for name, version in found.items() if version}


def require_memory(device: torch.device, needed: int) -> None:
    """Raises LoadError where the load does not fit what is free now."""
    free, total = torch.cuda.mem_get_info(device)
    if needed > free:
        gib = 1 << 30
        raise LoadError(
            "out_of_device_memory",
            f"the load takes {needed / gib:.1f} GiB, the card has {free / gib:.1f} GiB free of "
            f"{total / gib:.1f} GiB; free it, or give fewer --tokens",
        )


def _ask_runtime(index: int, maps: Path = Path("/proc/self/maps")) -> str | None:
    """From the library that PyTorch has loaded, for versions that do not pass the address on."""
    for line in maps.read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        name = next((name for name in _RUNTIMES if Path(path).name.startswith(name)), None)
        if name is None:
            continue
        text = ctypes.create_string_buffer(_ADDRESS_BYTES)
        if getattr(ctypes.CDLL(path), _RUNTIMES[name])(text, _ADDRESS_BYTES, index) == 0:
            return text.value.decode().lower()
    return None
