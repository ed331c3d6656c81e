"""Every kind of incident: what it means for a criterion, and who is to blame. Data, not code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from soak.core.records import Cause, State


@dataclass(frozen=True, slots=True)
class Effect:
    """`criterion` becomes `state` on the incident's card (on every card where the incident names none)."""

    meaning: str
    criterion: str | None = None
    state: State | None = None
    cause: Cause | None = None


def _fails(criterion: str, meaning: str, cause: Cause = Cause.HARDWARE) -> Effect:
    return Effect(meaning, criterion, State.FAIL, cause)


def _doubts(criterion: str, meaning: str) -> Effect:
    return Effect(meaning, criterion, State.UNKNOWN)


KINDS: Mapping[str, Effect] = {
    # the card
    "worker_crashed": _fails("faults", "the worker died by SIGSEGV, SIGABRT or SIGBUS"),
    "device_error": _fails("faults", "the runtime reported a device error"),
    "device_lost": _fails("faults", "the card fell off the bus or is gone from its driver"),
    "device_reset": _fails("faults", "the card was reset"),
    "no_progress": _fails("faults", "no step finished by the deadline though worker and parent could run"),
    "mismatch": _fails("integrity", "an output differs from the golden digest of the same inputs"),
    "digest_disagreement": _doubts("integrity", "equal cards disagree on the digest of the same inputs"),
    # the host and our own program
    "worker_killed": _doubts("faults", "the worker was killed from outside"),
    "worker_out_of_memory": _doubts("faults", "the host killed the worker for memory"),
    "worker_stopped": _doubts("faults", "the worker was stopped from outside (SIGSTOP)"),
    "worker_error": _doubts("faults", "the worker ended with a Python error"),
    "compile_error": _doubts("faults", "a kernel did not compile"),
    "out_of_device_memory": _doubts("faults", "the card had no memory left for the load"),
    "host_starved": _doubts("faults", "the host gave the worker or the parent no processor time"),
    "worker_unkillable": _doubts("faults", "the worker did not end on SIGKILL and was left"),
    "restarts_exhausted": _doubts("faults", "the worker was restarted as often as is allowed"),
    "unclean_reboot": _doubts("faults", "the machine went down without a closing; it may have been the card"),
    "suspended": _doubts("continuity", "the machine was suspended"),
    "interrupted": _doubts("continuity", "the run was stopped from outside"),
    # for the record
    "worker_restarted": Effect("the worker was started again"),
    "sensor_gap": Effect("the sampler gave no poll for a while"),
    "sampler_restarted": Effect("the sampler was killed and started again"),
    "sensor_error": Effect("a sensor could not be read"),
    "ecc_error": Effect("an error counter rose"),
    "ecc_reset": Effect("an error counter went back"),
    "clock_step": Effect("the wall clock was set"),
    "scheduler_missed": Effect("a wake of the scheduler was missed"),
    "scheduler_error": Effect("a job of the scheduler raised"),
    "scheduler_overrun": Effect("a job of the scheduler was still running when it was due again"),
    "check_late": Effect("a gradient check outlived its interval"),
    "store_error": Effect("the store refused a write; rows wait in memory"),
    "store_recovered": Effect("the store takes writes again"),
    "rows_dropped": Effect("rows were dropped because the store was away for too long"),
    "lease_lost": _doubts("continuity", "another daemon took over the run or a card"),
    "kernel_log": Effect("the kernel log has a line about the card"),
    "resumed": Effect("the run was taken up again"),
    "stopped_on_fail": Effect("the run was ended by its first final fail, as asked"),
}
