"""amdgpu cards through sysfs, hwmon and the RAS files.

`pcie_bw` is never read (a read sleeps for a second), debugfs never opened (its files inject errors and write
the board's EEPROM). A card is its PCI address: DRM, hwmon and ROCm number the same card differently.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from soak.core.records import Device, Quantity, Reading, ReadingStatus
from soak.telemetry import amd_identity as identity
from soak.telemetry import gpu_metrics, pci
from soak.telemetry.amd_hwmon import Hwmon
from soak.telemetry.amdgpuinfo import GraphicsPipe
from soak.telemetry.plausible import judged, shown
from soak.telemetry.ras import RasCounters, supports
from soak.telemetry.sensors import CardGone, Sensor, Unavailable
from soak.telemetry.sysfs import (
    absence,
    entries,
    is_folder,
    name_in,
    read_bytes,
    read_quantity,
    text_or_none,
    text_or_reading,
)

Q = Quantity
_LEVELS = {Q.CLOCK_CORE_HZ: "pp_dpm_sclk", Q.CLOCK_MEMORY_HZ: "pp_dpm_mclk"}
_STARRED = re.compile(r"\d+:\s*(\d+)\s*Mhz\s*\*", re.IGNORECASE)
_FROM_METRICS: Mapping[Quantity, tuple[str, float]] = {  # where no file tells: field of gpu_metrics, scale
    Q.UTILISATION_PCT: ("busy_pct", 1.0),
    Q.MEMORY_BUSY_PCT: ("memory_busy_pct", 1.0),
    Q.TEMPERATURE_EDGE_C: ("edge_c", 1.0),
    Q.TEMPERATURE_JUNCTION_C: ("junction_c", 1.0),
    Q.TEMPERATURE_MEMORY_C: ("memory_c", 1.0),
    Q.POWER_W: ("power_w", 1.0),
    Q.CLOCK_CORE_HZ: ("core_mhz", 1e6),
    Q.CLOCK_MEMORY_HZ: ("memory_mhz", 1e6),
}
_STUCK_AFTER = 3  # polls in a row in which the registers contradict the firmware
_BUSY_PCT, _IDLE_PCT = 95.0, 20.0


class AmdBackend:
    """Every card that the amdgpu driver has. `pipe`: the cross-check by registers, where it is installed."""

    def __init__(self, root: Path, pipe: GraphicsPipe | None = None) -> None:
        self._root = root
        self._pipe = pipe if pipe is not None else GraphicsPipe.of_this_machine(root)

    def find(self) -> Sequence[str]:
        found = cards(self._root)
        if not found and not is_folder(self._root / "sys/module/amdgpu"):
            raise Unavailable("the amdgpu driver is not loaded")
        return tuple(found)

    def open(self, gpu: str) -> Sensor:
        folder = cards(self._root).get(gpu)
        if folder is None:
            raise CardGone("gone from the amdgpu driver")
        return AmdSensor(self._root, gpu, folder, self._pipe)


class AmdSensor:
    """One card. `device`: its PCI folder."""

    def __init__(self, root: Path, gpu: str, device: Path, pipe: GraphicsPipe) -> None:
        self._root = root
        self._gpu = gpu
        self._pipe = pipe
        self._n_contradictions = 0
        self._throttled: tuple[int, int] | None = None  # residency counters at the last read
        self._device_id: str | None = None  # once it was told
        self._device = device
        self._hwmon = Hwmon(device)
        self._ras = RasCounters(device)
        files, metrics = self._read_files(), self._metrics()
        self._from_metrics = frozenset(
            quantity
            for quantity in _FROM_METRICS
            if _is_never_told(files[quantity])
            and self._of_metrics(metrics, quantity).status is ReadingStatus.OK
            and not (quantity is Q.POWER_W and self._of_metrics(metrics, quantity).value == 0)
        )

    def describe(self) -> Device:
        readings = self.read()
        counters = self._ras.read()
        total = readings[Q.MEMORY_TOTAL_BYTES].value
        judged_sensor = Q.TEMPERATURE_EDGE_C
        if (
            readings[judged_sensor].status is ReadingStatus.UNSUPPORTED
            and readings[Q.TEMPERATURE_JUNCTION_C].status is ReadingStatus.OK
        ):
            judged_sensor = Q.TEMPERATURE_JUNCTION_C  # cards without an edge sensor (MI300)
        crit = self._hwmon.limit(judged_sensor, "crit")
        return Device(
            gpu=self._gpu,
            vendor="amd",
            index=self._index(),
            model=identity.model(self._device),
            arch=identity.arch(self._root, self._gpu, self._device),
            uuid=identity.unique_id(self._device),
            driver=identity.driver(self._root),
            vbios=name_in(self._device / "vbios_version"),
            memory_total_bytes=None if total is None else int(total),
            temperature_sensor=judged_sensor,
            slowdown_c=crit,
            power_cap_w=self._hwmon.power_cap_w(),
            supported=readings,
            ecc=self._ras.absence(self._root) or supports(counters),
            ecc_baseline=counters,
            notes=self._notes(readings, judged_sensor),
        )

    def _index(self) -> int:
        """Among the driver's cards, by address."""
        present = list(cards(self._root))
        if self._gpu not in present:
            raise CardGone("gone from the amdgpu driver")
        return present.index(self._gpu)

    def read(self) -> Mapping[Quantity, Reading]:
        readings = self._read_files()
        if readings[Q.UTILISATION_PCT].value is None:
            readings = self._look_again(readings)
        metrics = self._metrics()
        for quantity in self._from_metrics:
            readings[quantity] = self._of_metrics(metrics, quantity)
        readings |= self._throttle(metrics)
        readings[Q.UTILISATION_PCT] = self._cross_checked(readings[Q.UTILISATION_PCT])
        return readings

    def read_ecc(self) -> Mapping[str, Reading] | None:
        return self._ras.read() or None

    def _is_vega20(self) -> bool:
        self._device_id = self._device_id or text_or_none(self._device / "device")
        return self._device_id in identity.VEGA20_IDS

    def _look_again(self, readings: dict[Quantity, Reading]) -> dict[Quantity, Reading]:
        """No utilisation: is the card gone, or has it only been numbered anew? Raises CardGone.

        A card that its driver has let go of may keep its folder, without the files that the driver made.
        """
        busy = readings[Q.UTILISATION_PCT]
        if "ENODEV" in busy.reason or not pci.answers(self._device):
            raise CardGone(f"fell off the bus: {busy.reason}")
        if "EACCES" in busy.reason or (busy.status is ReadingStatus.UNREADABLE and is_folder(self._device)):
            return readings
        folder = cards(self._root).get(self._gpu)
        if folder is None:
            raise CardGone("gone from the amdgpu driver")
        if folder == self._device and is_folder(folder):
            return readings
        self._device = folder
        self._hwmon = Hwmon(folder, self._hwmon.had)
        self._ras.move_to(folder)
        return self._read_files()

    def _read_files(self) -> dict[Quantity, Reading]:
        device = self._device
        total = read_quantity(device / "mem_info_vram_total", Q.MEMORY_TOTAL_BYTES)
        by_hwmon, links = self._hwmon.read(), pci.links_to_root(device)
        readings = {
            Q.UTILISATION_PCT: read_quantity(device / "gpu_busy_percent", Q.UTILISATION_PCT),
            Q.MEMORY_BUSY_PCT: read_quantity(device / "mem_busy_percent", Q.MEMORY_BUSY_PCT),
            Q.MEMORY_TOTAL_BYTES: total,
            Q.MEMORY_FREE_BYTES: _free(total, device / "mem_info_vram_used"),
            Q.MEMORY_GTT_USED_BYTES: read_quantity(device / "mem_info_gtt_used", Q.MEMORY_GTT_USED_BYTES),
            Q.MEMORY_VISIBLE_USED_BYTES: read_quantity(
                device / "mem_info_vis_vram_used", Q.MEMORY_VISIBLE_USED_BYTES
            ),
            Q.PCIE_WIDTH: pci.link_width(links),
            Q.PCIE_SPEED_GTS: pci.link_speed(links),
            Q.PCIE_REPLAYS: read_quantity(device / "pcie_replay_count", Q.PCIE_REPLAYS),
        }
        levels = {q: _level(device / name, q) for q, name in _LEVELS.items() if q not in by_hwmon}
        return readings | by_hwmon | levels

    def _metrics(self) -> gpu_metrics.Metrics | Reading:
        path = self._device / "gpu_metrics"
        try:
            return gpu_metrics.decoded(read_bytes(path, gpu_metrics.SIZE_MAX))
        except OSError as error:
            return absence(path, error)

    def _of_metrics(self, metrics: gpu_metrics.Metrics | Reading, quantity: Quantity) -> Reading:
        if isinstance(metrics, Reading):
            return metrics
        name, scale = _FROM_METRICS[quantity]
        value = metrics.values.get(name)
        if value is None:
            return Reading.unsupported(f"gpu_metrics does not fill {name}")
        return judged(quantity, value * scale)

    def _throttle(self, metrics: gpu_metrics.Metrics | Reading) -> dict[Quantity, Reading]:
        """Whether the card slows itself, for heat and for power."""
        if isinstance(metrics, Reading):
            return {Q.THERMAL_THROTTLE: metrics, Q.POWER_THROTTLE: metrics}
        flags = gpu_metrics.throttled(metrics, is_vega20=self._is_vega20())
        if metrics.residency is not None:
            last, self._throttled = self._throttled or metrics.residency, metrics.residency
            flags = metrics.residency[0] > last[0], metrics.residency[1] > last[1]
        if flags is None:
            major, minor = metrics.version
            unknown = Reading.unsupported(
                f"the throttle bits of gpu_metrics v{major}.{minor} of this card are unknown"
            )
            return {Q.THERMAL_THROTTLE: unknown, Q.POWER_THROTTLE: unknown}
        heat, power = (Reading.ok(float(flag)) for flag in flags)
        return {Q.THERMAL_THROTTLE: heat, Q.POWER_THROTTLE: power}

    def _cross_checked(self, busy: Reading) -> Reading:
        """The firmware's average can stick near 100 % with nothing running; the registers tell."""
        pipe = self._pipe.busy_pct(self._gpu)
        contradicts = (
            busy.value is not None
            and busy.value >= _BUSY_PCT
            and pipe.value is not None
            and pipe.value < _IDLE_PCT
        )
        self._n_contradictions = self._n_contradictions + 1 if contradicts else 0
        if self._n_contradictions < _STUCK_AFTER:
            return busy
        return Reading.unreadable(
            f"gpu_busy_percent says {busy.value:g} while the registers show {pipe.value:.0f} % busy"
        )

    def _notes(self, readings: Mapping[Quantity, Reading], judged_sensor: Quantity) -> tuple[str, ...]:
        notes = [*identity.origin_notes(self._device)]
        if self._hwmon.power_name is not None and readings[Q.POWER_W].status is ReadingStatus.OK:
            notes.append(f"power is hwmon's {self._hwmon.power_name}")
        notes += [f"{quantity} is taken from gpu_metrics" for quantity in sorted(self._from_metrics)]
        if judged_sensor is not Q.TEMPERATURE_EDGE_C:
            notes.append("has no edge sensor: the junction is judged")
        for quantity in (Q.TEMPERATURE_EDGE_C, Q.TEMPERATURE_JUNCTION_C, Q.TEMPERATURE_MEMORY_C):
            crit, emergency = self._hwmon.limit(quantity, "crit"), self._hwmon.limit(quantity, "emergency")
            if crit is not None and emergency is not None:
                notes.append(f"{quantity}: critical at {crit:g}, emergency at {emergency:g}")
        n_links = len(pci.links_to_root(self._device))
        if n_links > 1:
            notes.append(f"PCIe link is the narrowest of {n_links} up to the root")
        return (*notes, *self._ras.notes())


