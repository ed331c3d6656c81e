"""Runs the command line as a person would: a process of its own, a data folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SMALL = ("--device", "cpu", "--seq-len", "64:128", "--heads", "2", "--head-dim", "64", "--warmup", "0s",
         "--rotate-every", "2s", "--check-every", "3s", "--sample-every", "2s",
         "--listen", "127.0.0.1:0")  # fmt: skip


@dataclass
class Machine:
    """A data folder, and the daemons that were started on it."""

    data_dir: Path
    small: tuple[str, ...] = SMALL  # a CPU run of small shapes and short cadences
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def command(self, *args: str) -> list[str]:
        where = ("--data-dir", str(self.data_dir)) if "--data-dir" not in args else ()
        return [sys.executable, "-m", "soak", *args, *where]

    def environment(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if not k.startswith("SOAK_")} | {"COLUMNS": "120"}

    def run(self, *args: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self.environment(),
            check=False,
        )

    def start(self, *args: str) -> subprocess.Popen[str]:
        log = (self.data_dir.parent / f"log-{len(self.started)}").open("w")
        child = subprocess.Popen(
            self.command(*args), stdout=log, stderr=subprocess.STDOUT, text=True, env=self.environment()
        )
        log.close()
        self.started.append(child)
        return child

    def log(self, index: int = -1) -> str:
        index = index % len(self.started)
        return (self.data_dir.parent / f"log-{index}").read_text()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, f"waited {timeout_s} s in vain; log:\n{self.log()}"
            time.sleep(0.1)

    def begun(self) -> bool:
        """t0 is set: the first rotation was logged."""
        return "rotation 0" in self.log()

    @staticmethod
    def descendants(pid: int) -> list[int]:
        """Every process below this one, from /proc."""
        children: dict[int, list[int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
        found, waiting = [], [pid]
        while waiting:
            below = children.get(waiting.pop(), [])
            found += below
            waiting += below
        return found

    @staticmethod
    def is_running(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "data")
    yield machine
    for child in machine.started:
        if child.poll() is None:
            child.kill()
            child.wait()
