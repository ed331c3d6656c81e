"""An NVIDIA card's settings, from NVML and sysfs, and the processes that compute on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from soak.doctor.facts import CardLook, Holder
from soak.doctor.look_amd import link_of, numa_node
from soak.telemetry.nvidia import GTS_OF_GENERATION, library
from soak.telemetry.sysfs import text_or_none


def look_at_nvidia(root: Path, gpu: str) -> CardLook:
    """Raises Unavailable without NVML, NVMLError where it does not have the card."""
    nvml = library(root)
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByPciBusId(gpu)

    def fact(question: Callable[[], Any]) -> Any:
        try:
            return question()
        except (AttributeError, nvml.NVMLError):
            return None

    width, width_max, speed, speed_max = link_of(root / "sys/bus/pci/devices" / gpu)
    generation = fact(lambda: nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
    limit_mw = fact(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    default_mw = fact(lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
    persistence = fact(lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    processes = fact(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
    return CardLook(
        power_cap_w=limit_mw / 1000 if limit_mw else None,
        power_default_w=default_mw / 1000 if default_mw else None,
        link_width=width or fact(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        link_width_max=width_max or fact(lambda: nvml.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        link_speed_gts=speed,
        link_speed_max_gts=speed_max or GTS_OF_GENERATION.get(generation),
        numa_node=numa_node(root / "sys/bus/pci/devices" / gpu),
        persistence=None if persistence is None else persistence == 1,
        holders=tuple(_holder(root, process) for process in processes),
        troubles=tuple(_troubles(nvml, fact(lambda: nvml.nvmlDeviceGetRemappedRows(handle)))),
        restraints=tuple(_restraints(nvml, fact(lambda: nvml.nvmlDeviceGetComputeMode(handle)))),
    )


def _holder(root: Path, process: Any) -> Holder:
    """Its name is of this pid namespace; another's process has none here, or another's name."""
    return Holder(
        process.pid, text_or_none(root / "proc" / str(process.pid) / "comm") or "", process.usedGpuMemory
    )


def _troubles(_: Any, rows: Any) -> Iterator[str]:
    if rows and rows[2]:
        yield "memory rows wait for a reset to be remapped"
    if rows and rows[3]:
        yield "a memory row could not be remapped"


def _restraints(nvml: Any, mode: Any) -> Iterator[str]:
    if mode == nvml.NVML_COMPUTEMODE_PROHIBITED:
        yield "its compute mode is prohibited: no program may use it"
