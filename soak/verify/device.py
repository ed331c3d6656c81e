"""What a round asks of a device besides attention: its memory, and when it has done everything."""

from __future__ import annotations

import ctypes
import gc
import mmap
import time
from pathlib import Path
from typing import Protocol

import torch


class Device(Protocol):
    def finish(self) -> None:
        """Returns when all work is done."""

    def now_s(self) -> float:
        """Of the clock that a rate is measured by."""

    def settle(self) -> None:
        """Returns when all work is done and every free byte was given back."""

    def in_use(self) -> int:
        """Bytes that are not free."""

    def size(self) -> int | None:
        """Bytes that there are; None where that is not this process's to say."""

    def fragmentation(self) -> float | None:
        """Of the allocator: the share of what it holds that nobody uses and it cannot give back."""

    def cache_bytes(self) -> int:
        """More than every cache on the way to memory holds."""


class Card:
    """A GPU. Its memory is everybody's: what another process takes meanwhile counts too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def finish(self) -> None:
        torch.cuda.synchronize(self._device)

    def now_s(self) -> float:
        return time.perf_counter()

    def settle(self) -> None:
        gc.collect()
        self.finish()
        torch.cuda.empty_cache()

    def in_use(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return int(total - free)

    def size(self) -> int | None:
        return int(torch.cuda.mem_get_info(self._device)[1])

    def fragmentation(self) -> float | None:
        torch.cuda.synchronize(self._device)
        stats = torch.cuda.memory_stats(self._device)
        reserved = stats.get("reserved_bytes.all.current", 0)
        return stats.get("inactive_split_bytes.all.current", 0) / reserved if reserved else 0.0

    def cache_bytes(self) -> int:
        return 1 << 30


class Host:
    """This process: what it has of the machine's memory."""

    def finish(self) -> None:
        return None

    def now_s(self) -> float:
        return time.process_time()

    def settle(self) -> None:
        gc.collect()
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # glibc's
            trim(0)

    def in_use(self) -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * mmap.PAGESIZE

    def size(self) -> int | None:
        return None

    def fragmentation(self) -> float | None:
        """By glibc's mallinfo2: bytes of its heap that are free."""
        ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
        if ask is None:
            return None
        ask.restype = _Mallinfo2
        info = ask()
        return info.fordblks / info.arena if info.arena else 0.0

    def cache_bytes(self) -> int:
        return 1 << 28


class _Mallinfo2(ctypes.Structure):
    """As glibc lays it out (mallinfo2(3)), each a size_t."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    )  # fmt: skip


def device_of(device: torch.device) -> Device:
    return Host() if device.type == "cpu" else Card(device)
