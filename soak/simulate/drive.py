"""Drives a run through virtual time: the same `soak.run`, the same store, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol as Interface

from soak.core.clockwatch import ClockWatch
from soak.core.ports import Store
from soak.core.protocol import Protocol
from soak.core.records import Device, RunInfo, RunRecord
from soak.core.resume import OnInterrupt, What, decide
from soak.core.verdict import Judgement, judge
from soak.run import DUTIES, Plan, Run
from soak.simulate.scenarios import Fault, Scenario, scaled
from soak.simulate.world import (
    SimulatedLoad,
    SimulatedTelemetry,
    VirtualClock,
    World,
    simulated_device,
    without_ecc,
)

BOOT_ID = "simulated"


class Disk(Interface):
    """The disk under the store, for the scenarios that fill it."""

    def fill(self) -> None:
        """No write succeeds any more."""

    def free(self) -> None:
        """Space is back."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What a simulation plays on. `read` gives the run as the store holds it."""

    clock: VirtualClock
    store: Store
    disk: Disk
    read: Callable[[], RunRecord]


def simulated_devices(scenario: Scenario, n_gpus: int) -> tuple[Device, ...]:
    """The cards of a scenario."""
    devices = [simulated_device(index, ecc=True) for index in range(n_gpus)]
    return without_ecc(devices, scenario.faults)


def simulate(
    scenario: Scenario,
    info: RunInfo,
    protocol: Protocol,
    stage: Stage,
    on_interrupt: OnInterrupt = OnInterrupt.RESTART_CLOCK,
    on_tick: Callable[[Run], None] | None = None,
) -> Judgement:
    """Plays a scenario to its end; the judgement of the live run.

    `info.devices` are `simulated_devices(scenario, n)`. A second attempt, after an interruption, is decided
    by `core.resume` from what the store holds, as in a real start.
    """
    clock = stage.clock
    faults = scaled(scenario.faults, protocol.duration_ms, protocol.poll_ms)
    plan = Plan(info, protocol, BOOT_ID)
    while True:
        world = World(clock, protocol, info.devices, faults, info.seed, plan.start_ms)
        end, judgement = _Playing(world, plan, stage, on_tick).play()
        restart = next((f for f in faults if f.kind == "restart"), None)
        if end != "interrupted" or restart is None or restart.until_ms is None:
            return judgement
        clock.advance_to(world.boot_at_t0_ms + restart.until_ms)
        before = stage.read()
        decision = decide(
            before,
            judge(before, protocol).verdict,
            on_interrupt=on_interrupt,
            by_id=True,
            boot_id=BOOT_ID,
            boot_ms=clock.boot_ms(),
            utc_ms=clock.utc_ms(),
        )
        if decision.what is What.FINISHED:
            if decision.ended is not None:
                stage.store.write(decision.ended)
                stage.store.flush(0)
            return judge(stage.read(), protocol)
        continues = decision.what is What.CONTINUE
        shift_ms = 0 if continues else clock.boot_ms() - world.boot_at_t0_ms
        faults = tuple(_shifted(f, shift_ms) for f in faults if f.kind != "restart")
        plan = Plan(
            info, protocol, BOOT_ID, decision.attempt, before, continues, happened=decision.happened
        )  # fmt: skip


def _shifted(fault: Fault, by_ms: int) -> Fault:
    until_ms = None if fault.until_ms is None else fault.until_ms - by_ms
    return replace(fault, at_ms=fault.at_ms - by_ms, until_ms=until_ms)


class _Playing:
    """One process's life in virtual time."""

    def __init__(self, world: World, plan: Plan, stage: Stage, on_tick: Callable[[Run], None] | None) -> None:
        self._world, self._stage, self._on_tick = world, stage, on_tick
        self._load = SimulatedLoad(world)
        self._run = Run(plan, world.clock, SimulatedTelemetry(world), self._load, stage.store)
        self._watch = ClockWatch(world.clock.boot_ms(), world.clock.utc_ms())
        self._cuts = [at_ms for at_ms in world.instants() if at_ms > world.now_ms()]

    def play(self) -> tuple[str, Judgement]:
        run, world = self._run, self._world
        waiting = run.wait_for_cards()
        assert not waiting, waiting
        while not run.is_over:
            world.clock.advance_to(world.boot_at_t0_ms + self._next_ms())
            if self._happens() == "restart":
                return "interrupted", run.finish("interrupted", "SIGTERM (simulated)")
            for duty in DUTIES:
                run.wake(duty)
            run.tick()
            if self._on_tick is not None:
                self._on_tick(run)
        end, reason = run.outcome
        return end, run.finish(end, reason)

    def _next_ms(self) -> int:
        """The next instant at which something is due or happens."""
        now_ms, protocol = self._world.now_ms(), self._world.protocol
        every = (protocol.sample_ms, protocol.rotate_ms, protocol.check_ms)
        ahead = [(now_ms // ms + 1) * ms for ms in every]
        check_ms = self._load.next_check_ms()
        if check_ms is not None:
            ahead.append(check_ms)
        if now_ms < protocol.duration_ms:
            ahead.append(protocol.duration_ms)
        ahead += self._cuts[:1]
        return max(min(ahead), now_ms + 1)

    def _happens(self) -> str:
        """Plays the faults of the machine whose time has come; what it means for the process."""
        now_ms = self._world.now_ms()
        while self._cuts and self._cuts[0] <= now_ms:
            self._cuts.pop(0)
        outcome = ""
        for fault in self._machine_faults():
            if fault.at_ms == now_ms:
                outcome = self._begin(fault) or outcome
            elif fault.until_ms == now_ms and fault.kind == "disk-full":
                self._stage.disk.free()
        for happening in self._watch.look(self._world.clock.boot_ms(), self._world.clock.utc_ms()):
            self._run.note(happening)
        return outcome

    def _machine_faults(self) -> Sequence[Fault]:
        return [f for f in self._world.faults if f.gpu is None]

    def _begin(self, fault: Fault) -> str:
        if fault.kind == "disk-full":
            self._stage.disk.fill()
        elif fault.kind == "clock-step":
            self._world.clock.set_wall(int(fault.value))
        return fault.kind
