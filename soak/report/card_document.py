"""One card's part of the report document, as plain data: its findings and the figures behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from soak.core.records import Stats


@dataclass(frozen=True, slots=True)
class Criterion:
    """A criterion's finding on one card, decided by `attempt`; the texts are for people."""

    criterion: str
    state: str  # pass, fail, unknown
    required: bool
    waived: bool
    value: float | None
    threshold: float | None
    unit: str
    value_text: str
    limit_text: str
    reason: str
    cause: str | None
    attempt: int | None
    first_violation_s: float | None
    first_violation_utc: str | None


@dataclass(frozen=True, slots=True)
class Window:
    """The sampling interval that did worst, and the share of it that was as it should be."""

    start_s: float
    end_s: float
    start_utc: str | None
    share: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was due comes from the protocol, what was obtained from the rows of the last attempt."""

    elapsed_s: float
    observed_s: float
    share: float | None
    n_slots_due: int
    n_slots: int
    n_polls_due: int
    n_polls: int
    worst: Window | None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Every elapsed second is exactly one of in spec, suspect, bad, unobserved."""

    in_spec_s: float
    suspect_s: float
    bad_s: float
    unobserved_s: float
    share_in_spec: float | None
    throttled_s: float
    worst: Window | None


@dataclass(frozen=True, slots=True)
class Spread:
    """A quantity over the polls of the last attempt; `judged`: by the temperature criterion."""

    quantity: str
    unit: str
    n: int
    min: float
    mean: float
    max: float
    last: float
    judged: bool


@dataclass(frozen=True, slots=True)
class Counter:
    """A raw error counter: its value, or the reason why there is none."""

    name: str
    value: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Ecc:
    """`since_t0`: errors by kind, by the last reading of the last attempt; None where nothing was read."""

    supported: bool
    reason: str
    baseline: tuple[Counter, ...]
    last: Mapping[str, int]
    since_t0: Mapping[str, int] | None
    n_slots_read: int
    doubt: str


@dataclass(frozen=True, slots=True)
class RateBand:
    seq_len_min: int
    seq_len_max: int
    causal: bool
    n_rotations: int
    tflops_min: float
    tflops_mean: float
    tflops_max: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """Work done in the last attempt. Hours differ in their shapes, so like is compared with like: `first_pct`
    and `last_pct` are the rates of the first and last hour (half the run where that is shorter) in percent of
    the whole run's at the same sequence length and mask, `drift_pct` is their difference, `per_kelvin_pct`
    the slope of that rate over the judged temperature; each `error` is half the width of a 95 % interval.
    """

    n_steps: int
    flops: int
    tflops_mean: float | None
    bands: tuple[RateBand, ...]
    first_pct: float | None
    last_pct: float | None
    drift_pct: float | None
    drift_error_pct: float | None
    per_kelvin_pct: float | None
    per_kelvin_error_pct: float | None


@dataclass(frozen=True, slots=True)
class TensorFigure:
    """One tensor against its float64 reference; no limit: None. `within` is None where no limit applies."""

    tensor: str
    n_elements: int
    n_nonfinite: int
    max_abs: float
    max_abs_limit: float | None
    relative_l2: float
    relative_l2_limit: float | None
    max_reference: float
    within: bool | None


@dataclass(frozen=True, slots=True)
class CheckLine:
    """A gradient check with all that replays it."""

    attempt: int
    index: int
    due_s: float
    at_s: float
    duration_s: float
    rotation: int
    seq_len: int
    causal: bool
    seed: int
    slices: tuple[tuple[int, int], ...]
    input_std: tuple[float, float]
    dtype: str
    golden_proved: bool | None
    within: bool
    tensors: tuple[TensorFigure, ...]


@dataclass(frozen=True, slots=True)
class Gradient:
    """`n_due` and `n_made` of the last attempt; `checks` of all. `worst`: the largest figure per tensor."""

    n_due: int
    n_made: int
    worst: tuple[TensorFigure, ...]
    checks: tuple[CheckLine, ...]


@dataclass(frozen=True, slots=True)
class Integrity:
    """Comparisons with golden digests, over all attempts. `n_unproved`: gradient checks whose outputs did not
    carry theirs. `error_rate_below`: the 95 % upper bound of a difference, else None."""

    n_rotations_due: int  # of the last attempt
    n_rotations_compared: int
    n_due: int
    n_compared: int
    n_mismatches: int
    n_unproved: int
    error_rate_below: float | None


@dataclass(frozen=True, slots=True)
class RotationLine:
    attempt: int
    index: int
    start_s: float
    seq_len: int
    causal: bool
    seed: int
    kernel: str
    golden: str
    n_steps: int
    flops: int
    tflops: float | None
    n_due: int | None  # comparisons; None: no record of any
    n_compared: int | None
    n_mismatches: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample row: the polls of one sampling interval."""

    attempt: int
    index: int
    start_s: float
    end_s: float
    start_utc: str | None
    closed: bool
    n_polls: int
    observed_s: float
    in_spec_s: float
    suspect_s: float
    bad_s: float
    throttled_s: float
    ecc: Mapping[str, int] | None
    ecc_doubt: str
    stats: Mapping[str, Stats]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Card:
    """One card: what it is, how it was judged, and the figures behind it."""

    gpu: str
    index: int
    vendor: str
    model: str | None
    arch: str | None
    uuid: str | None
    driver: str | None
    vbios: str | None
    memory_total_bytes: int | None
    temperature_sensor: str | None
    slowdown_c: float | None
    power_cap_w: float | None
    kernel: str
    kernel_reason: str
    load: Mapping[str, Any]  # what its worker told before t0: calibrated step times, the self-test
    notes: tuple[str, ...]
    not_offered: Mapping[str, str]  # quantities that this card or driver did not give before t0, and why
    verdict: str
    title: str
    criteria: tuple[Criterion, ...]
    coverage: Coverage
    utilisation: Utilisation
    readings: tuple[Spread, ...]
    ecc: Ecc
    throughput: Throughput
    gradient: Gradient
    integrity: Integrity
    rotations: tuple[RotationLine, ...]
    samples: tuple[Sample, ...]
