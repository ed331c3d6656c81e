"""Recorded machines: what each backend makes of them. Adding one needs no code (tests/captures/README.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from soak.core.records import Reading, ReadingStatus
from soak.telemetry.amd import AmdBackend
from soak.telemetry.cpu import CpuBackend
from soak.telemetry.nvidia import NvidiaBackend
from soak.telemetry.sensors import Backend

CAPTURES = Path(__file__).parents[1] / "captures"
MACHINES = sorted(path for path in CAPTURES.iterdir() if "__" in path.name)


def opened(machine: Path) -> Backend:
    vendor = machine.name.partition("__")[0]
    if vendor == "amd":
        return AmdBackend(machine / "root")
    if vendor == "cpu":
        return CpuBackend(machine / "root", lambda: set(range(1024)))
    assert vendor == "nvidia", f"no backend for {machine.name}"
    return NvidiaBackend(machine / "root")


def shown(reading: Reading) -> float | str:
    return reading.value if reading.value is not None else f"{reading.status}: {reading.reason}"


def made_of(backend: Backend) -> dict[str, Any]:
    cards = {}
    for gpu in backend.find():
        sensor = backend.open(gpu)
        told = sensor.describe()
        device = {
            name: value
            for name, value in msgspec.to_builtins(told).items()
            if name not in ("supported", "ecc", "ecc_baseline") and (value or value == 0)
        }
        counters: Mapping[str, Reading] | None = sensor.read_ecc()
        cards[gpu] = {
            "device": device | {"ecc": shown(told.ecc)},
            "readings": {str(q): shown(reading) for q, reading in sensor.read().items()},
            "counters": None
            if counters is None
            else {key: shown(reading) for key, reading in counters.items()},
        }
    return cards


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_recorded_machine_reads_as_expected(machine):
    made = json.loads(json.dumps(made_of(opened(machine))))
    expected = machine / "expected.json"
    if os.environ.get("SOAK_REGENERATE"):
        expected.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    assert made == json.loads(expected.read_text())
    assert made, "a capture without a card tests nothing"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_capture_says_where_it_is_from(machine):
    assert (machine / "README.md").read_text().startswith("# ")


def test_no_impossible_value_and_no_zero_for_an_absence():
    for machine in MACHINES:
        backend = opened(machine)
        for gpu in backend.find():
            for quantity, reading in backend.open(gpu).read().items():
                assert (reading.value is None) == (reading.status is not ReadingStatus.OK), (gpu, quantity)
                assert reading.value is not None or reading.reason
