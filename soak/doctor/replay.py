"""A recorded machine as its backend reads it: the folders of `tests/captures`, and a fresh capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from soak.core.records import Quantity, Reading
from soak.telemetry.amd import AmdBackend
from soak.telemetry.cpu import CpuBackend
from soak.telemetry.kernel_log import classified, message_of
from soak.telemetry.nvidia import NvidiaBackend
from soak.telemetry.sensors import Backend

ROOT, LOG, EXPECTED = "root", "kernel.log", "expected.json"
_CORES_MAX = 4096


def opened(vendor: str, root: Path) -> Backend:
    """The backend of a vendor's cards on the machine below `root`."""
    if vendor == "amd":
        return AmdBackend(root)
    if vendor == "cpu":
        return CpuBackend(root, lambda: set(range(_CORES_MAX)))  # those of the machine, not of this process
    assert vendor == "nvidia", f"no backend of {vendor}"
    return NvidiaBackend(root)


def made_of(machine: Path) -> dict[str, Any]:
    """Everything that is read of the machine in this folder, as JSON has it: what `expected.json` says.

    The vendor is the first part of the folder's name.
    """
    backend = opened(machine.name.partition("__")[0], machine / ROOT)
    made: dict[str, Any] = {gpu: _card(backend, gpu) for gpu in backend.find()}
    if (machine / LOG).exists():
        made["kernel log"] = _heard(machine / LOG, list(made))
    return made


def _card(backend: Backend, gpu: str) -> dict[str, Any]:
    sensor = backend.open(gpu)
    told = sensor.describe()
    device = {
        name: value
        for name, value in msgspec.json.decode(msgspec.json.encode(told)).items()
        if name not in ("supported", "ecc", "ecc_baseline") and (value or value == 0)
    }
    readings = sensor.read()
    counters: Mapping[str, Reading] | None = sensor.read_ecc()
    return {
        "device": device | {"ecc": shown(told.ecc)},
        "readings": {str(q): shown(readings[q]) for q in Quantity if q in readings},  # in one order for all
        "counters": None if counters is None else {key: shown(r) for key, r in counters.items()},
    }


def _heard(log: Path, gpus: list[str]) -> dict[str, int]:
    """How often the log says what, `card: meaning`."""
    records = log.read_text(encoding="utf-8", errors="replace").splitlines()
    found = (classified(message_of(record), gpus) for record in records)
    return dict(Counter(f"{about[0] or 'host'}: {about[1].meaning}" for about in found if about is not None))


def shown(reading: Reading) -> float | str:
    """A value, or the absence and its reason."""
    return reading.value if reading.value is not None else f"{reading.status}: {reading.reason}"
