"""The CPU as a device: non-idle time of the allowed cores, memory, temperature, EDAC, clock, power.

Everything is read below a root folder, so that recorded machines can stand in; psutil reads the running
machine only, and loading it costs the sampler more than a minute of its polls.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from soak.core.records import Device, Quantity, Reading, ReadingStatus
from soak.telemetry.cgroup import cpu_quota, memory_limits
from soak.telemetry.plausible import is_name, judged
from soak.telemetry.sensors import Sensor
from soak.telemetry.sysfs import (
    absence,
    entries,
    name_in,
    number_of,
    number_or_none,
    read_bytes,
    read_count,
    read_quantity,
)
from soak.telemetry.sysfs import text_or_none as text

GPU = "cpu"
_LONG = 1 << 20
_HWMON_NAMES = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_PACKAGE_LABELS = re.compile(r"Package id \d+|Tdie|Tctl|$")  # in this order of preference per chip
_ZONE_TYPES = re.compile(r"x86_pkg_temp|cpu|soc", re.IGNORECASE)
_CLOCKS_MAX = 8  # cores asked for their clock: each read may interrupt that core

BootNs = Callable[[], int]
Affinity = Callable[[], set[int]]


class CpuBackend:
    """The one device `cpu`. `affinity`: the cores that the load may use; the kernel has already cut them down
    to the cpuset."""

    def __init__(self, root: Path, affinity: Affinity | None = None, boot_ns: BootNs | None = None) -> None:
        self._root = root
        self._affinity = affinity or (lambda: os.sched_getaffinity(0))
        self._boot_ns = boot_ns or (lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def find(self) -> Sequence[str]:
        return (GPU,)

    def open(self, gpu: str) -> Sensor:
        assert gpu == GPU
        return CpuSensor(self._root, self._affinity(), self._boot_ns)


class CpuSensor:
    """Reads the machine below `root`. Rates (utilisation, power) are over the time since the last read."""

    def __init__(self, root: Path, cores: set[int], boot_ns: BootNs) -> None:
        self._root = root
        self._cores = cores
        self._boot_ns = boot_ns
        self._quota = cpu_quota(root)
        if self._quota is not None and self._quota.cores >= len(cores):
            self._quota = None
        self._memory_limits = memory_limits(root)
        self._temperatures = _temperature_files(root)
        self._counters = _edac_files(root)
        self._energy = _energy_files(root)
        self._busy: tuple[int, int] | None = None  # (busy, total), in the unit of the source
        self._energy_uj: tuple[int, list[int]] | None = None
        self._utilisation()  # the first poll compares with now
        self._power()

    def describe(self) -> Device:
        time.sleep(0.05)  # a few clock ticks, for a first utilisation
        readings = self.read()
        total = readings[Quantity.MEMORY_TOTAL_BYTES]
        ecc = self.read_ecc()
        crit = [
            number_or_none(path.with_name(path.name.replace("_input", "_crit")))
            for path in self._temperatures
        ]
        return Device(
            gpu=GPU,
            vendor="cpu",
            model=self._model(),
            arch=platform.machine(),
            driver=name_in(self._root / "proc/sys/kernel/osrelease"),
            memory_total_bytes=None if total.value is None else int(total.value),
            temperature_sensor=Quantity.TEMPERATURE_CORE_C,
            slowdown_c=min((value / 1000 for value in crit if value), default=None),
            supported=readings,
            ecc=_ecc_support(ecc),
            ecc_baseline=ecc or {},
            notes=self._notes(),
        )

    def _model(self) -> str | None:
        told = _cpuinfo(self._root)
        names = (told.get("model name", ""), told.get("hardware", ""))
        return next(filter(is_name, names), None)

    def read(self) -> Mapping[Quantity, Reading]:
        total, free = self._memory()
        return {
            Quantity.UTILISATION_PCT: self._utilisation(),
            Quantity.TEMPERATURE_CORE_C: self._temperature(),
            Quantity.POWER_W: self._power(),
            Quantity.CLOCK_CORE_HZ: self._clock(),
            Quantity.MEMORY_TOTAL_BYTES: total,
            Quantity.MEMORY_FREE_BYTES: free,
        }

    def read_ecc(self) -> Mapping[str, Reading] | None:
        return {key: read_count(path) for key, path in self._counters.items()} or None

    def _notes(self) -> tuple[str, ...]:
        notes = [f"{len(self._cores)} cores allowed"]
        if self._quota is not None:
            notes.append(
                f"processor time limited to {self._quota.cores:g} cores by cgroup v{self._quota.version}"
            )
        if self._memory_limits:
            limit = min(limit.limit_bytes for limit in self._memory_limits)
            notes.append(f"memory limited to {limit} bytes by a cgroup")
        return tuple(notes)

    def _utilisation(self) -> Reading:
        """Non-idle time of the allowed cores; of the cgroup's quota, where that is less than the cores."""
        last, self._busy = self._busy, self._quota_time() if self._quota else self._core_time()
        if self._busy is None:
            source = self._quota.usage_path.name if self._quota else "proc/stat"
            return Reading.unreadable(f"{source} does not say what the allowed cores did")
        if last is None or self._busy[1] <= last[1]:
            return Reading.unreadable("no processor time has passed since the last read")
        share = 100.0 * max(self._busy[0] - last[0], 0) / (self._busy[1] - last[1])
        # A quota is handed out in periods, which do not end with the poll: a little more than all is all.
        return judged(Quantity.UTILISATION_PCT, min(share, 100.0))

    def _quota_time(self) -> tuple[int, int] | None:
        assert self._quota is not None
        used_ns = self._quota.usage_ns()
        return None if used_ns is None else (used_ns, int(self._boot_ns() * self._quota.cores))

    def _core_time(self) -> tuple[int, int] | None:
        """Clock ticks of the allowed cores: not idle, and all."""
        try:
            lines = read_bytes(self._root / "proc/stat", _LONG).decode("ascii", "replace").splitlines()
        except OSError:
            return None
        busy = total = n_cores = 0
        for line in lines:
            name, *fields = line.split()
            if not name.startswith("cpu"):
                break  # the lines of the cores come first
            core = number_of(name[3:])
            ticks = [number_of(field) for field in fields[:8]]  # guest time is in user and nice already
            if core not in self._cores or len(ticks) < 4 or None in ticks:
                continue
            whole = sum(tick or 0 for tick in ticks)
            busy += whole - sum(tick or 0 for tick in ticks[3:5])  # idle, iowait
            total += whole
            n_cores += 1
        return (busy, total) if n_cores else None

    def _memory(self) -> tuple[Reading, Reading]:
        """Total and available bytes, of the machine or the narrowest cgroup."""
        try:
            lines = read_bytes(self._root / "proc/meminfo").decode("ascii", "replace").splitlines()
        except OSError as error:
            missing = absence(self._root / "proc/meminfo", error)
            return missing, missing
        stated = {
            key: number_of(value.removesuffix("kB").strip())
            for key, _, value in (x.partition(":") for x in lines)
        }
        total_kb, available_kb = stated.get("MemTotal"), stated.get("MemAvailable")
        if total_kb is None or available_kb is None:
            missing = Reading.unreadable("proc/meminfo has no MemTotal or no MemAvailable")
            return missing, missing
        totals, frees = [total_kb * 1024], [available_kb * 1024]
        for limit in self._memory_limits:
            available = limit.available_bytes()
            if available is None:
                return judged(Quantity.MEMORY_TOTAL_BYTES, min(totals)), Reading.unreadable(
                    f"the use of {limit.folder.name}'s memory limit cannot be read"
                )
            totals.append(limit.limit_bytes)
            frees.append(available)
        return judged(Quantity.MEMORY_TOTAL_BYTES, min(totals)), judged(
            Quantity.MEMORY_FREE_BYTES, min(frees)
        )

    def _temperature(self) -> Reading:
        """The hottest processor package."""
        if not self._temperatures:
            return Reading.unsupported(
                f"no {', '.join(_HWMON_NAMES[:3])} in /sys/class/hwmon and no processor in /sys/class/thermal"
            )
        readings = [read_quantity(path, Quantity.TEMPERATURE_CORE_C, 0.001) for path in self._temperatures]
        values = [reading.value for reading in readings if reading.value is not None]
        if values:
            return Reading.ok(max(values))
        self._temperatures = (
            _temperature_files(self._root) or self._temperatures
        )  # hwmon may be numbered anew
        return Reading.unreadable(readings[0].reason)

    def _clock(self) -> Reading:
        """The mean clock of a few allowed cores."""
        folder = self._root / "sys/devices/system/cpu"
        asked = sorted(self._cores)[:_CLOCKS_MAX]
        khz = [number_or_none(folder / f"cpu{core}/cpufreq/scaling_cur_freq") for core in asked]
        known = [value * 1000.0 for value in khz if value is not None]
        if not known:
            mhz = _cpuinfo(self._root).get("cpu mhz", "")
            if not re.fullmatch(r"\d+(\.\d+)?", mhz):
                return Reading.unsupported("neither cpufreq nor /proc/cpuinfo tells the clock")
            known = [float(mhz) * 1e6]
        return judged(Quantity.CLOCK_CORE_HZ, sum(known) / len(known))

    def _power(self) -> Reading:
        """Watts of all processor packages, from their energy counters, which wrap."""
        if not self._energy:
            return Reading.unsupported("no readable energy counter in /sys/class/powercap")
        counters = [number_or_none(counter) for counter, _ in self._energy]
        last, self._energy_uj = self._energy_uj, None
        known = [counter for counter in counters if counter is not None]
        if len(known) < len(counters):
            return Reading.unreadable("an energy counter does not answer")
        now_ns = self._boot_ns()
        self._energy_uj = (now_ns, known)
        if last is None or now_ns <= last[0]:
            return Reading.unreadable("no time has passed since the last read")
        used_uj = sum(
            now - before if now >= before else now - before + span
            for now, before, (_, span) in zip(known, last[1], self._energy, strict=True)
        )
        return judged(Quantity.POWER_W, used_uj * 1000 / (now_ns - last[0]))


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first entries of /proc/cpuinfo, keys in lower case; a large machine's file is not read whole."""
    lines = (text(root / "proc/cpuinfo") or "").splitlines()
    found: dict[str, str] = {}
    for key, _, value in (line.partition(":") for line in lines):
        found.setdefault(key.strip().lower(), value.strip())
    return found


