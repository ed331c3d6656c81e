"""`soak verify` as a person calls it."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest

CPU = ("--device", "cpu", "--kernel", "torch.flash_attention_cpu", "--seed", "7")


def test_all_that_passes_is_exit_0(machine: Any) -> None:
    done = machine.run("verify", "integrity", *CPU, "--case", "flip")
    assert done.returncode == 0, done.stderr
    assert "torch.flash_attention_cpu, float32, seed 7" in done.stdout
    assert len(re.findall(r"^  ok    integrity/flip-", done.stdout, re.MULTILINE)) == 5
    assert re.search(r"^5 ok; \d+\.\d s$", done.stdout, re.MULTILINE)
    assert done.stderr == ""
    assert not machine.data_dir.exists()


def test_a_wrong_kernel_is_exit_1_and_its_case_can_be_made_again_alone(machine: Any) -> None:
    done = machine.run("verify", "gradient", *CPU, "--plant", "scale", "--case", "seed-1-full")
    assert done.returncode == 1, done.stderr
    assert "PLANTED FAULT: scale" in done.stdout
    (command,) = re.findall(r"again, alone: soak (.*)", done.stdout)
    again = machine.run(*command.split())
    assert again.returncode == 1
    figures = [re.findall(r"^ {8}d[qkv].*", text, re.MULTILINE) for text in (done.stdout, again.stdout)]
    assert figures[0]
    assert figures[0] == figures[1]


def test_a_kernel_that_hangs_ends_by_the_deadline(machine: Any) -> None:
    hung = ("--plant", "hang", "--deadline", "1s", "--case", "flip-o")
    done = machine.run("verify", "integrity", *CPU, *hung, "--format", "junit")
    assert done.returncode == 1, done.stderr
    root = Xml.fromstring(done.stdout)
    (failure,) = root.findall(".//failure")
    assert "did not finish within 1 s" in failure.attrib["message"]


def test_it_can_be_stopped_and_leaves_nobody_behind(machine: Any) -> None:
    child = machine.start("verify", "integrity", *CPU, "--plant", "hang")
    machine.wait_for(lambda: "torch.flash_attention_cpu, float32" in machine.log())
    below = machine.descendants(child.pid)
    assert below
    child.send_signal(signal.SIGINT)
    assert child.wait(20) == 3
    assert "Stopped before every check was made" in machine.log()
    machine.wait_for(lambda: not any(machine.is_running(pid) for pid in below), 5)


@pytest.mark.parametrize(
    ("fmt", "number", "n_failed", "code"), [("json", signal.SIGTERM, 0, 3), ("junit", signal.SIGINT, 1, 1)]
)
def test_what_was_made_before_it_was_stopped_is_written(
    machine: Any, fmt: str, number: int, n_failed: int, code: int
) -> None:
    deadline = "1s" if n_failed else "5m"
    hung = ("--plant", "hang", "--case", "flip", "--deadline", deadline)
    child = machine.start("verify", "integrity", *CPU, *hung, "--format", fmt)
    workers: set[int] = set()  # each case that fails costs one

    def are_there() -> bool:
        workers.update(pid for pid in machine.descendants(child.pid) if is_worker(pid))
        return len(workers) > n_failed

    machine.wait_for(are_there)
    child.send_signal(number)
    assert child.wait(20) == code
    assert "soak: Stopped before every check was made" in machine.log()
    document = "".join(line for line in machine.log().splitlines(True) if not line.startswith("soak: "))
    if fmt == "json":
        read = json.loads(document)
        assert read["exit_code"] == code
        assert "stopped" in read["subjects"][0]["refusal"]
        return
    root = Xml.fromstring(document)
    assert len(root.findall(".//failure")) == n_failed
    (error,) = root.findall(".//error")
    assert error.attrib == {"type": "stopped", "message": "it was stopped; its rest was not made"}


def is_worker(pid: int) -> bool:
    try:
        return b"soak.verify.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_the_help_tells_every_exit_code(machine: Any) -> None:
    told = " ".join(machine.run("verify", "--help").stdout.split())
    assert "3 stopped before every check was made and none had failed" in told


def test_a_kernel_that_cannot_run_here_is_exit_4(machine: Any) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    done = machine.run("verify", "gradient", "--device", "cpu", "--kernel", "mi50")
    assert done.returncode == 4
    assert "mi50 could not be verified" in done.stderr


def test_json(machine: Any) -> None:
    done = machine.run("verify", "gradient", *CPU, "--case", "refused", "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["exit_code"] == 0
    assert document["subjects"][0]["seed"] == 7


@pytest.mark.parametrize(
    "args",
    [
        ("speed",),
        ("--format", "pdf"),
        ("--plant", "gremlin"),
        ("--deadline", "soon"),
        ("--device", "toaster"),
        ("gradient", "--device", "cpu", "--kernel", "turbo"),
        ("gradient", *CPU, "--case", "no such case"),
    ],
    ids=" ".join,
)
def test_bad_usage_is_exit_2_and_one_sentence(machine: Any, args: tuple[str, ...]) -> None:
    done = machine.run("verify", *args)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("soak: ")


def test_no_gpu_is_exit_4(machine: Any) -> None:
    if Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists():
        pytest.skip("there is a GPU here")
    done = machine.run("verify", "integrity")
    assert done.returncode == 4
    assert "--device cpu" in done.stderr


@pytest.mark.slow
def test_the_whole_of_it_on_the_cpu(machine: Any) -> None:
    """Six rounds of the load's kernel, and what the interpreter can do of Triton's."""
    done = machine.run("verify", "--device", "cpu", "--seed", "7", timeout_s=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for round_ in ("numerics", "boundary", "gradient", "bandwidth", "memory", "integrity"):
        assert f"  ok    {round_}/" in done.stdout
    assert "interpreter" in done.stdout
