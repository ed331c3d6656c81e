"""The files of a machine that its telemetry is read from, copied with their folders and links.

Never opened: `pcie_bw` (a read sleeps for a second), debugfs (it injects errors), `rom`, `resource*`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from soak.doctor.pseudonyms import Pseudonyms
from soak.telemetry import cgroup, pci
from soak.telemetry.amd import cards
from soak.telemetry.sysfs import errno_name, read_bytes, text_or_none

FILE_MAX = 64 * 1024
_STAT_MAX = 1 << 20

_OF_AMD_CARD = (
    "uevent", "vendor", "device", "class", "revision", "subsystem_vendor", "subsystem_device", "numa_node",
    "unique_id", "serial_number", "product_name", "product_number", "manufacturer", "vbios_version",
    "gpu_busy_percent", "mem_busy_percent", "mem_info_*", "gpu_metrics", "pcie_replay_count",
    "current_link_*", "max_link_*", "pp_dpm_*", "power_dpm_force_performance_level",
    "thermal_throttling_logging", "aer_dev_*", "power/runtime_status", "hwmon/hwmon*/*", "ras/*",
)  # fmt: skip
_UNIQUE = ("unique_id", "serial_number")
_OF_BRIDGE = ("class", "vendor", "device", "current_link_*", "max_link_*")
_OF_AMD_MACHINE = (
    "sys/module/amdgpu/version", "sys/module/amdgpu/parameters/ras_enable", "proc/sys/kernel/osrelease",
    "sys/class/kfd/kfd/topology/nodes/*/properties", "sys/class/kfd/kfd/topology/nodes/*/gpu_id",
)  # fmt: skip
_OF_CPU = (
    "proc/sys/kernel/osrelease", "proc/meminfo",
    "sys/class/thermal/thermal_zone*/type", "sys/class/thermal/thermal_zone*/temp",
    "sys/devices/system/edac/mc/mc*/*e_count", "sys/devices/system/edac/mc/mc*/mc_name",
    "sys/devices/system/cpu/cpu[0-7]/cpufreq/scaling_cur_freq",
    "sys/class/powercap/*/name", "sys/class/powercap/*/max_energy_range_uj", "sys/class/powercap/*/energy_uj",
)  # fmt: skip
_HWMON_NAMES = frozenset({"coretemp", "k10temp", "zenpower", "cpu_thermal"})
_OF_CGROUP = (
    "cpu.max", "cpu.stat", "memory.max", "memory.current", "memory.stat", "cpu.cfs_quota_us",
    "cpu.cfs_period_us", "cpuacct.usage", "memory.limit_in_bytes", "memory.usage_in_bytes",
)  # fmt: skip


@dataclass
class FileCopies:
    """Copies from `root` (real, absolute) to `folder`. `unreadable`: path and errno of what was there and
    could not be read."""

    root: Path
    folder: Path
    pseudonyms: Pseudonyms
    n_files: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def copy_amd(self) -> None:
        """Every card of the amdgpu driver, with the bridges above it."""
        found = cards(self.root)
        for device in found.values():
            unique = [text for name in _UNIQUE if (text := text_or_none(device / name))]
            decimal = [str(int(text, 16)) for text in unique if re.fullmatch(r"[0-9a-f]{16}", text)]
            self.pseudonyms.learn(unique + decimal)  # decimal: as the compute driver's topology writes it
        for gpu, device in found.items():
            self._copy_all(device, _OF_AMD_CARD)
            for bridge in pci.links_to_root(device)[1:]:
                self._copy_all(bridge, _OF_BRIDGE)
            for folder in [device, *device.parents]:
                if pci.is_address(folder.name):
                    self.link(self.root / "sys/bus/pci/devices" / folder.name)
            self.link(self.root / "sys/bus/pci/drivers/amdgpu" / gpu)
        for card in self.root.glob("sys/class/drm/card*/device"):
            if card.resolve() in found.values():
                self.link(card)
        self._copy_all(self.root, _OF_AMD_MACHINE)

    def copy_cpu(self) -> None:
        """Processor time, memory, temperatures, error counters, clocks, energy, and the limits of cgroups."""
        self._copy_all(self.root, _OF_CPU)
        for chip in self.root.glob("sys/class/hwmon/hwmon*"):
            if text_or_none(chip / "name") in _HWMON_NAMES:
                self._copy_all(chip, ("name", "temp*"))
        self.copy(self.root / "proc/cpuinfo", limit=4096)  # the first processors say it all
        self.copy(self.root / "proc/stat", limit=_STAT_MAX)
        self._write_text("proc/self/cgroup", _lines(self.root / "proc/self/cgroup"))
        mounts = [line for line in _lines(self.root / "proc/self/mountinfo") if " - cgroup" in line]
        self._write_text("proc/self/mountinfo", mounts)
        for folder in sorted(
            {f for kind in ("cpu", "memory", "cpuacct") for f, _ in cgroup.levels(self.root, kind)}
        ):
            self._copy_all(folder, _OF_CGROUP)

    def copy(self, path: Path, limit: int = FILE_MAX) -> None:
        """One file, at its real place, with the links that led to it."""
        real = self.link(path)
        try:
            content = read_bytes(real, limit)
        except OSError as error:
            self.unreadable.append((str(path.relative_to(self.root)), errno_name(error)))
            return
        self._write(self._place(real), content)

    def link(self, path: Path) -> Path:
        """Makes the links on the way to `path`; its real path, below the root."""
        at = self.root
        for part in path.relative_to(self.root).parts:
            step = at / part
            real = Path(os.path.realpath(step))  # resolve() refuses loops, which need no copy and no end
            if step.is_symlink() and real != step and real.is_relative_to(self.root):
                at = real
                self._make_link(self._place(step), self._place(at))
            else:
                at = step
        return at

    def _make_link(self, link: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)  # a folder in each case here
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink() and not link.exists():
            link.symlink_to(os.path.relpath(target, link.parent))

    def _copy_all(self, folder: Path, patterns: tuple[str, ...]) -> None:
        for path in _matching(folder, patterns):
            self.copy(path)

    def _place(self, real: Path) -> Path:
        return self.folder / self.pseudonyms.hide(str(real.relative_to(self.root)))

    def _write_text(self, name: str, lines: list[str]) -> None:
        if lines:
            self._write(self.folder / name, "".join(f"{line}\n" for line in lines).encode())

    def _write(self, place: Path, content: bytes) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.name in _UNIQUE and not content.isascii():  # a worn EEPROM: its text was not learned
            content = re.sub(rb"[0-9A-Za-z]", b"0", content)
        hidden = self.pseudonyms.hide(content.decode("utf-8", "surrogateescape"))
        place.write_bytes(hidden.encode("utf-8", "surrogateescape"))
        self.n_files += 1


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and path.name != "pcie_bw":
                yield path


def _lines(path: Path) -> list[str]:
    return (text_or_none(path, _STAT_MAX) or "").splitlines()
