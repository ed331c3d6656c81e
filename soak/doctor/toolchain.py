"""Whether Triton could build and load the small C library that starts a kernel: by doing the same."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from soak.doctor.facts import Told

_SOURCE = "#include <Python.h>\nint soak_doctor(void) { return 42; }\n"
_ANSWER = 42


def compiler(environ: Mapping[str, str]) -> str | None:
    """The C compiler as Triton chooses it: $CC, gcc, clang."""
    return environ.get("CC") or shutil.which("gcc") or shutil.which("clang")


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where Triton keeps what it compiled."""
    home = Path(environ.get("TRITON_HOME") or "~").expanduser()
    return Path(environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")


def c_compiler(environ: Mapping[str, str]) -> Told:
    """Builds and loads a library against Python's headers, in a temporary folder."""
    found = compiler(environ)
    if found is None:
        return Told(fault="neither $CC nor gcc nor clang is there")
    with tempfile.TemporaryDirectory(prefix="soak-doctor-") as folder:
        return _built(found, Path(folder))


def cache_writable(environ: Mapping[str, str]) -> Told:
    """The cache folder takes files, and code can be loaded from it (some are mounted noexec)."""
    folder = cache_folder(environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".soak-doctor-", dir=folder) as trial:
            (Path(trial) / "file").write_bytes(b"soak")
            if os.statvfs(trial).f_flag & os.ST_NOEXEC:
                return Told(fault=f"{folder} is on a file system mounted noexec")
    except OSError as error:
        return Told(fault=f"{folder} is not writable ({error.strerror})")
    return Told(says=str(folder))


def _built(found: str, folder: Path) -> Told:
    source, library = folder / "doctor.c", folder / "doctor.so"
    source.write_text(_SOURCE, encoding="ascii")
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # as Triton asks
    include = sysconfig.get_paths(scheme=scheme)["include"]
    command = [found, str(source), "-O1", "-shared", "-fPIC", f"-I{include}", "-o", str(library)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Told(fault=f"{found} does not run ({error})")
    if done.returncode:
        said = next((line for line in done.stderr.splitlines() if "error" in line), "it gives no reason")
        return Told(fault=f"{found} builds no library: {said.strip()[:200]}")
    try:
        answer = ctypes.CDLL(str(library)).soak_doctor()
    except OSError as error:
        return Told(fault=f"what {found} builds cannot be loaded ({error})")
    return Told(says=found) if answer == _ANSWER else Told(fault=f"what {found} builds answers {answer}")
