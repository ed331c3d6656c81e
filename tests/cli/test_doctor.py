"""`soak doctor` as a person runs it."""

from __future__ import annotations

import json
from pathlib import Path

MI50 = Path(__file__).parents[1] / "captures/amd__instinct-mi50-32gb__by-hand/root"


def lines_of(output: str) -> dict[str, dict[str, str]]:
    return {line["check"]: line for line in json.loads(output)["lines"]}


def test_the_cpu(machine):
    """The load shows, unless the machine is too busy to tell; all else is well where tests run."""
    done = machine.run("doctor", "--device", "cpu", "--json", "--listen", "127.0.0.1:0")
    lines = lines_of(done.stdout)
    assert lines["torch"]["level"] == "ok"
    assert lines["pairing"]["level"] in ("ok", "warn")
    assert "utilisation" in lines["pairing"]["says"]
    assert str(machine.data_dir) in lines["data folder"]["says"]
    assert {line["level"] for line in lines.values()} <= {"ok", "warn"}
    assert done.returncode == json.loads(done.stdout)["exit_code"]
    assert done.returncode in (0, 3)


def test_a_recorded_mi50(machine):
    done = machine.run("doctor", "--sysfs-root", str(MI50), "--listen", "127.0.0.1:0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "AMD Instinct MI50 32GB" in done.stdout
    assert "a recorded machine cannot be loaded" in done.stdout
    assert "\x1b" not in done.stdout, "colours are for terminals"


def test_what_a_run_would_refuse_is_a_fail(machine):
    done = machine.run("doctor", "--sysfs-root", str(MI50), "--expect-gpus", "2", "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert "2 GPUs are expected and 1 are there" in done.stdout


def test_a_folder_that_cannot_be_used(machine):
    machine.data_dir.write_text("a file")
    done = machine.run("doctor", "--sysfs-root", str(MI50), "--json", "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert "is no folder" in lines_of(done.stdout)["data folder"]["says"]


def test_bad_usage_is_told_before_anything_is_looked_at(machine):
    done = machine.run("doctor", "--duration", "48")
    assert done.returncode == 2
    assert done.stdout == ""


def test_a_capture_is_written_and_nothing_else_is_done(machine, tmp_path):
    done = machine.run("doctor", "--capture", str(tmp_path / "out"), "--sysfs-root", str(MI50))
    assert done.returncode == 0, done.stdout + done.stderr
    (amd,) = (tmp_path / "out").glob("amd__*")
    assert str(amd) in done.stdout
    assert "nvidia: no answers of NVML were recorded" in done.stderr
    assert not machine.data_dir.exists()
    again = machine.run("doctor", "--capture", str(tmp_path / "out"), "--sysfs-root", str(MI50))
    assert again.returncode == 4
    assert "name another folder" in again.stderr
