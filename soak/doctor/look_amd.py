"""An amdgpu card's settings, from sysfs, and the processes that have it open, from their descriptors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from soak.doctor.facts import CardLook, Holder
from soak.telemetry import pci
from soak.telemetry.amd import cards
from soak.telemetry.amd_hwmon import hwmon_folder
from soak.telemetry.sysfs import number_or_none, text_or_none

_DEVICE_FILES = re.compile(r"/dev/(kfd|dri/(card|renderD)\d+)")
_PDEV = re.compile(r"^drm-pdev:\s*(\S+)", re.MULTILINE)
_SLOW_LEVELS = frozenset({"low", "manual", "profile_min_sclk", "profile_min_mclk"})
_LONG = 1 << 20


def look_at_amd(root: Path, gpu: str) -> CardLook:
    """Raises KeyError where the driver does not have the card."""
    device = cards(root)[gpu]
    hwmon = hwmon_folder(device)
    width, width_max, speed, speed_max = link_of(device)
    return CardLook(
        power_cap_w=_watts(hwmon, "power1_cap"),
        power_default_w=_watts(hwmon, "power1_cap_default"),
        link_width=width,
        link_width_max=width_max,
        link_speed_gts=speed,
        link_speed_max_gts=speed_max,
        numa_node=numa_node(device),
        holders=tuple(holders(root / "proc", gpu)),
        troubles=tuple(_bad_pages(device)),
        restraints=tuple(_restraints(device)),
    )


def link_of(device: Path) -> tuple[int | None, int | None, float | None, float | None]:
    """Lanes now and at most, gigatransfers a second now and at most, each of the weakest link to the root."""
    links = pci.links_to_root(device)
    width, speed = pci.link_width(links).value, pci.link_speed(links).value
    width_max, speed_max = pci.link_width_max(links).value, pci.link_speed_max(links).value
    return (
        None if width is None else int(width),
        None if width_max is None else int(width_max),
        speed,
        speed_max,
    )


def numa_node(device: Path) -> int | None:
    """None where the machine has none (-1)."""
    node = number_or_none(device / "numa_node")
    return node if node is not None and node >= 0 else None


def holders(proc: Path, gpu: str) -> Iterator[Holder]:
    """Processes that have the card's render or primary node open, by what the kernel says of the descriptor.

    Sees the processes of this user and of this pid namespace; root sees all of them. The doctor's own are
    left out.
    """
    ours = {os.getpid(), os.getppid()}
    for folder in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        pid = int(folder.name)
        if pid in ours or _parent(folder) in ours or not _has_open(folder, gpu):
            continue
        yield Holder(pid, text_or_none(folder / "comm") or "")


def _has_open(folder: Path, gpu: str) -> bool:
    try:
        descriptors = list((folder / "fd").iterdir())
    except OSError:
        return False
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if _DEVICE_FILES.fullmatch(target):
            pdev = _PDEV.search(text_or_none(folder / "fdinfo" / descriptor.name, _LONG) or "")
            if pdev is not None and pci.address_of(pdev[1]) == gpu:
                return True
    return False


def _parent(folder: Path) -> int | None:
    fields = (text_or_none(folder / "stat") or "").rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None


def _watts(hwmon: Path | None, name: str) -> float | None:
    microwatts = None if hwmon is None else number_or_none(hwmon / name)
    return microwatts / 1e6 if microwatts else None


def _bad_pages(device: Path) -> Iterator[str]:
    lines = (text_or_none(device / "ras/gpu_vram_bad_pages", _LONG) or "").splitlines()
    for flag, words in (("P", "wait for a reset to be retired"), ("F", "could not be retired")):
        n_pages = sum(line.rstrip().endswith(flag) for line in lines)
        if n_pages:
            yield f"{n_pages} bad memory pages {words}"


def _restraints(device: Path) -> Iterator[str]:
    level = text_or_none(device / "power_dpm_force_performance_level")
    if level in _SLOW_LEVELS:
        yield f"power_dpm_force_performance_level is {level}: the clocks are held, not chosen by load"
