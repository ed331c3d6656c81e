"""amdgpu's RAS files: error counters per hardware block, since the driver was loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from soak.core.records import Reading, ReadingStatus
from soak.telemetry.plausible import counted, shown
from soak.telemetry.sysfs import absence, entries, name_in, number_of, text_or_none, text_or_reading

KINDS = {"ue": "uncorrected", "ce": "corrected", "de": "deferred"}
REQUIRED = ("ue", "ce")  # deferred errors are counted by newer drivers, for memory only
ASLEEP = "the card is asleep"  # asking would wake it, or give counts that are none
RISE_MAX = 500_000  # between two reads; a card read while suspended adds 0xffff per memory channel


class RasCounters:
    """The `*_err_count` files of one card.

    Keys are `ras/<block>/<kind>`; a block that cannot be read keeps the keys that it had, without values.
    """

    def __init__(self, device: Path) -> None:
        self.move_to(device)
        self._kinds: dict[str, tuple[str, ...]] = {}
        self._last: dict[str, float] = {}

    def move_to(self, device: Path) -> None:
        """The same card has another folder from now on."""
        self._device = device
        self._folder = device / "ras"

    def absence(self, root: Path) -> Reading | None:
        """Why there are no counters; None where there are some."""
        if entries(self._folder, "*_err_count"):
            return None
        if text_or_none(root / "sys/module/amdgpu/parameters/ras_enable") == "0":
            return Reading.unsupported("error counting is switched off: amdgpu.ras_enable=0")
        try:
            list(self._folder.iterdir())
        except FileNotFoundError:
            return Reading.unsupported("no ras folder: the board's firmware declares no ECC")
        except OSError as error:
            return absence(self._folder, error)
        return Reading.unsupported("the driver counts no errors of any block of this card")

    def read(self) -> Mapping[str, Reading]:
        """Every counter; {} where there are none."""
        state = text_or_none(self._device / "power/runtime_status")
        asleep = state is not None and state not in ("active", "unsupported")
        found: dict[str, Reading] = {}
        present = {
            path.name.removesuffix("_err_count"): path for path in entries(self._folder, "*_err_count")
        }
        for block in sorted(present.keys() | self._kinds.keys()):
            path = present.get(block, self._folder / f"{block}_err_count")
            counts = Reading.unreadable(f"{ASLEEP}: {shown(state or '')}") if asleep else parsed(path)
            if isinstance(counts, Reading):
                for kind in self._kinds.get(block, REQUIRED):
                    found[f"ras/{block}/{KINDS[kind]}"] = Reading.unreadable(counts.reason)
                continue
            self._kinds[block] = tuple(counts)
            for kind, reading in counts.items():
                key = f"ras/{block}/{KINDS[kind]}"
                found[key] = self._plausible(key, reading)
        return found

    def notes(self) -> tuple[str, ...]:
        """What the report should say about the memory's history."""
        pages = (text_or_none(self._folder / "gpu_vram_bad_pages", 1 << 20) or "").splitlines()
        features = (name_in(self._folder / "features") or "").removeprefix("feature mask: ")
        notes = [f"{len(pages)} memory pages retired, pending or failed to retire"] if pages else []
        return (*notes, *([f"RAS features {features}"] if features else []))

    def _plausible(self, key: str, reading: Reading) -> Reading:
        if reading.value is None:
            return reading
        last = self._last.get(key, reading.value)
        if reading.value - last > RISE_MAX:
            return Reading.unreadable(f"impossible rise from {last:.0f} to {reading.value:.0f}")
        self._last[key] = reading.value
        return reading


def parsed(path: Path) -> dict[str, Reading] | Reading:
    """One file's counters by `ue`, `ce`, `de`, or why it has none: during a reset it holds a sentence."""
    text = text_or_reading(path)
    if isinstance(text, Reading):
        return Reading.unreadable(f"{text.reason}: reset suspected") if _is_reset(text) else text
    counts: dict[str, Reading] = {}
    for line in text.splitlines():
        kind, _, value = line.partition(":")
        number = number_of(value.strip())
        if kind.strip() in KINDS and number is not None:
            counts[kind.strip()] = counted(number, value.strip())
    if any(kind not in counts for kind in REQUIRED):
        return Reading.unreadable(f"{path.name} says {shown(text)}: reset suspected")
    return counts


def supports(counters: Mapping[str, Reading]) -> Reading:
    """ok(1) where every counter gave a value, else the first reason."""
    failed = [reading for reading in counters.values() if reading.status is not ReadingStatus.OK]
    return Reading.unreadable(failed[0].reason) if failed else Reading.ok(1.0)


def _is_reset(absence: Reading) -> bool:
    return "EINVAL" in absence.reason
