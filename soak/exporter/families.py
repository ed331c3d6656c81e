"""Every metric of the contract: its name, kind, help and labels, and the rows that a moment has for it.

What is not known is absent, never 0. Of a card that is gone only what the run found out about it remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from soak.core.criteria.gradient import CHECKED
from soak.core.records import Finding, Quantity, ReadingStatus, State, Verdict
from soak.core.snapshot import CardSnapshot
from soak.exporter.moment import Moment

Value = float | str | Mapping[str, str] | None
Row = tuple[Sequence[str], Value]
"""The values of the labels, and: a number; of a state set the state; of facts the facts. None: not known."""


class Kind(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    STATES = "states"
    FACTS = "facts"


@dataclass(frozen=True, slots=True)
class Family:
    """`name` as it is scraped. Facts bring labels of their own; `states` are those of a state set."""

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...]
    rows: Callable[[Moment], Iterable[Row]]
    states: tuple[str, ...] = ()


# -- the run -------------------------------------------------------------------------------------------------

_STATES: Mapping[str, str] = {
    "running": "running",
    "ending": "running",  # its time is over, it waits for the last check
    "out": "running",  # no card can work any more, it is about to be closed
    "completed": "completed",
    "interrupted": "interrupted",
    "failed": "failed_to_run",
}
"""`Snapshot.state` to the state that is scraped; before t0 a run is in none of them."""


def _run_facts(m: Moment) -> Iterator[Row]:
    info = m.snapshot.info
    facts = {"run_id": info.run_id, "profile": info.profile, "seed": str(info.seed), "kernel": info.kernel}
    yield (), {**info.labels, **facts, "simulated": _word(info.simulated)}


def _run_state(m: Moment) -> Iterator[Row]:
    yield (m.run_id,), _STATES.get(m.snapshot.state, "")


def _planned(m: Moment) -> Iterator[Row]:
    yield (m.run_id,), m.snapshot.protocol.duration_ms / 1000


def _elapsed(m: Moment) -> Iterator[Row]:
    yield (m.run_id,), m.snapshot.elapsed_ms / 1000


def _observed(m: Moment) -> Iterator[Row]:
    yield (m.run_id,), min((card.observed_ms for card in m.cards), default=0) / 1000


def _run_verdict(m: Moment) -> Iterator[Row]:
    yield (m.run_id,), m.snapshot.verdict


def _verdicts(m: Moment) -> Iterator[Row]:
    return (((m.run_id, card.device.gpu), card.verdict) for card in m.cards)


def _criterion(value: Callable[[Finding], Value]) -> Callable[[Moment], Iterator[Row]]:
    def rows(m: Moment) -> Iterator[Row]:
        for card in m.cards:
            for found in card.findings:
                yield (m.run_id, card.device.gpu, found.criterion, _word(found.required)), value(found)

    return rows


def _word(value: bool) -> str:
    return "true" if value else "false"


# -- the cards -----------------------------------------------------------------------------------------------


def _gpu_facts(m: Moment) -> Iterator[Row]:
    for card in m.cards:
        d = card.device
        facts = {"uuid": d.uuid, "model": d.model, "arch": d.arch, "driver": d.driver, "vbios": d.vbios}
        yield (d.gpu,), {"index": str(d.index), **{name: fact or "" for name, fact in facts.items()}}


def _every(value: Callable[[CardSnapshot], Value]) -> Callable[[Moment], Iterator[Row]]:
    """A value of every card, also of one that is gone."""
    return lambda m: (((card.device.gpu,), value(card)) for card in m.cards)


def _present(value: Callable[[CardSnapshot], Value]) -> Callable[[Moment], Iterator[Row]]:
    """A value of every card that is there, once t0 is set."""
    return lambda m: (((card.device.gpu,), value(card)) for card in m.present if m.has_begun)


def _ecc_supported(card: CardSnapshot) -> float | None:
    ecc = card.device.ecc
    if ecc.status is ReadingStatus.UNREADABLE:
        return None
    return float(ecc.status is ReadingStatus.OK and bool(ecc.value))


def _reading(quantity: Quantity, scale: float = 1.0) -> Callable[[Moment], Iterator[Row]]:
    """A quantity of the last poll of every card that is there."""

    def rows(m: Moment) -> Iterator[Row]:
        for card in m.present:
            value = m.reading(card, quantity)
            yield (card.device.gpu,), None if value is None else value * scale

    return rows


def _readings(kinds: Mapping[Quantity, str]) -> Callable[[Moment], Iterator[Row]]:
    def rows(m: Moment) -> Iterator[Row]:
        for card in m.present:
            for quantity, kind in kinds.items():
                yield (card.device.gpu, kind), m.reading(card, quantity)

    return rows


def _read_cost(m: Moment) -> Iterator[Row]:
    """Of every poll that took any: a simulated one takes none."""
    polled = ((card, card.poll) for card in m.present if card.poll is not None and card.poll.cost_ms > 0)
    return (((card.device.gpu,), poll.cost_ms / 1000) for card, poll in polled)


def _in_spec(m: Moment) -> Iterator[Row]:
    elapsed_ms = m.snapshot.elapsed_ms
    return (((c.device.gpu,), c.in_spec_ms / elapsed_ms) for c in m.present if elapsed_ms > 0)


def _ecc(m: Moment) -> Iterator[Row]:
    return (((c.device.gpu, kind), n) for c in m.present for kind, n in (c.ecc or {}).items())


def _throttle(m: Moment) -> Iterator[Row]:
    return (((c.device.gpu, reason), ms / 1000) for c in m.present for reason, ms in c.throttle_ms.items())


def _seq_len(m: Moment) -> Iterator[Row]:
    """Of the rotation that each card is in; cards follow an order one after the other."""
    for card in m.present:
        if m.snapshot.shape is not None and card.progress is not None and not card.is_out:
            yield (card.device.gpu,), m.snapshot.protocol.shape(card.progress.rotation).seq_len


# -- what the run found out ----------------------------------------------------------------------------------


def _differences(m: Moment) -> Iterator[Row]:
    for card in m.cards:
        for error in card.check.errors if card.check is not None else ():
            if error.tensor in CHECKED:
                yield (card.device.gpu, error.tensor), math.inf if error.n_nonfinite else error.max_abs


def _checks(m: Moment) -> Iterator[Row]:
    return (((c.device.gpu, result), n) for c in m.cards if m.has_begun for result, n in c.n_checks.items())


def _counted(value: Callable[[CardSnapshot], int]) -> Callable[[Moment], Iterator[Row]]:
    """A count of every card, once t0 is set."""
    return lambda m: (((card.device.gpu,), value(card)) for card in m.cards if m.has_begun)


def _incidents(m: Moment) -> Iterator[Row]:
    counts = sorted(((gpu or "", kind), n) for (gpu, kind), n in m.snapshot.n_incidents.items())
    return iter(counts)


def _sensor_errors(m: Moment) -> Iterator[Row]:
    return (((c.device.gpu, str(source)), n) for c in m.cards for source, n in c.n_sensor_errors.items())


def _missed(m: Moment) -> Iterator[Row]:
    return (((job,), n) for job, n in m.snapshot.n_missed.items() if m.has_begun)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


# -- the table -----------------------------------------------------------------------------------------------

_TEMPERATURES: Mapping[Quantity, str] = {
    Quantity.TEMPERATURE_EDGE_C: "edge",
    Quantity.TEMPERATURE_JUNCTION_C: "junction",
    Quantity.TEMPERATURE_MEMORY_C: "memory",
    Quantity.TEMPERATURE_CORE_C: "core",
}
_CLOCKS: Mapping[Quantity, str] = {Quantity.CLOCK_CORE_HZ: "core", Quantity.CLOCK_MEMORY_HZ: "memory"}

_RUN, _GPU = ("run_id",), ("gpu",)
_CRITERION = ("run_id", "gpu", "criterion", "required")
_G, _C, _S, _F = Kind.GAUGE, Kind.COUNTER, Kind.STATES, Kind.FACTS

# fmt: off
FAMILIES: tuple[Family, ...] = (
    Family("soak_run_info", _F, "What the run is.", (), _run_facts),
    Family("soak_run_state", _S, "Where the run stands; none of the states before its clock starts.",
           _RUN, _run_state, tuple(dict.fromkeys(_STATES.values()))),
    Family("soak_run_planned_seconds", _G, "The length that the run is to reach.", _RUN, _planned),
    Family("soak_run_elapsed_seconds", _G, "How far the present attempt has come.", _RUN, _elapsed),
    Family("soak_run_observed_seconds", _G,
           "Elapsed seconds in which all that is required was read, of the card that was read least.",
           _RUN, _observed),
    Family("soak_run_verdict", _S, "The verdict so far: the worst of the cards'.",
           _RUN, _run_verdict, tuple(Verdict)),
    Family("soak_verdict", _S, "A card's verdict so far.", ("run_id", "gpu"), _verdicts, tuple(Verdict)),
    Family("soak_criterion", _S, "A criterion's state so far.",
           _CRITERION, _criterion(lambda found: found.state), tuple(State)),
    Family("soak_criterion_value", _G, "What a criterion measured, in the unit of the report.",
           _CRITERION, _criterion(lambda found: found.value)),
    Family("soak_criterion_threshold", _G, "What its value is held against.",
           _CRITERION, _criterion(lambda found: found.threshold)),

    Family("soak_gpu_info", _F, "What the card is.", _GPU, _gpu_facts),
    Family("soak_gpu_up", _G, "1: the card is there; 0: it is configured but gone.",
           _GPU, _every(lambda card: float(card.up))),
    Family("soak_gpu_ecc_supported", _G, "1: the card counts memory errors; 0: it does not.",
           _GPU, _every(_ecc_supported)),
    Family("soak_gpu_utilization_ratio", _G, "Share of the time in which the card was busy, by its driver.",
           _GPU, _reading(Quantity.UTILISATION_PCT, 0.01)),
    Family("soak_gpu_utilization_in_spec_ratio", _G,
           "Share of the elapsed time that was observed to be busy enough, with work behind it.",
           _GPU, _in_spec),
    Family("soak_gpu_temperature_celsius", _G, "Temperature by sensor.",
           ("gpu", "sensor"), _readings(_TEMPERATURES)),
    Family("soak_gpu_ecc_errors_total", _C, "Memory errors since the run's clock started.",
           ("gpu", "kind"), _ecc),
    Family("soak_gpu_memory_free_bytes", _G, "Memory that is free.",
           _GPU, _reading(Quantity.MEMORY_FREE_BYTES)),
    Family("soak_gpu_memory_total_bytes", _G, "Memory in all.", _GPU, _reading(Quantity.MEMORY_TOTAL_BYTES)),
    Family("soak_gpu_power_watts", _G, "Electric power drawn.", _GPU, _reading(Quantity.POWER_W)),
    Family("soak_gpu_clock_hertz", _G, "Clock rate by domain.", ("gpu", "domain"), _readings(_CLOCKS)),
    Family("soak_gpu_throttle_seconds_total", _C, "Observed seconds in which the card slowed itself.",
           ("gpu", "reason"), _throttle),

    Family("soak_load_iterations_total", _C, "Steps finished: attention forward and backward.",
           _GPU, _present(lambda card: card.n_steps)),
    Family("soak_load_flops_total", _C, "Floating-point operations of these steps.",
           _GPU, _present(lambda card: card.flops)),
    Family("soak_load_seq_len", _G, "The sequence length at work.", _GPU, _seq_len),
    Family("soak_load_rotations_total", _C, "Shapes begun, the present one included.",
           _GPU, _present(lambda card: card.n_rotations)),

    Family("soak_gradient_max_abs_diff", _G,
           "Largest difference to the float64 reference in the last check; infinite where one is NaN or inf.",
           ("gpu", "tensor"), _differences),
    Family("soak_gradient_checks_total", _C, "Gradient checks made.", ("gpu", "result"), _checks),
    Family("soak_integrity_checks_total", _C, "Outputs compared, bit by bit, with those of equal inputs.",
           _GPU, _counted(lambda card: card.n_compared)),
    Family("soak_integrity_mismatches_total", _C, "Comparisons that were not equal.",
           _GPU, _counted(lambda card: card.n_mismatches)),
    Family("soak_incidents_total", _C, "What happened; without gpu: to the run as a whole.",
           ("gpu", "kind"), _incidents),
    Family("soak_worker_restarts_total", _C, "Restarts of the process that works the card.",
           _GPU, _counted(lambda card: card.n_restarts)),
    Family("soak_sensor_errors_total", _C, "Polls in which a sensor gave no value that should give one.",
           ("gpu", "source"), _sensor_errors),
    Family("soak_sensor_read_seconds", _G, "Processor time that the last reading of the sensors took.",
           _GPU, _read_cost),
    Family("soak_last_progress_timestamp_seconds", _G, "When the card finished its last step.",
           _GPU, _every(lambda card: _seconds(card.progress_utc_ms))),
    Family("soak_last_sample_timestamp_seconds", _G, "When the card's sensors were last read.",
           _GPU, _every(lambda card: _seconds(card.poll_utc_ms))),
    Family("soak_scheduler_missed_total", _C, "Duties that were done without their wake.",
           ("job",), _missed),
)
# fmt: on
