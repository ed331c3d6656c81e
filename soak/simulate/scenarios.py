"""The simulated scenarios: what goes wrong, when, and what the verdict has to be. Data.

Times are those of a run of 48 h; another `--duration` scales them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from soak.core.records import Verdict

H_MS = 3_600_000
FULL_MS = 48 * H_MS


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind`: see `world`. `at_ms` and `until_ms` on the elapsed clock of a 48 h run; without `until_ms` it
    lasts. `gpu`: index of the card; None: the machine as a whole. `value`: what the kind needs."""

    kind: str
    at_ms: int
    until_ms: int | None = None
    gpu: int | None = 0
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    about: str
    verdict: Verdict
    criterion: str | None = None  # the one that decides
    faults: tuple[Fault, ...] = ()


def _table(*scenarios: Scenario) -> Mapping[str, Scenario]:
    return {scenario.name: scenario for scenario in scenarios}


SCENARIOS = _table(
    Scenario("healthy", "48 h without an incident", Verdict.PASS),
    Scenario(
        "ecc-at-32h",
        "one corrected memory error after 32 h",
        Verdict.FAIL,
        "ecc",
        (Fault("ecc", 32 * H_MS, value=1),),
    ),
    Scenario(
        "utilisation-drop-at-18h",
        "utilisation falls to 40 % after 18 h, with the PCIe link",
        Verdict.FAIL,
        "utilisation",
        (Fault("utilisation", 18 * H_MS, value=40),),
    ),
    Scenario(
        "thermal-drift",
        "from 20 h on the card gets 1 °C warmer every hour",
        Verdict.FAIL,
        "temperature",
        (Fault("drift", 20 * H_MS, value=1.0),),
    ),
    Scenario(
        "hang",
        "no step finishes after 10 h; a restart of the worker helps",
        Verdict.FAIL,
        "faults",
        (Fault("hang", 10 * H_MS, 10 * H_MS + 90_000),),
    ),
    Scenario(
        "lost-gpu",
        "the card falls off the bus after 12 h",
        Verdict.FAIL,
        "faults",
        (Fault("lost", 12 * H_MS),),
    ),
    Scenario(
        "bit-flip",
        "one bit of an output is wrong, once, after 7 h",
        Verdict.FAIL,
        "integrity",
        (Fault("bit-flip", 7 * H_MS),),
    ),
    Scenario("no-ecc-sensor", "a card without ECC", Verdict.INCONCLUSIVE, "ecc", (Fault("no-ecc", 0),)),
    Scenario(
        "restart",
        "SIGTERM after 20 h, started again 5 min later",
        Verdict.PASS,
        None,
        (Fault("restart", 20 * H_MS, 20 * H_MS + 300_000, gpu=None),),
    ),
    Scenario(
        "disk-full",
        "the disk is full after 10 h; space returns after 10 min",
        Verdict.PASS,
        None,
        (Fault("disk-full", 10 * H_MS, 10 * H_MS + 600_000, gpu=None),),
    ),
    Scenario(
        "disk-full-for-good",
        "the disk is full after 10 h and stays so",
        Verdict.INCONCLUSIVE,
        "coverage",
        (Fault("disk-full", 10 * H_MS, gpu=None),),
    ),
    Scenario(
        "clock-step",
        "the wall clock is set back by 2 h after 10 h, and forward by 26 h after 20 h",
        Verdict.PASS,
        None,
        (
            Fault("clock-step", 10 * H_MS, gpu=None, value=-2 * H_MS),
            Fault("clock-step", 20 * H_MS, gpu=None, value=26 * H_MS),
        ),
    ),
)


def scaled(faults: tuple[Fault, ...], duration_ms: int, poll_ms: int) -> tuple[Fault, ...]:
    """The faults of a 48 h run in a run of another length, on whole polls; how long they last stays."""

    def scale(fault: Fault) -> Fault:
        at_ms = fault.at_ms * duration_ms // FULL_MS // poll_ms * poll_ms
        lasts_ms = None if fault.until_ms is None else fault.until_ms - fault.at_ms
        until_ms = None if lasts_ms is None else at_ms + lasts_ms
        return Fault(fault.kind, at_ms, until_ms, fault.gpu, fault.value)

    return tuple(scale(fault) for fault in faults)
