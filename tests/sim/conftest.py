"""Whole runs in virtual time, short enough for a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from soak.config import parse, resolve
from soak.core.protocol import Protocol
from soak.core.records import RunInfo, RunRecord
from soak.core.resume import OnInterrupt
from soak.core.verdict import Judgement, judge
from soak.run import Run
from soak.simulate import SCENARIOS, Scenario, Stage, VirtualClock, simulate, simulated_devices
from soak.store.memory import MemoryStore

UTC_MS = 1_767_225_600_000


@dataclass
class MemoryDisk:
    store: MemoryStore

    def fill(self) -> None:
        self.store.away = "the disk is full (simulated)"

    def free(self) -> None:
        self.store.away = ""


@dataclass(frozen=True)
class Played:
    protocol: Protocol
    live: Judgement
    store: MemoryStore

    @property
    def record(self) -> RunRecord:
        return self.store.record()

    @property
    def stored(self) -> Judgement:
        return judge(self.record, self.protocol)


class Theatre:
    """Plays scenarios by the mi50 profile; options as of `soak simulate`."""

    def config(self, **options: Any) -> Any:
        flags = {"profile": "mi50", "accept_inconclusive": True, "seed": 7, **options}
        return resolve(parse(flags, {"HOME": "/nowhere"}), (), drawn_seed=1)

    def short(self, **changes: Any) -> Protocol:
        """Ten minutes with everything in it: 10 slots, 6 rotations, 3 checks."""
        plain: Protocol = self.config().protocol()
        return replace(
            plain,
            **{
                "duration_ms": 600_000,
                "rotate_ms": 100_000,
                "check_ms": 200_000,
                "sample_ms": 60_000,
                "warmup_ms": 60_000,
                **changes,
            },
        )

    def info(
        self, scenario: Scenario, n_gpus: int, waived: tuple[str, ...] = (), config: Any = None
    ) -> RunInfo:
        config = config or self.config()
        return RunInfo(
            "simulated-1", UTC_MS, "simulated", "mi50", "asked for", config.seed, "simulated", True,
            simulated_devices(scenario, n_gpus), config.effective(), waived,
        )  # fmt: skip

    def play(
        self,
        scenario: str | Scenario,
        n_gpus: int = 1,
        *,
        protocol: Protocol | None = None,
        waived: tuple[str, ...] = (),
        on_interrupt: OnInterrupt = OnInterrupt.RESTART_CLOCK,
        on_tick: Callable[[Run, MemoryStore], None] | None = None,
    ) -> Played:
        chosen = SCENARIOS[scenario] if isinstance(scenario, str) else scenario
        protocol = protocol or self.config().protocol()
        clock = VirtualClock(utc_ms=UTC_MS)
        store = MemoryStore(clock)
        stage = Stage(clock, store, MemoryDisk(store), store.record)
        ticked = None if on_tick is None else lambda run: on_tick(run, store)
        info = replace(self.info(chosen, n_gpus, waived), seed=protocol.seed)
        live = simulate(chosen, info, protocol, stage, on_interrupt, ticked)
        return Played(protocol, live, store)


@pytest.fixture(scope="session")
def theatre() -> Theatre:
    return Theatre()
