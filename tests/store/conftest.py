"""What the tests of the store share: a clock that stands still, records, databases, child processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from soak.core.records import (
    Attempt,
    Device,
    Finding,
    GradientCheck,
    Incident,
    IntegrityCheck,
    Quantity,
    Reading,
    Rotation,
    RunInfo,
    Slot,
    State,
    Stats,
    Stretch,
    TensorError,
)
from soak.store.db import Database, sqlite_url

RUN_ID = "20260101-a"
CARD = "0000:33:00.0"


@dataclass
class HandClock:
    """Moves when a test says so."""

    now_ms: int = 1_000_000
    utc_offset_ms: int = 1_767_225_600_000

    def boot_ms(self) -> int:
        return self.now_ms

    def utc_ms(self) -> int:
        return self.utc_offset_ms + self.now_ms


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "soak.db")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """A SQLite file of this version."""
    with Database.open(url, durable=False) as database:
        database.upgrade()
        yield database


def info(run_id: str = RUN_ID, **changes: Any) -> RunInfo:
    given: dict[str, Any] = {
        "run_id": run_id,
        "created_utc_ms": 1_767_225_600_000,
        "host_id": "h" * 32,
        "profile": "mi50",
        "profile_reason": "the card is a gfx906",
        "seed": 7,
        "kernel": "triton",
        "simulated": False,
        "devices": (Device(CARD, "amd", ecc=Reading.ok(1)), Device("0000:08:00.0", "amd", index=1)),
        "config": {"duration": "48h", "limits": [1, 2.5, None]},
    }
    return RunInfo(**given | changes)


def attempt(number: int = 1, **changes: Any) -> Attempt:
    given: dict[str, Any] = {
        "started_utc_ms": 1_767_225_600_000,
        "boot_id": "b",
        "stretches": (Stretch(0, 1_767_225_600_000),),
    }
    return Attempt(number, **given | changes)


def slot(index: int = 0, gpu: str = CARD, number: int = 1, **changes: Any) -> Slot:
    given: dict[str, Any] = {
        "start_ms": index * 300_000,
        "end_ms": (index + 1) * 300_000,
        "utc_ms": 1_767_225_600_000,
        "closed": True,
        "n_polls": 300,
        "stats": {Quantity.UTILISATION_PCT: Stats(300, 96.0, 98.5, 100.0, 97.0, 100.0, 99.0)},
        "ecc": {"corrected": 0, "deferred": 0, "uncorrected": 0},
    }
    return Slot(number, gpu, index, **given | changes)


def rotation(index: int = 0, gpu: str = CARD) -> Rotation:
    return Rotation(1, gpu, index, 0, 512, True, 5, n_steps=10, flops=1 << 70)


def integrity(index: int = 0, gpu: str = CARD) -> IntegrityCheck:
    return IntegrityCheck(1, gpu, index, 10, 10, 0, 600_000)


def gradient(index: int = 0, gpu: str = CARD, worst: float = 4e-4) -> GradientCheck:
    errors = tuple(TensorError(name, 64, 0, worst, 3e-4, 1.0) for name in ("o", "dq", "dk", "dv"))
    return GradientCheck(1, gpu, index, 0, 1_000, 0, 512, True, 5, ((0, 1), (3, 2)), errors)


def incident(seq: int = 0, **changes: Any) -> Incident:
    given: dict[str, Any] = {"at_ms": 5, "utc_ms": 6, "kind": "ecc_error", "gpu": CARD, "data": {"by": 2}}
    return Incident(1, seq, **given | changes)


def finding(criterion: str = "ecc", gpu: str = CARD, **changes: Any) -> Finding:
    return Finding(gpu, criterion, True, State.PASS, **changes)


@pytest.fixture
def make() -> SimpleNamespace:
    """Records by their nouns, with what a test does not care about filled in."""
    return SimpleNamespace(
        RUN_ID=RUN_ID,
        CARD=CARD,
        info=info,
        attempt=attempt,
        slot=slot,
        rotation=rotation,
        integrity=integrity,
        gradient=gradient,
        incident=incident,
        finding=finding,
    )


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `children.py JOB ARGUMENTS` as a process of its own; what is left of it is killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, user: str | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                str(Path(__file__).with_name("children.py")),
                *map(str, arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user=user,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
