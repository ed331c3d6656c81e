"""The report as plain data: the single source of every format; its JSON is this, field by field.

Instants named `at_s`, `start_s`, `end_s`, `due_s` are seconds of elapsed time since the attempt's t0, those
named `*_utc` wall-clock stamps, ISO 8601 in UTC. What is not known is None, never 0. Nothing here computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from soak.report.card_document import Card

SCHEMA = "soak-report"
SCHEMA_VERSION = 1
NOT_IN_JSON = ("NaN", "Infinity", "-Infinity")  # the strings that stand for such numbers


@dataclass(frozen=True, slots=True)
class Run:
    """`state`: starting, running, silent (still marked running, its last row is old), completed, interrupted,
    failed, closed (by a later start). `silent_s`: how long ago the run was last heard of, where that is too
    long."""

    run_id: str
    state: str
    simulated: bool
    profile: str
    profile_reason: str
    seed: int
    kernel: str
    host_id: str
    created_utc: str | None
    started_utc: str | None  # t0 of the last attempt
    ended_utc: str | None
    planned_s: float
    elapsed_s: float  # of the last attempt
    silent_s: float | None
    waived: tuple[str, ...]  # asked for; `Summary.waived` says which were used
    labels: Mapping[str, str]
    versions: Mapping[str, str]
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Summary:
    """`title` is the verdict's wording in every format; `reasons` name what failed or is not proven."""

    verdict: str  # pass, fail, inconclusive
    title: str
    causes: tuple[str, ...]
    waived: tuple[str, ...]
    final: bool  # False while the run may still change it
    exit_code: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The protocol that the run was judged by; `limits` as in the profile's criteria tables."""

    duration_s: float
    rotate_every_s: float
    check_every_s: float
    sample_every_s: float
    poll_every_s: float
    warmup_s: float
    seq_len_min: int
    seq_len_max: int
    heads: int
    head_dim: int
    tokens: int
    dtype: str
    compare_every_steps: int
    work_rate_rule: bool
    required: tuple[str, ...]
    limits: Mapping[str, float | str]

    def __post_init__(self) -> None:
        """Read from JSON, a limit may be the name of a number: where a string may stand, it stays one."""
        limits = {name: float(v) if v in NOT_IN_JSON else v for name, v in self.limits.items()}
        object.__setattr__(self, "limits", limits)


@dataclass(frozen=True, slots=True)
class StretchLine:
    start_s: float
    start_utc: str | None


@dataclass(frozen=True, slots=True)
class AttemptLine:
    """`rows` and `rows_dropped` are those of the closing record; None where there is none."""

    number: int
    started_utc: str | None
    ended_utc: str | None
    end: str
    reason: str
    elapsed_s: float
    stretches: tuple[StretchLine, ...]
    rows: Mapping[str, int] | None
    rows_dropped: int | None


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """`criterion`, `effect` and `cause`: what the incident does to the verdict, if anything."""

    attempt: int
    seq: int
    at_s: float
    at_utc: str | None
    gpu: str | None
    kind: str
    meaning: str
    detail: str
    data: Mapping[str, Any]
    criterion: str | None
    effect: str | None
    cause: str | None


@dataclass(frozen=True, slots=True)
class Advice:
    """What probably lies behind a finding or an incident of this run, and what to do next."""

    about: str
    gpus: tuple[str, ...]
    causes: tuple[str, ...]
    next_steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report."""

    schema: str
    schema_version: int
    generated_utc: str | None
    utc_offset_min: int  # of local time, for people
    run: Run
    verdict: Summary
    protocol: Plan
    attempts: tuple[AttemptLine, ...]
    cards: tuple[Card, ...]
    incidents: tuple[IncidentLine, ...]
    advice: tuple[Advice, ...]
    does_not_mean: tuple[str, ...]