def _is_never_told(reading: Reading) -> bool:
    """Not offered, or refused for good: EINVAL. A card in reset tells later."""
    return reading.status is ReadingStatus.UNSUPPORTED or "EINVAL" in reading.reason


def cards(root: Path) -> dict[str, Path]:
    """amdgpu's cards by PCI address in the order of the addresses: those with a DRM node, and those that the
    driver holds without one."""
    found: dict[str, Path] = {}
    for card in entries(root / "sys/class/drm", "card*"):
        device = card / "device"
        if re.fullmatch(r"card\d+", card.name) and _uevent(device).get("DRIVER") == "amdgpu":
            address = pci.address_of(_uevent(device).get("PCI_SLOT_NAME", device.resolve().name))
            if address is not None:
                found[address] = device.resolve()
    for device in entries(root / "sys/bus/pci/drivers/amdgpu"):
        if pci.is_address(device.name) and is_folder(device):
            found.setdefault(device.name, device.resolve())
    return dict(sorted(found.items()))


def _uevent(device: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in (text_or_none(device / "uevent") or "").splitlines())
    return {key: value for key, _, value in pairs}


def _free(total: Reading, used_path: Path) -> Reading:
    used = read_quantity(used_path, Q.MEMORY_FREE_BYTES)
    if used.value is None:
        return used
    if total.value is None:
        return total
    if used.value > total.value:
        return Reading.unreadable(f"{used.value:.0f} bytes used of {total.value:.0f}")
    return Reading.ok(total.value - used.value)


def _level(path: Path, quantity: Quantity) -> Reading:
    """The clock of the level with a star."""
    text = text_or_reading(path)
    if isinstance(text, Reading):
        return text
    starred = {int(mhz) for mhz in _STARRED.findall(text)}
    if len(starred) != 1:
        return Reading.unreadable(f"{path.name} says {shown(text)}")
    return judged(quantity, starred.pop() * 1e6)
