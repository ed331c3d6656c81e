"""Files and folders that may not be read, by a user to whom modes mean something: each in turn, real ones."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from soak.core.records import Quantity, Reading, ReadingStatus
from soak.doctor.look_amd import look_at_amd
from soak.telemetry.amd import AmdBackend
from soak.telemetry.cpu import CpuBackend
from soak.telemetry.pci import gpus_on_bus
from soak.telemetry.sensors import Backend
from tests.fuzz.targets import CPU_FILES, GPU, MI50, ONE_NUMBER, read_all
from tests.telemetry.as_user import a_user

Q = Quantity


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that everybody may enter, as the test's own temporary one may not be."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "root"


@contextmanager
def closed(path: Path, mode: int = 0o000) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        with a_user():
            yield
    finally:
        path.chmod(before)


def places(root: Path) -> Iterator[tuple[Path, int]]:
    """Every file, closed; every folder, closed, not to be entered, not to be listed."""
    for path in sorted(root.rglob("*")):
        if not path.is_symlink():
            for mode in (0o000, 0o444, 0o111) if path.is_dir() else (0o000,):
                yield path, mode


def cpu(root: Path) -> Backend:
    return CpuBackend(root, lambda: {0, 1})


def test_an_amd_card_with_anything_closed(root: Path) -> None:
    shutil.copytree(MI50, root, symlinks=True)
    expected = AmdBackend(root).open(GPU).read()
    for path, mode in places(root):
        sensor = AmdBackend(root).open(GPU)
        with closed(path, mode):
            read_all(AmdBackend(root))
            with suppress(KeyError):  # the driver shows no card any more
                look_at_amd(root, GPU)
            gpus_on_bus(root, "amd")
            readings = sensor.read()  # nothing that is closed makes a card gone
        for quantity, reading in readings.items():
            assert reading.value in (None, expected[quantity].value), (path, quantity)
        if path.name in ONE_NUMBER:
            closed_one = readings[ONE_NUMBER[path.name]]
            assert closed_one == Reading.unreadable(f"{path.name}: EACCES"), "neither 0 nor unsupported"
        assert sensor.read() == expected, path


def test_a_cpu_with_anything_closed(root: Path) -> None:
    for name, content in CPU_FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    for path, mode in places(root):
        with closed(path, mode):
            read_all(cpu(root))
            readings = cpu(root).open("cpu").read()
        for quantity in (Q.MEMORY_TOTAL_BYTES, Q.MEMORY_FREE_BYTES, Q.TEMPERATURE_CORE_C, Q.CLOCK_CORE_HZ):
            assert readings[quantity].value != 0, (path, quantity)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("ras", lambda reading: reading.reason == "ras: EACCES"),
        ("ras/umc_err_count", lambda reading: reading.reason == "umc_err_count: EACCES"),
    ],
)
def test_counters_that_may_not_be_read_are_no_card_without_any(
    root: Path, place: str, told: Callable[[Reading], bool]
) -> None:
    shutil.copytree(MI50, root, symlinks=True)
    with closed((root / "sys/bus/pci/devices" / GPU).resolve() / place):
        ecc = AmdBackend(root).open(GPU).describe().ecc
    assert ecc.status is ReadingStatus.UNREADABLE
    assert told(ecc), ecc
