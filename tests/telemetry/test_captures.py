"""Recorded machines: what each backend makes of them. Adding one needs no code (tests/captures/README.md)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from soak.core.records import ReadingStatus
from soak.doctor.replay import made_of, opened

CAPTURES = Path(__file__).parents[1] / "captures"
MACHINES = sorted(path for path in CAPTURES.iterdir() if "__" in path.name)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_recorded_machine_reads_as_expected(machine):
    made = json.loads(json.dumps(made_of(machine)))
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
        backend = opened(machine.name.partition("__")[0], machine / "root")
        for gpu in backend.find():
            for quantity, reading in backend.open(gpu).read().items():
                assert (reading.value is None) == (reading.status is not ReadingStatus.OK), (gpu, quantity)
                assert reading.value is not None or reading.reason
