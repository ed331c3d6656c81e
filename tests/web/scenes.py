"""Snapshots of simulated runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from soak.core.criteria import NAMES
from soak.core.protocol import Limits, Protocol
from soak.core.records import RunInfo
from soak.core.snapshot import Snapshot
from soak.run import Plan, Run
from soak.simulate import (
    SCENARIOS,
    SimulatedLoad,
    SimulatedTelemetry,
    Stage,
    VirtualClock,
    World,
    simulate,
    simulated_devices,
)
from soak.store.memory import MemoryStore

HOUR_MS = 3_600_000
GPU, SECOND = "0000:33:00.0", "0000:34:00.0"


def protocol(hours: int = 48) -> Protocol:
    """The mi50 profile's."""
    return Protocol(
        duration_ms=hours * HOUR_MS,
        rotate_ms=600_000,
        check_ms=HOUR_MS,
        sample_ms=300_000,
        poll_ms=1000,
        warmup_ms=1_800_000,
        seq_len_min=512,
        seq_len_max=4096,
        seed=7,
        limits=Limits(required=frozenset(NAMES)),
    )


def run_info(scenario: str, n_gpus: int) -> RunInfo:
    return RunInfo(
        run_id=f"sim-{scenario}",
        created_utc_ms=1_795_000_000_000,
        host_id="host-1",
        profile="mi50",
        profile_reason="the simulated cards are MI50s",
        seed=7,
        kernel="simulated",
        simulated=True,
        devices=simulated_devices(SCENARIOS[scenario], n_gpus),
        config={},
        labels={"rack": 'r7 "left"'},
        versions={"soak": "0"},
    )


@dataclass(frozen=True)
class Disk:
    store: MemoryStore

    def fill(self) -> None:
        self.store.away = "the disk is full"

    def free(self) -> None:
        self.store.away = ""


@cache
def played(scenario: str, n_gpus: int = 1, hours: int = 48, every_ms: int = HOUR_MS) -> tuple[Snapshot, ...]:
    """A run as it looked after a tick every so often, the last one after its end."""
    clock = VirtualClock(utc_ms=1_795_000_000_000)
    store = MemoryStore(clock)
    snapshots: list[Snapshot] = []
    runs: list[Run] = []

    def on_tick(run: Run) -> None:
        runs[:] = [run]
        last = snapshots[-1] if snapshots else None
        if last is None or abs(clock.boot_ms() - last.boot_ms) >= every_ms:
            snapshots.append(run.snapshot())

    info = run_info(scenario, n_gpus)
    stage = Stage(clock, store, Disk(store), store.record)
    simulate(SCENARIOS[scenario], info, protocol(hours), stage, on_tick=on_tick)
    return (*snapshots, runs[0].snapshot())


def at_hour(scenario: str, hour: float, n_gpus: int = 1) -> Snapshot:
    """The run when `hour` hours of its 48 were over, or a little later."""
    return next(s for s in played(scenario, n_gpus) if s.elapsed_ms >= hour * HOUR_MS)


def with_everything() -> Snapshot:
    """A run in which every metric has something to say: it hung, a sensor of one card failed, its polls cost
    something."""
    snapshot = at_hour("hang", 20, n_gpus=2)
    first, second = snapshot.cards
    assert second.poll is not None
    second = replace(second, n_sensor_errors={"power_w": 3}, poll=replace(second.poll, cost_ms=2.5))
    return replace(snapshot, cards=(first, second))


def before_t0(n_gpus: int = 1) -> Snapshot:
    """A run that waits for its cards."""
    info, clock = run_info("healthy", n_gpus), VirtualClock()
    world = World(clock, protocol(), info.devices, (), 7)
    plan = Plan(info, protocol(), "boot-1")
    run = Run(plan, clock, SimulatedTelemetry(world), SimulatedLoad(world), MemoryStore(clock))
    return run.snapshot(f"waiting for the first step of {GPU}")
