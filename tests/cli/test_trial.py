"""Trials of soak itself: a planted bit flip is found; a recorded MI50 is read and judged end to end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from soak.cli.trial import trial_of
from soak.core.errors import ConfigError

CAPTURES = Path(__file__).parents[1] / "captures"
MI50 = CAPTURES / "amd__instinct-mi50-32gb__by-hand" / "root"
CARD = Path("sys/devices/pci0000:30/0000:30:01.1/0000:31:00.0/0000:32:00.0/0000:33:00.0")
SHAPES = ("--seq-len", "64:128", "--heads", "2", "--head-dim", "64", "--warmup", "0s", "--rotate-every", "4s",
          "--check-every", "8s", "--sample-every", "4s", "--listen", "127.0.0.1:0")  # fmt: skip


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A copy of the recorded MI50 that a test may change."""
    root = tmp_path / "machine"
    shutil.copytree(MI50, root, symlinks=True)
    return root


def test_a_planted_bit_flip_fails_integrity_and_is_located(machine: Any) -> None:
    ran = machine.run("run", *machine.small, "--duration", "6s", "--inject-bit-flip", "1:5")
    assert ran.returncode == 1, ran.stderr
    assert "FAIL (hardware): integrity" in ran.stdout
    assert "injected_bit_flip 1:5" in ran.stdout
    said = next(line for line in ran.stderr.splitlines() if "mismatch" in line)
    assert "step 5 of rotation 1" in said
    assert "1 bits" in said
    assert "transient" in said


def test_a_recorded_mi50_is_read_and_judged(machine: Any, recorded: Path) -> None:
    ran = machine.run("run", "--sysfs-root", str(recorded), *SHAPES, "--duration", "12s")
    assert ran.returncode == 0, ran.stderr
    for shown in (
        "SIMULATED: PASS",
        "mi50 (every card is gfx906)",
        "0000:33:00.0 · AMD Instinct MI50 32GB",
        "113-D1631700-111",
        "70.0 °C, worst slot   72 ± 3 °C",
        "0 corrected, 0 deferred, 0 uncorrected",
        "stand_in_load cpu",
    ):
        assert shown in ran.stdout, ran.stdout


def test_an_ecc_error_on_a_recorded_mi50_fails_the_run(machine: Any, recorded: Path) -> None:
    child = machine.start("run", "--sysfs-root", str(recorded), *SHAPES, "--duration", "24s")
    machine.wait_for(machine.begun)
    (recorded / CARD / "ras" / "umc_err_count").write_text("ue: 0\nce: 3\nde: 0\n")
    assert child.wait(90) == 1, machine.log()
    assert "FAIL (hardware): ecc" in machine.log()
    assert "3 corrected" in machine.log()


def test_a_recorded_mi50_without_ecc_cannot_start_unasked(machine: Any, recorded: Path) -> None:
    shutil.rmtree(recorded / CARD / "ras")
    refused = machine.run("run", "--sysfs-root", str(recorded), *SHAPES, "--duration", "8s")
    assert refused.returncode == 4
    assert "no ECC on this card" in refused.stderr
    assert "--waive ecc" in refused.stderr
    waived = machine.run("run", "--sysfs-root", str(recorded), *SHAPES, "--duration", "8s", "--waive", "ecc")
    assert waived.returncode == 0, waived.stderr
    assert "PASS, ecc waived" in waived.stdout


@pytest.mark.parametrize(
    ("capture", "shown"),
    [
        ("nvidia__h200__580.159.04", ("0000:00:06.0 · NVIDIA H200", "57.0 °C, worst slot   ≤ 84 °C")),
        ("nvidia__l40s__595.80", ("0000:01:00.0 · NVIDIA L40S", "64.0 °C, worst slot   ≤ 85 °C")),
    ],
)
def test_a_recorded_nvidia_card_is_read_and_judged(
    machine: Any, capture: str, shown: tuple[str, ...]
) -> None:
    ran = machine.run("run", "--sysfs-root", str(CAPTURES / capture), *SHAPES, "--duration", "8s")
    assert ran.returncode == 0, ran.stderr
    for words in ("SIMULATED: PASS", "generic (", "not gfx906)", "100 % of the time", *shown):
        assert words in ran.stdout, ran.stdout


def test_a_capture_stands_for_its_machine(tmp_path: Path) -> None:
    h200 = CAPTURES / "nvidia__h200__580.159.04"
    assert trial_of(None, str(h200)).root == trial_of(None, str(h200 / "root")).root == h200 / "root"
    assert trial_of(None, str(MI50)).root == MI50
    with pytest.raises(ConfigError, match=r"holds no recorded machine \(none of sys, proc, nvml.json\)"):
        trial_of(None, str(tmp_path))


@pytest.mark.parametrize("wrong", [("--inject-bit-flip", "x"), ("--sysfs-root", "/no/such/folder")])
def test_a_trial_that_cannot_be_meant_is_exit_2(machine: Any, wrong: tuple[str, str]) -> None:
    done = machine.run("run", "--device", "cpu", *wrong)
    assert done.returncode == 2
    assert wrong[0] in done.stderr
