"""Small protocols, the machine's clock, and a pool that is always stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from soak.core.ports import LoadEvent
from soak.core.protocol import Limits, Protocol
from soak.core.records import Device
from soak.load.pool import Pool

PUPPET = Path(__file__).with_name("puppet.py")


class BootClock:
    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def utc_ms(self) -> int:
        return time.time_ns() // 1_000_000


@pytest.fixture
def clock() -> BootClock:
    return BootClock()


@pytest.fixture
def protocol() -> Protocol:
    """Shapes so small that a step takes about a millisecond."""
    return Protocol(
        duration_ms=60_000,
        rotate_ms=10_000,
        check_ms=30_000,
        sample_ms=10_000,
        poll_ms=1_000,
        warmup_ms=0,
        seq_len_min=16,
        seq_len_max=64,
        seed=7,
        limits=Limits(frozenset({"gradient", "integrity", "faults"})),
        heads=2,
        head_dim=32,
        dtype="float32",
        compare_every=1,
        work_rate_rule=False,
    )


class Watched:
    """A pool and everything that came out of it so far."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.events: list[LoadEvent] = []

    def until(self, wanted: Callable[[LoadEvent], bool], timeout_s: float = 30.0) -> Any:
        """The first event from now on that is wanted; what came together with it is seen as well."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            came = list(self.pool.take())
            self.events += came
            for event in came:
                if wanted(event):
                    return event
            time.sleep(0.02)
        raise AssertionError(f"nothing wanted in {timeout_s} s; came: {self.events}")

    def kinds(self) -> list[str]:
        return [kind for event in self.events if (kind := getattr(event, "kind", None)) is not None]


@pytest.fixture
def watched(protocol: Protocol, clock: BootClock) -> Iterator[Callable[..., Watched]]:
    """Starts a pool; `mode` replaces the worker by the puppet doing that."""
    pools: list[Pool] = []

    def start(*gpus: str, mode: str | None = None, **options: Any) -> Watched:
        cards = [Device(gpu, "cpu") for gpu in gpus or ("cpu",)]
        if mode is not None:
            options["command"] = (sys.executable, str(PUPPET), mode)
        pool = Pool(cards, protocol, clock, **options)
        pools.append(pool)
        pool.start()
        return Watched(pool)

    yield start
    for pool in pools:
        pool.stop(3_000)
        assert pool.pids == {}
