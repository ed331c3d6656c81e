"""A card's hwmon folder: temperatures, power, clocks, and their limits. Its number is not stable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from soak.core.records import Quantity, Reading, ReadingStatus
from soak.telemetry.sysfs import entries, is_folder, is_there, number_or_none, read_quantity, text_or_none

Q = Quantity
TEMPERATURES: Mapping[str, Quantity] = {  # by label
    "edge": Q.TEMPERATURE_EDGE_C,
    "junction": Q.TEMPERATURE_JUNCTION_C,
    "mem": Q.TEMPERATURE_MEMORY_C,
}
_CLOCKS: Mapping[str, Quantity] = {"sclk": Q.CLOCK_CORE_HZ, "mclk": Q.CLOCK_MEMORY_HZ}
_POWER_FILES = ("power1_average", "power1_input")
_SCALES = {Q.POWER_W: 1e-6, **dict.fromkeys(TEMPERATURES.values(), 0.001)}
_NO_FOLDER = Reading.unsupported("no hwmon folder of the amdgpu driver")
_AWAY = Reading.unreadable("its hwmon folder is away")


def hwmon_folder(device: Path) -> Path | None:
    """The amdgpu driver's hwmon folder of a card, or None."""
    folders = entries(device / "hwmon", "hwmon*")
    return next((folder for folder in folders if text_or_none(folder / "name") == "amdgpu"), None)


class Hwmon:
    """Reads one card's folder; finds it again where it was numbered anew, or came later than the card.

    `before`: what the card's folder had when it was last there: what is missing now is away, not absent.
    """

    def __init__(self, device: Path, before: frozenset[Quantity] = frozenset()) -> None:
        self._device = device
        self._folder: Path | None = None
        self._files: dict[Quantity, Path] = {}
        self._find()
        self.had = before | self._files.keys()

    @property
    def power_name(self) -> str | None:
        """The file that power is read from."""
        path = self._files.get(Q.POWER_W)
        return None if path is None else path.name

    def read(self) -> dict[Quantity, Reading]:
        """Every temperature and power; clocks where the folder has them."""
        if self._folder is None or not is_folder(self._folder) or not self.had <= self._files.keys():
            self._find()
        absent = _NO_FOLDER if self._folder is None else Reading.unsupported("no such sensor on this card")
        readings = dict.fromkeys((*TEMPERATURES.values(), Q.POWER_W), absent)
        readings |= dict.fromkeys(self.had, _AWAY)
        return readings | {q: read_quantity(p, q, _SCALES.get(q, 1.0)) for q, p in self._files.items()}

    def limit(self, quantity: Quantity, name: str) -> float | None:
        """A temperature's `crit` or `emergency`, °C."""
        path = self._files.get(quantity)
        if path is None:
            return None
        return read_quantity(path.with_name(path.name.replace("_input", f"_{name}")), quantity, 0.001).value

    def power_cap_w(self) -> float | None:
        cap_uw = None if self._folder is None else number_or_none(self._folder / "power1_cap")
        return cap_uw / 1e6 if cap_uw else None

    def _find(self) -> None:
        self._folder = folder = hwmon_folder(self._device)
        if folder is None:
            self._files = {}
            return
        self._files = _labelled(folder, "temp", TEMPERATURES) | _labelled(folder, "freq", _CLOCKS)
        power = _power_file(folder)
        if power is not None:
            self._files[Q.POWER_W] = power


def _labelled(folder: Path, kind: str, labels: Mapping[str, Quantity]) -> dict[Quantity, Path]:
    """Input files by what their labels say; kernels without labels have the first of each kind only."""
    found: dict[Quantity, Path] = {}
    for path in entries(folder, f"{kind}[0-9]*_input"):
        label = text_or_none(path.with_name(path.name.replace("_input", "_label")))
        if label is None and path.name == f"{kind}1_input":
            label = next(iter(labels))
        if label is not None and label in labels:
            found[labels[label]] = path
    return found


def _power_file(folder: Path) -> Path | None:
    """Vega 20 has `power1_average` or `power1_input`, by kernel and firmware; the first that answers, else
    the first that is there."""
    there = [path for path in (folder / name for name in _POWER_FILES) if is_there(path)]
    answering = (p for p in there if read_quantity(p, Q.POWER_W, 1e-6).status is ReadingStatus.OK)
    return next(answering, there[0] if there else None)
