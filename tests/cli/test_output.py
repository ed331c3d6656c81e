"""Where output goes is no part of a verdict: full disks, closed streams and readers that leave."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

TINY = ("--duration", "4s")


@pytest.fixture
def simulated(machine: Any) -> Any:
    """A machine with one stored run, a FAIL, so that no other exit code can be mistaken for its own."""
    done = machine.run("simulate", "--scenario", "bit-flip", "--duration", "2h", "--seed", "1")
    assert done.returncode == 1, done.stderr
    return machine


def report(machine: Any, redirections: str) -> tuple[int, str]:
    """The exit code of `soak report`, run by a shell with these redirections, and its stderr."""
    command = machine.command("report", "--run-id", "latest", "--database", database(machine))
    done = subprocess.run(
        ["bash", "-c", f'"$@" {redirections}; exit ${{PIPESTATUS[0]}}', "bash", *command],
        capture_output=True, text=True, timeout=60, env=machine.environment(), check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def database(machine: Any) -> str:
    return f"sqlite:///{machine.data_dir}/simulated.db"


@pytest.mark.parametrize("redirections", ["", "| head -1", "| true", "2>&-", "<&-"])
def test_a_report_exits_with_its_verdict_whoever_reads_it(simulated: Any, redirections: str) -> None:
    assert report(simulated, redirections) == (1, "")


@pytest.mark.parametrize(("redirections", "words"), [("> /dev/full", "No space left"), (">&-", "is closed")])
def test_a_report_that_cannot_be_written_says_so(simulated: Any, redirections: str, words: str) -> None:
    code, stderr = report(simulated, redirections)
    assert (code, stderr.count("\n")) == (4, 1)
    assert stderr.startswith("soak: Standard output ")
    assert words in stderr


@pytest.mark.parametrize("redirection", ["2> /dev/full", "2>&-"])
def test_the_exit_code_is_right_where_the_sentence_cannot_be_written(machine: Any, redirection: str) -> None:
    command = machine.command("run", "--device", "tpu")
    done = subprocess.run(["bash", "-c", f'"$@" {redirection}', "bash", *command], timeout=60, check=False)
    assert done.returncode == 2


def test_a_locale_without_our_characters_costs_characters_only(simulated: Any) -> None:
    command = simulated.command("report", "--run-id", "latest", "--database", database(simulated))
    environment = simulated.environment() | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, timeout=60, env=environment, check=False)
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"soak certificate" in done.stdout


def test_a_run_whose_certificate_cannot_be_printed_keeps_its_exit_code(machine: Any) -> None:
    command = machine.command("run", *machine.small, *TINY, "--inject-bit-flip", "0:2", "--run-id", "unseen")
    done = subprocess.run(
        ["bash", "-c", '"$@" <&- > /dev/full', "bash", *command],
        stderr=subprocess.PIPE, text=True, timeout=120, env=machine.environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Run unseen: FAIL; `soak report --run-id unseen` prints it." in done.stderr


def test_a_folder_named_soak_beside_us_is_not_soak(machine: Any, tmp_path: Path) -> None:
    (tmp_path / "soak").mkdir()
    for name in ("soak/__init__.py", "torch.py", "psutil.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong module')\n")
    command = [word if word != "-m" else "-Pm" for word in machine.command("run", *machine.small, *TINY)]
    done = subprocess.run(
        [*command, "--inject-bit-flip", "0:2"],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, env=machine.environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr


def test_a_terminal_that_goes_away_interrupts_the_run(machine: Any) -> None:
    daemon = machine.start("run", *machine.small, "--duration", "5m", "--run-id", "hung-up")
    machine.wait_for(machine.begun)
    os.kill(daemon.pid, signal.SIGHUP)
    assert daemon.wait(30) == 3
    assert "interrupted: SIGHUP" in machine.run("report", "--run-id", "hung-up").stdout


def test_a_live_run_is_not_closed_by_a_later_start(machine: Any) -> None:
    machine.start("run", *machine.small, "--duration", "5m", "--run-id", "live")
    machine.wait_for(machine.begun)
    arguments = (*machine.small, "--duration", "5m", "--run-id", "live", "--on-interrupt", "stop")
    late = machine.run("run", *arguments)
    assert late.returncode == 4, late.stdout
    assert "Run live is held by process" in late.stderr
    assert "closed" not in machine.run("runs").stdout


def test_a_run_whose_database_was_removed_says_what_it_reached(machine: Any) -> None:
    daemon = machine.start("run", *machine.small, "--duration", "5m", "--run-id", "robbed")
    machine.wait_for(machine.begun)
    for path in machine.data_dir.glob("soak.db*"):
        path.unlink()
    machine.wait_for(lambda: "was removed or replaced" in machine.log())
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.wait(30) == 3
    assert "INCONCLUSIVE (run robbed, as reached live; the store does not hold its end)" in machine.log()
    assert "cpu coverage unknown:" in machine.log()
