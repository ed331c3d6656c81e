"""A real clock, small machines made of files, and samplers that are gone after each test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from soak.core.ports import Happening
from soak.core.records import Poll
from soak.telemetry.watch import Sampler

News = list[Poll | Happening]
Tree = Callable[[Mapping[str, str]], Path]


class BootClock:
    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def utc_ms(self) -> int:
        return time.time_ns() // 1_000_000


@pytest.fixture
def clock() -> BootClock:
    return BootClock()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes files below a folder that stands for `/`, and gives that folder."""

    def write(files: Mapping[str, str]) -> Path:
        root = tmp_path / "root"
        root.mkdir(exist_ok=True)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return write


@pytest.fixture
def start(clock: BootClock) -> Iterator[Callable[..., Sampler]]:
    """Starts samplers and stops them after the test."""
    started: list[Sampler] = []

    def start_one(*args: object, **kwargs: object) -> Sampler:
        sampler = Sampler(*args, clock=clock, **kwargs)  # type: ignore[arg-type]  # passed on
        started.append(sampler)
        sampler.start()
        return sampler

    yield start_one
    for sampler in started:
        sampler.stop(2000)


@pytest.fixture
def until() -> Callable[..., News]:
    """Takes news until a condition on all of them holds; fails after `within_s`."""

    def take(sampler: Sampler, holds: Callable[[News], object], within_s: float = 8.0) -> News:
        news: News = []
        end = time.monotonic() + within_s
        while not holds(news):
            assert time.monotonic() < end, f"waited {within_s} s in vain; news: {news}"
            time.sleep(0.02)
            news += sampler.take()
        return news

    return take


@pytest.fixture
def is_running() -> Callable[[int], bool]:
    """Whether a process runs: neither gone nor a zombie."""

    def running(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return False
        return state not in "ZX"

    return running
