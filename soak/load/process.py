"""What the kernel says about a process: its state and the processor time that it got (/proc, Linux)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """One look at a process and its threads.

    `state`: of its main thread: R running or runnable, S asleep, D waiting in the kernel, T stopped, t
    traced, Z ended and not yet collected. `cpu_ms`: of all threads since the start. `n_runnable`: threads in
    state R.
    """

    state: str
    cpu_ms: int
    n_runnable: int

    @property
    def stopped(self) -> bool:
        return self.state in ("T", "t")


def look_at(pid: int, root: Path = Path("/proc")) -> ProcessLook | None:
    """None where there is no such process (any more)."""
    fields = _stat(root / str(pid))
    if fields is None:
        return None
    ticks = int(fields[11]) + int(fields[12])  # utime, stime, counted behind the name and its ")"
    return ProcessLook(
        state=fields[0],
        cpu_ms=ticks * 1000 // os.sysconf("SC_CLK_TCK"),
        n_runnable=sum(_states(root / str(pid) / "task").count(state) for state in "R"),
    )


def _states(tasks: Path) -> str:
    try:
        threads = list(tasks.iterdir())
    except OSError:
        return ""
    return "".join(fields[0] for thread in threads if (fields := _stat(thread)) is not None)


def _stat(folder: Path) -> list[str] | None:
    try:
        text = (folder / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # a name may hold spaces and brackets
