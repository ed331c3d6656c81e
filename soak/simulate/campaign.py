"""Campaigns: runs with faults drawn from a seed, each verdict held against an oracle.

The oracle knows the fault plan and the rules, not the code that judges: it works on whole faults and
arithmetic, never on polls or slots.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from soak.core.protocol import Protocol
from soak.core.records import RunInfo, Verdict
from soak.core.verdict import judge
from soak.simulate.drive import Stage, simulate
from soak.simulate.scenarios import FULL_MS, Fault, Scenario
from soak.simulate.world import VirtualClock
from soak.store.memory import MemoryStore

MINUTE_MS = 60_000
_MACHINE = ("clock-step", "disk-full")


def drawn(seed: int, n_gpus: int) -> Scenario:
    """A scenario with up to four faults on drawn cards, at drawn times; the oracle says the verdict."""
    source = random.Random(f"soak/campaign/{seed}")
    faults: list[Fault] = []
    for _ in range(source.randint(0, 4)):
        faults.append(_fault(source, n_gpus, [f.kind for f in faults]))
    return Scenario("campaign", f"faults drawn from seed {seed}", Verdict.INCONCLUSIVE, None, tuple(faults))


def _fault(source: random.Random, n_gpus: int, taken: list[str]) -> Fault:
    kinds = ["ecc", "utilisation", "hang", "lost", "bit-flip", "no-ecc", *_MACHINE]
    kind = source.choice([k for k in kinds if k not in taken])
    at_ms = source.randrange(2 * 3_600_000, FULL_MS - 3_600_000, MINUTE_MS)
    gpu = None if kind in _MACHINE else source.randrange(n_gpus)
    match kind:
        case "utilisation":
            lasts_ms = source.choice([10, 30, 50, 65, 120, 600]) * MINUTE_MS
            return Fault(kind, at_ms, at_ms + lasts_ms, gpu, source.choice([0, 40, 94]))
        case "hang":
            return Fault(kind, at_ms, at_ms + 90_000, gpu)
        case "disk-full":
            until_ms = source.choice([None, at_ms + 10 * MINUTE_MS])
            return Fault(kind, at_ms, until_ms, gpu)
        case "clock-step":
            return Fault(kind, at_ms, None, None, source.choice([-1, 1]) * source.randrange(1_000, 10**8))
        case "no-ecc":
            return Fault(kind, 0, None, gpu)
        case _:
            return Fault(kind, at_ms, None, gpu, 1.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    scenario: Scenario
    expected: Verdict
    live: Verdict
    stored: Verdict

    @property
    def agrees(self) -> bool:
        return self.expected is self.live is self.stored

    @property
    def words(self) -> str:
        faults = ", ".join(f"{f.kind}@{f.at_ms // MINUTE_MS}min" for f in self.scenario.faults) or "none"
        return f"expected {self.expected}, live {self.live}, stored {self.stored}; faults: {faults}"


def play(scenario: Scenario, info: RunInfo, protocol: Protocol) -> Outcome:
    """Plays a drawn scenario in memory."""
    clock = VirtualClock(utc_ms=info.created_utc_ms)
    store = MemoryStore(clock)
    live = simulate(scenario, info, protocol, Stage(clock, store, _Away(store), store.record)).verdict
    expected = oracle(scenario, protocol)
    if store.away:  # for good: only the live run can know what came after
        return Outcome(scenario, expected, live, live)
    return Outcome(scenario, expected, live, judge(store.record(), protocol).verdict)


@dataclass(frozen=True, slots=True)
class _Away:
    store: MemoryStore

    def fill(self) -> None:
        self.store.away = "database or disk is full (simulated)"

    def free(self) -> None:
        self.store.away = ""


def oracle(scenario: Scenario, protocol: Protocol) -> Verdict:
    """What the verdict has to be, from the plan of faults alone."""
    kinds = {f.kind for f in scenario.faults}
    without_ecc = {f.gpu for f in scenario.faults if f.kind == "no-ecc"}
    if kinds & {"lost", "hang", "bit-flip"}:
        return Verdict.FAIL
    if any(f.kind == "ecc" and f.gpu not in without_ecc for f in scenario.faults):
        return Verdict.FAIL
    if any(
        _lasts_ms(f, protocol) * 50 >= protocol.duration_ms
        for f in scenario.faults
        if f.kind == "utilisation"
    ):
        return Verdict.FAIL  # 2 % of the planned length
    full_for_good = any(f.kind == "disk-full" and f.until_ms is None for f in scenario.faults)
    return Verdict.INCONCLUSIVE if without_ecc or full_for_good else Verdict.PASS


def _lasts_ms(fault: Fault, protocol: Protocol) -> int:
    """Within the run; `scaled` keeps how long a fault lasts and moves its begin."""
    at_ms = fault.at_ms * protocol.duration_ms // FULL_MS
    until_ms = at_ms + (fault.until_ms or FULL_MS) - fault.at_ms
    return min(until_ms, protocol.duration_ms) - at_ms
