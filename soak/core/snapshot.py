"""What a run looks like at one instant: immutable, made once a tick, for the live view, metrics and pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from soak.core.ports import Progress
from soak.core.protocol import Protocol, Shape
from soak.core.records import Attempt, Device, Finding, GradientCheck, Incident, Poll, RunInfo, Slot, Verdict


@dataclass(frozen=True, slots=True)
class CardSnapshot:
    """One card. What is not known is None or absent, never 0."""

    device: Device
    up: bool  # False: configured, but gone
    verdict: Verdict
    findings: tuple[Finding, ...]
    poll: Poll | None = None  # the last one; None before the first, and once the card is gone
    poll_utc_ms: int | None = None  # when a sensor last gave a value; a driver that hangs gives polls without
    slot: Slot | None = None  # the open slot
    progress: Progress | None = None
    progress_utc_ms: int | None = None  # when the last step finished
    check: GradientCheck | None = None  # the last one
    n_checks: Mapping[str, int] = field(default_factory=dict)  # by result: pass, fail
    n_steps: int = 0
    flops: int = 0
    n_rotations: int = 0
    n_compared: int = 0
    n_mismatches: int = 0
    n_restarts: int = 0
    observed_ms: int = 0
    in_spec_ms: int = 0
    throttle_ms: Mapping[str, int] = field(default_factory=dict)  # by reason (thermal, power), where told
    ecc: Mapping[str, int] | None = None  # errors since t0 by kind; None: not supported or not read yet
    n_sensor_errors: Mapping[str, int] = field(default_factory=dict)  # by quantity
    is_out: bool = False  # cannot work any more; the other cards' run goes on


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The run. `state`: starting, running, completed, interrupted, failed."""

    info: RunInfo
    protocol: Protocol
    state: str
    verdict: Verdict
    attempt: Attempt
    elapsed_ms: int
    boot_ms: int
    utc_ms: int
    shape: Shape | None
    cards: tuple[CardSnapshot, ...]
    n_incidents: Mapping[tuple[str | None, str], int] = field(default_factory=dict)  # by (gpu, kind)
    incidents: tuple[Incident, ...] = ()  # the last few
    n_missed: Mapping[str, int] = field(default_factory=dict)  # wakes missed, by the scheduler's job
    rows_waiting: int = 0
    message: str = ""  # what a person should know now, e.g. what the start is waiting for