def _numbered(folder: Path, pattern: str) -> list[Path]:
    """Entries that match, sorted by the numbers in their names."""
    return sorted(entries(folder, pattern), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])


def _temperature_files(root: Path) -> list[Path]:
    """A file per processor package: of its hwmon chip, else of a thermal zone."""
    found = []
    for chip in _numbered(root / "sys/class/hwmon", "hwmon*"):
        if text(chip / "name") not in _HWMON_NAMES:
            continue
        inputs = _numbered(chip, "temp*_input")
        labels = {path: text(path.with_name(path.name.replace("_input", "_label"))) or "" for path in inputs}
        for wanted in _PACKAGE_LABELS.pattern.split("|"):
            chosen = [path for path, label in labels.items() if re.fullmatch(wanted, label)]
            if chosen:
                found += chosen
                break
        else:
            found += inputs
    zones = _numbered(root / "sys/class/thermal", "thermal_zone*")
    return found or [zone / "temp" for zone in zones if _ZONE_TYPES.search(text(zone / "type") or "")]


def _edac_files(root: Path) -> dict[str, Path]:
    """Error counters by key, one pair a memory controller."""
    return {
        f"edac/{controller.name}/{kind}": controller / name
        for controller in _numbered(root / "sys/devices/system/edac/mc", "mc[0-9]*")
        for kind, name in (("corrected", "ce_count"), ("uncorrected", "ue_count"))
    }


def _energy_files(root: Path) -> list[tuple[Path, int]]:
    """A readable energy counter per package with the value after which it starts again, microjoules."""
    found = []
    for zone in _numbered(root / "sys/class/powercap", "*rapl:*"):
        span = number_or_none(zone / "max_energy_range_uj")
        counter = zone / "energy_uj"
        package = (text(zone / "name") or "").startswith("package")
        if package and span is not None and number_or_none(counter) is not None:
            found.append((counter, span))
    return found


def _ecc_support(counters: Mapping[str, Reading] | None) -> Reading:
    if not counters:
        return Reading.unsupported("no EDAC memory controller: no ECC memory, or its driver is not loaded")
    failed = [reading for reading in counters.values() if reading.status is not ReadingStatus.OK]
    return Reading.unreadable(failed[0].reason) if failed else Reading.ok(1.0)
