"""Xids as NVML announces them: a second way to hear what the kernel log says, open to containers without it.

Each is handed on as the kernel log's line of the same Xid would be, to the same listener, which tells what it
means and keeps back what was told a moment ago.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from soak.telemetry.nvml import Nvml
from soak.telemetry.pci import address_of
from soak.telemetry.sensors import Unavailable

WAIT_MS = 5_000  # NVML's own wait; its end is no event


class NvmlEvents:
    """Waits for Xids of `gpus` in a thread of its own; ends where this driver or card announces none.

    `session` gives NVML, started, or raises Unavailable; it may hang. `hear` takes lines.
    """

    def __init__(
        self, session: Callable[[], Nvml], gpus: Collection[str], hear: Callable[[str], None]
    ) -> None:
        self._session = session
        self._gpus = tuple(gpus)
        self._hear = hear

    def start(self) -> None:
        threading.Thread(target=self.follow, name="NVML events", daemon=True).start()

    def follow(self) -> None:
        """Until the driver refuses. A corroborating witness: that it is silent is no finding."""
        try:
            nvml = self._session()
            events = self._registered(nvml)
        except Unavailable:
            return
        while events is not None:
            try:
                event = nvml.nvmlEventSetWait_v2(events, WAIT_MS)
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError:
                return  # a lost card: its own sensors tell
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._hear(f"NVRM: Xid (PCI:{_address(nvml, event.device)}): {event.eventData}, told by NVML")

    def _registered(self, nvml: Nvml) -> Any:
        """A set of events with every card that announces Xids; None where none does."""
        n_registered = 0
        try:
            events = nvml.nvmlEventSetCreate()
        except (AttributeError, nvml.NVMLError):
            return None
        for gpu in self._gpus:
            try:
                handle = nvml.nvmlDeviceGetHandleByPciBusId(gpu)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError:
                continue
            n_registered += 1
        return events if n_registered else None


def _address(nvml: Nvml, handle: Any) -> str:
    try:
        told = nvml.nvmlDeviceGetPciInfo(handle).busId
    except nvml.NVMLError:
        return "unknown"  # lost with the Xid that says so; its own sensors tell
    return address_of(told.decode() if isinstance(told, bytes) else told) or "unknown"
