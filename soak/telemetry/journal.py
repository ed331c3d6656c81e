"""The kernel's messages as systemd's journal has them, for a user who may not read /dev/kmsg.

On most systems the kernel log is for administrators alone, the journal also for those in its groups
(`systemd-journal`, `adm`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from soak.telemetry.sysfs import entries

PAST_LINES_MAX = 20_000
_FOLDERS = ("var/log/journal", "run/log/journal")  # kept over reboots, or not


Which = Callable[[str], str | None]


def follow_command(root: Path, which: Which = shutil.which) -> Sequence[str]:
    """What prints the kernel's messages from now on, a line each; empty where this user would see none."""
    return _printing(root, which, "--follow", "--lines=0")


def past_command(root: Path, which: Which = shutil.which) -> Sequence[str]:
    """What prints the kernel's last messages and ends; empty where this user would see none."""
    return _printing(root, which, f"--lines={PAST_LINES_MAX}")


def _printing(root: Path, which: Which, *what: str) -> Sequence[str]:
    program = which("journalctl")
    files = [file for folder in _FOLDERS for file in entries(root / folder, "*/system.journal")]
    if program is None or not any(os.access(file, os.R_OK, effective_ids=True) for file in files):
        return ()
    return (program, "--dmesg", *what, "--output=cat", "--no-pager", "--quiet")


def lines_of(command: Sequence[str]) -> Iterator[str]:
    """What a command prints, for as long as it does. Raises OSError where it does not start.

    It ends by itself when its pipe does, as it does with the process that reads here.
    """
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout is not None
    try:
        for line in child.stdout:
            yield line.decode("utf-8", "replace").rstrip("\n")
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
