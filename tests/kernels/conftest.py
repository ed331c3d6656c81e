"""Kernel tests run in child processes: Triton's interpreter and its compiler exclude each other, and both are
chosen before triton is imported, while the rest of the suite shares one process. One child of each kind
serves the whole session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KERNELS = HERE.parents[1] / "kernels"
sys.path.insert(0, str(KERNELS))  # the checkout's package, also where nothing is installed


class Child:
    """`child.py` in a process of its own, started on first use; `call` runs one of its functions."""

    def __init__(self, module: str, environment: dict[str, str]) -> None:
        self._module = module
        self._environment = environment
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (lives as long as the child)

    def call(self, function: str, **arguments: Any) -> Any:
        if self._process is None:
            environment = {
                **os.environ,
                "TRITON_DEFAULT_FP_FUSION": "1",
                "PYTHONPATH": str(KERNELS),
                **self._environment,
            }
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", str(HERE / "child.py"), self._module],
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                text=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._process.stdin.write(json.dumps({"function": function, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            pytest.fail(f"the child died: {self._errors.read()[-4000:]}")
        answer = json.loads(line)
        if "error" in answer:
            pytest.fail(answer["error"])
        return answer["result"]

    def close(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait(timeout=60)
            self._process.stdout.close()
        self._errors.close()


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Child]:
    """The functions of interpreted.py, where Triton kernels run on the CPU."""
    pytest.importorskip("triton", reason="Triton is not installed")
    child = Child("interpreted", {"TRITON_INTERPRET": "1"})
    yield child
    child.close()


@pytest.fixture(scope="session")
def compiler() -> Iterator[Child]:
    """The functions of compiled.py, where Triton compiles for cards that are not here."""
    pytest.importorskip("triton", reason="Triton is not installed")
    child = Child("compiled", {"TRITON_INTERPRET": "0"})
    yield child
    child.close()


@pytest.fixture(scope="session")
def emulator() -> Iterator[Child]:
    """The functions of gfx906/emulated.py, where Triton compiles for gfx906 and its code is executed."""
    pytest.importorskip("triton", reason="Triton is not installed")
    child = Child("gfx906.emulated", {"TRITON_INTERPRET": "0"})
    yield child
    child.close()
