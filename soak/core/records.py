"""The nouns of a run, as frozen records that pass between the rooms.

Instants named `at_ms`, `start_ms`, `end_ms`, `due_ms` are whole milliseconds of elapsed time since the
attempt's t0 (monotonic, suspend included). `boot_ms` is the machine's CLOCK_BOOTTIME, `utc_ms` a wall-clock
stamp that orders nothing. Integers, so that sums do not depend on their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """What a criterion concludes."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Verdict(StrEnum):
    """What a card or a run is found to be; it starts at INCONCLUSIVE."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


class Cause(StrEnum):
    """Who broke the limit; a broken limit fails whoever it was."""

    HARDWARE = "hardware"
    ENVIRONMENT = "environment"
    SOFTWARE = "software"


class Quantity(StrEnum):
    """What a poll can read of a card, units last. Absence is a Reading's status, never 0."""

    UTILISATION_PCT = "utilisation_pct"
    MEMORY_BUSY_PCT = "memory_busy_pct"
    TEMPERATURE_EDGE_C = "temperature_edge_c"
    TEMPERATURE_JUNCTION_C = "temperature_junction_c"
    TEMPERATURE_MEMORY_C = "temperature_memory_c"
    TEMPERATURE_CORE_C = "temperature_core_c"
    POWER_W = "power_w"
    CLOCK_CORE_HZ = "clock_core_hz"
    CLOCK_MEMORY_HZ = "clock_memory_hz"
    MEMORY_TOTAL_BYTES = "memory_total_bytes"
    MEMORY_FREE_BYTES = "memory_free_bytes"
    THERMAL_THROTTLE = "thermal_throttle"  # 1 while the card slows itself for heat, else 0
    POWER_THROTTLE = "power_throttle"  # 1 while the card slows itself for its power cap, else 0
    PCIE_WIDTH = "pcie_width"  # lanes
    PCIE_SPEED_GTS = "pcie_speed_gts"  # gigatransfers a second per lane
    PCIE_REPLAYS = "pcie_replays"  # a counter since driver load
    SM_ACTIVE_PCT = "sm_active_pct"  # share of multiprocessor time with a warp resident
    TENSOR_ACTIVE_PCT = "tensor_active_pct"  # share of time in which the tensor pipes worked
    DRAM_ACTIVE_PCT = "dram_active_pct"  # share of the memory bandwidth
    MEMORY_GTT_USED_BYTES = "memory_gtt_used_bytes"  # host memory mapped for the card
    MEMORY_VISIBLE_USED_BYTES = "memory_visible_used_bytes"  # of the part that the host can reach
    ENERGY_J = "energy_j"  # a counter since driver load


class ReadingStatus(StrEnum):
    OK = "ok"
    UNSUPPORTED = "unsupported"  # this card or driver does not offer the quantity
    UNREADABLE = "unreadable"  # it should be there and could not be read, or its value is impossible


@dataclass(frozen=True, slots=True)
class Reading:
    """A value, or the reason why there is none. Build it with `ok`, `unsupported` or `unreadable`."""

    status: ReadingStatus
    value: float | None = None
    reason: str = ""

    @classmethod
    def ok(cls, value: float) -> Reading:
        return cls(ReadingStatus.OK, value)

    @classmethod
    def unsupported(cls, reason: str) -> Reading:
        return cls(ReadingStatus.UNSUPPORTED, None, reason)

    @classmethod
    def unreadable(cls, reason: str) -> Reading:
        return cls(ReadingStatus.UNREADABLE, None, reason)


ECC_KINDS = ("corrected", "deferred", "uncorrected")


@dataclass(frozen=True, slots=True)
class Device:
    """A card as found before t0. `gpu` is its PCI address (`0000:33:00.0`), `cpu` for the CPU."""

    gpu: str
    vendor: str  # amd, nvidia, cpu, simulated
    index: int = 0
    model: str | None = None
    arch: str | None = None  # gfx906, sm_90, x86_64
    uuid: str | None = None
    driver: str | None = None
    vbios: str | None = None
    memory_total_bytes: int | None = None
    temperature_sensor: Quantity | None = None  # the sensor that the temperature criterion judges
    slowdown_c: float | None = None  # where the card slows itself down, by its own word
    power_cap_w: float | None = None
    # First answer per quantity: ok, or why not.
    supported: Mapping[Quantity, Reading] = field(default_factory=dict)
    # ok(1): error counters can be read.
    ecc: Reading = field(default_factory=lambda: Reading.unsupported("not asked"))
    # Raw error counters at t0, keys as in Poll.ecc.
    ecc_baseline: Mapping[str, Reading] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a reader of the report should know about this card
    # What its worker said before t0: the kernel, why that one, and the facts of its load (calibrated step
    # times, memory taken, the self-test).
    kernel: str = ""
    kernel_reason: str = ""
    load: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Poll:
    """One look at a card's sensors.

    `boot_ms`: CLOCK_BOOTTIME when the reading was done. `ecc` holds raw error counters, keyed
    `view/block/kind` (`ras/umc/corrected`, `volatile/all/uncorrected`), on the polls that read them.
    `n` > 1 stands for n equal polls, one poll interval apart, the last at `boot_ms` (the simulator's
    stretches); real telemetry sends n = 1.
    """

    gpu: str
    boot_ms: int
    readings: Mapping[Quantity, Reading] = field(default_factory=dict)
    ecc: Mapping[str, Reading] | None = None
    n: int = 1
    cost_ms: float = 0.0  # CPU time that the poll took


