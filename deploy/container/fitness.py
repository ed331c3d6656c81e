"""The last step of a build: refuses a base on which a soak could not start, while somebody is looking.

torch must be there; where it was built for GPUs, a Triton that compiles for them, and what Triton itself
needs: a C compiler and Python's headers.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEAST_TRITON = {"hip": (3, 8), "cuda": (3, 6)}  # gfx906 came with 3.8


@dataclass(frozen=True, slots=True)
class Found:
    """What an image has. `built_for`: hip, cuda or cpu."""

    torch: str | None
    built_for: str
    triton: str | None
    compiler: str | None
    headers: bool


def complaints(found: Found) -> list[str]:
    """What is missing, and what to do; nothing where a soak can start."""
    if found.torch is None:
        return [
            "torch is not there: choose a BASE_IMAGE that has it, or give --build-arg TORCH=torch==2.13.0"
        ]
    least = LEAST_TRITON.get(found.built_for)
    if least is None:
        return []
    said = []
    words = ".".join(map(str, least))
    if found.triton is None:
        said.append(f"Triton is not there: give --build-arg TRITON='triton>={words}'")
    elif _numbers(found.triton) < least:
        said.append(f"Triton {found.triton} is older than {words}: give --build-arg TRITON='triton>={words}'")
    if found.compiler is None:
        said.append("there is no C compiler (gcc or clang), which Triton needs: choose a BASE_IMAGE with one")
    if not found.headers:
        said.append("Python.h is not there, which Triton needs: choose a BASE_IMAGE with Python's headers")
    return said


def look() -> Found:
    """At the environment that runs this."""
    include = Path(sysconfig.get_paths()["include"], "Python.h")
    compiler = next(filter(None, map(shutil.which, ("gcc", "clang", "cc"))), None)
    torch, triton = _module("torch"), _module("triton")
    built_for = "cpu"
    if torch is not None:
        built_for = "hip" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    return Found(_version(torch), built_for, _version(triton), compiler, include.is_file())


def _module(name: str) -> Any:
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def _version(module: Any) -> str | None:
    """The module's own word: Triton's distribution has other names too."""
    return None if module is None else str(module.__version__)


def _numbers(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def main() -> int:
    found = look()
    print(f"torch {found.torch} ({found.built_for}), Triton {found.triton}, compiler {found.compiler}")
    for sentence in complaints(found):
        print(sentence, file=sys.stderr)
    return 1 if complaints(found) else 0


if __name__ == "__main__":
    sys.exit(main())
