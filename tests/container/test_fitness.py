"""What a base must have, checked at the end of a build."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/container/fitness.py"


@pytest.fixture(scope="module")
def fitness() -> ModuleType:
    """The script as a module: it is of the image, not of the package."""
    spec = importlib.util.spec_from_file_location("fitness", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fitness"] = module  # where its dataclass looks for itself
    spec.loader.exec_module(module)
    return module


ROCM: dict[str, Any] = {
    "torch": "2.13.0+gfx906.1",
    "built_for": "hip",
    "triton": "3.9.0",
    "compiler": "/usr/bin/gcc",
    "headers": True,
}
CUDA = ROCM | {"torch": "2.13.0+cu130", "built_for": "cuda", "triton": "3.6.0"}
CPU = {"torch": "2.13.0+cpu", "built_for": "cpu", "triton": None, "compiler": None, "headers": False}


@pytest.mark.parametrize("found", [ROCM, ROCM | {"triton": "3.10.0"}, CUDA, CPU])
def test_what_a_soak_can_start_on(fitness: ModuleType, found: dict[str, Any]) -> None:
    assert fitness.complaints(fitness.Found(**found)) == []


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (CPU | {"torch": None}, "TORCH=torch==2.13.0"),
        (ROCM | {"triton": "3.7.1"}, "triton>=3.8"),
        (CUDA | {"triton": "3.5.9"}, "triton>=3.6"),
        (ROCM | {"triton": None}, "triton>=3.8"),
        (CUDA | {"triton": "unknown"}, "triton>=3.6"),
        (CUDA | {"compiler": None}, "C compiler"),
        (ROCM | {"headers": False}, "Python.h"),
    ],
)
def test_what_is_missing_is_told_one_by_one(fitness: ModuleType, found: dict[str, Any], told: str) -> None:
    (sentence,) = fitness.complaints(fitness.Found(**found))
    assert told in sentence


def test_this_environment_is_told_and_judged() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("torch 2.")
    assert done.returncode == (1 if done.stderr else 0)