@dataclass(frozen=True, slots=True)
class Stats:
    """A quantity over a slot's polls."""

    n: int
    min: float
    mean: float
    max: float
    p05: float
    p95: float
    last: float


@dataclass(frozen=True, slots=True)
class Slot:
    """A sample row: one card's polls of one sampling interval. Keyed (attempt, gpu, index).

    Every elapsed millisecond is unobserved, bad, suspect or in spec; `observed_ms` is the sum of the last
    three. `ecc` counts errors since t0 per kind, by the last reading in this slot; `ecc_raw` is what that
    reading said; `ecc_doubt` names why the count cannot be trusted (a reset inside a gap).
    """

    attempt: int
    gpu: str
    index: int
    start_ms: int
    end_ms: int
    utc_ms: int
    closed: bool = False
    n_polls: int = 0
    observed_ms: int = 0
    in_spec_ms: int = 0
    suspect_ms: int = 0
    bad_ms: int = 0
    throttled_ms: int = 0  # observed milliseconds with thermal throttling
    stats: Mapping[Quantity, Stats] = field(default_factory=dict)
    # Quantities of which a poll gave no value: the last reason.
    missing: Mapping[Quantity, str] = field(default_factory=dict)
    ecc: Mapping[str, int] | None = None
    ecc_raw: Mapping[str, int] = field(default_factory=dict)
    ecc_doubt: str = ""
    first_bad_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Rotation:
    """One rotation's shape on one card, and what came of it. Keyed (attempt, gpu, index)."""

    attempt: int
    gpu: str
    index: int
    start_ms: int
    seq_len: int
    causal: bool
    seed: int
    kernel: str = ""
    golden: str = ""  # digest of O, LSE, dQ, dK, dV; "" until the first step is done
    n_steps: int = 0
    flops: int = 0


@dataclass(frozen=True, slots=True)
class IntegrityCheck:
    """Comparisons of one rotation's outputs with its golden digests. Keyed (attempt, gpu, rotation)."""

    attempt: int
    gpu: str
    rotation: int
    n_due: int
    n: int
    mismatches: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class TensorError:
    """How far one tensor is from its float64 reference."""

    tensor: str  # o, dq, dk, dv
    n_elements: int
    n_nonfinite: int  # NaN or inf in the result or the reference
    max_abs: float  # NaN where nothing could be compared
    relative_l2: float
    max_reference: float  # largest |reference|, for the sense of an absolute limit


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """One gradient check of the load itself. Keyed (attempt, gpu, index); index k is due at k * interval."""

    attempt: int
    gpu: str
    index: int
    due_ms: int
    at_ms: int  # when it was done
    rotation: int
    seq_len: int
    causal: bool
    seed: int
    slices: tuple[tuple[int, int], ...]  # (batch, head)
    errors: tuple[TensorError, ...]
    input_std: tuple[float, float] = (0.5, 1.0)  # of q, k, v; of dO
    dtype: str = "float16"
    duration_ms: int = 0
    golden_proved: bool | None = None  # the checked outputs carried the golden digest


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happened, once. Keyed (attempt, seq). `kind` is one of `core.incidents.KINDS`."""

    attempt: int
    seq: int
    at_ms: int
    utc_ms: int
    kind: str
    gpu: str | None = None  # None: the run as a whole
    detail: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """A criterion's result on one card, with its reason."""

    gpu: str
    criterion: str
    required: bool
    state: State
    value: float | None = None
    threshold: float | None = None
    unit: str = ""
    reason: str = ""
    cause: Cause | None = None
    waived: bool = False
    at_ms: int | None = None  # the first violation


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an attempt without interruption; `continue` opens another in the same attempt."""

    start_ms: int  # elapsed time at its start
    utc_ms: int


@dataclass(frozen=True, slots=True)
class Closing:
    """Written last of all: rows per table in the whole run, and how many never reached the store."""

    rows: Mapping[str, int]
    dropped: int


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int
    started_utc_ms: int
    boot_id: str
    stretches: tuple[Stretch, ...]
    elapsed_ms: int = 0
    ended_utc_ms: int | None = None
    end: str = "running"  # running, completed, interrupted, failed
    reason: str = ""
    closing: Closing | None = None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What a run is, fixed at its start; `config` is the effective configuration, key by key."""

    run_id: str
    created_utc_ms: int
    host_id: str
    profile: str
    profile_reason: str
    seed: int
    kernel: str
    simulated: bool
    devices: tuple[Device, ...]
    config: Mapping[str, Any]
    waived: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A whole run as the store holds it: everything a report is made from."""

    info: RunInfo
    attempts: tuple[Attempt, ...] = ()
    slots: tuple[Slot, ...] = ()
    rotations: tuple[Rotation, ...] = ()
    gradient_checks: tuple[GradientCheck, ...] = ()
    integrity_checks: tuple[IntegrityCheck, ...] = ()
    incidents: tuple[Incident, ...] = ()
    findings: tuple[Finding, ...] = ()  # as concluded live at the end
    rows: Mapping[str, int] = field(default_factory=dict)  # rows per table, counted in the store
