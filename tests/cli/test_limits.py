"""A limit of the machine that a start runs into is a sentence, not a fault of soak."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from soak.cli import app, main

H200 = Path(__file__).parents[1] / "captures" / "nvidia__h200__580.159.04"
RECORDED = ("--sysfs-root", str(H200), "--listen", "127.0.0.1:0")


@pytest.mark.parametrize(("n_files", "command"), [(20, "run"), (12, "doctor")])
def test_too_few_open_files(machine: Any, n_files: int, command: str) -> None:
    arguments = machine.command(command, *RECORDED)
    done = subprocess.run(
        ["bash", "-c", f'ulimit -n {n_files}; exec "$@"', "soak", *arguments],
        capture_output=True, text=True, check=False, timeout=60, env=machine.environment(),
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    assert "Too many open files" in done.stderr.splitlines()[-1], (
        "from whichever part comes to the limit first"
    )
    assert "fault of soak" not in done.stderr


def test_the_sentence_says_how_many_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(**_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(app, "main", refused)
    assert main([]) == 4
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = capsys.readouterr().err
    assert f"Too many open files: this process may have {allowed} open; allow it more" in said
    assert "ulimit -n" in said
