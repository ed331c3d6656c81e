"""What probably lies behind a finding or an incident, and what to do next. Data, not code.

Keys: `criterion/state` for findings, the kind for incidents. Causes are ordered by how often they are the
reason, next steps by how cheap they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remedy:
    causes: tuple[str, ...]
    next_steps: tuple[str, ...]


FINDINGS: Mapping[str, Remedy] = {
    "utilisation/fail": Remedy(
        (
            "the PCIe link fell back to fewer lanes or a lower speed (riser, slot, signal integrity)",
            "the card slowed itself down for heat or for its power cap",
            "another process used the card, or the host was too busy to feed it",
        ),
        (
            "compare PCIe width and replays, clocks and power in the sample rows around the first bad second",
            "reseat the card, try another slot without a riser, and watch whether the fault follows the card",
            "repeat with nothing else running on the card and the host",
        ),
    ),
    "utilisation/unknown": Remedy(
        (
            "time was not observed: the sampler could not read the card",
            "time was suspect: the card called itself busy while no work got done",
            "bad seconds are above what passes and below what fails so far",
        ),
        ("look at the seconds per kind in this report, then at the incidents of the same time",),
    ),
    "temperature/fail": Remedy(
        (
            "the airflow changed: a passive card such as the MI50 depends on the chassis or an added fan",
            "the room's temperature moved during the run",
            "dried thermal paste or a badly seated cooler: junction rises far above edge",
            "the card was cooler than the band because it did less work than it should",
        ),
        (
            "compare edge, junction and power over time: equal power and rising temperature is cooling",
            "check fan and air duct, clean the cooler, renew paste or pad, and run again",
            "where the card is well and the band is not yours: set them in a profile file of your own",
        ),
    ),
    "temperature/unknown": Remedy(
        (
            "the run has not outlived its warm-up",
            "too many slots lack readings of the sensor",
            "the card does not offer the sensor or its own slow-down limit",
        ),
        ("see how many slots were judged and how many were due", "run `soak doctor`: it lists every sensor"),
    ),
    "ecc/fail": Remedy(
        (
            "a weak cell, row or channel of the card's memory",
            "memory clocked or cooled beyond what it bears",
            "a marginal supply: errors that come with peaks of load",
        ),
        (
            "uncorrected errors: take the card out of service; corrected ones: note the block and its rate",
            "repeat with lower memory temperature and stock clocks: the same block again is a defect",
            "look for retired pages and for RAS lines of the kernel log",
        ),
    ),
    "ecc/unknown": Remedy(
        (
            "the card was lost, or its driver hung, before its counters were read a last time",
            "ECC is switched off or does not exist on this card",
            "the driver hides the counters (permissions, container without the device's sysfs)",
            "a counter was reset while nobody was reading",
        ),
        (
            "look at the incidents first: a lost card is its own finding",
            "run `soak doctor`: it says whether ECC is on and readable",
            "if this card has none, say so with `--waive ecc`; the certificate then carries the waiver",
        ),
    ),
    "gradient/fail": Remedy(
        (
            "the card computes wrong results: a defective unit, or clocks and voltages beyond what it bears",
            "the compiler made a wrong kernel for this card: then every card of this kind fails alike",
        ),
        (
            "replay this check alone: `soak verify gradient` with its seed, shape and slices",
            "run the same seed on another card of the kind: the same error there is software",
            "set stock clocks and power limit, then run again",
        ),
    ),
    "gradient/unknown": Remedy(
        ("a due check was not made: the worker was away, or the host too slow",),
        ("see which checks are missing, and the incidents of their time",),
    ),
    "integrity/fail": Remedy(
        (
            "a silent data error: memory without ECC, a marginal core, an unstable clock or voltage",
            "repeatable mismatch: a stuck bit or a damaged golden digest; transient: noise, supply, heat",
        ),
        (
            "see tensor, head, rows and differing bits of the mismatch, and what its replay gave",
            "set stock clocks and power limit, then run again with the same seed",
            "do not use the card for work whose results matter",
        ),
    ),
    "integrity/unknown": Remedy(
        ("comparisons of a rotation are missing or too few: the worker was away or slow",),
        ("see the rotations without comparisons, and the incidents of their time",),
    ),
    "faults/fail": Remedy(
        (
            "an unstable supply, riser or slot: the card resets or leaves the bus under load",
            "overheating of a part that no sensor shows",
            "a bug of driver or runtime: look for reports of the same message",
            "a defective card",
        ),
        (
            "read the kernel log around the first violation (amdgpu resets and RAS, NVIDIA Xid)",
            "give the card its own supply cables, another slot, no riser: does the fault follow the card?",
            "repeat with another driver version before the card is condemned",
        ),
    ),
    "faults/unknown": Remedy(
        (
            "something outside the card stopped the worker: memory, a signal, a starved host, a compiler",
            "the machine went down without closing the run",
        ),
        ("remove the cause that the incident names, and run again: a card is not judged by this",),
    ),
    "coverage/unknown": Remedy(
        (
            "the daemon was killed or the machine lost power: there is no closing record",
            "the store was away for so long that rows were dropped",
            "the sampler hung in a driver call, or the host was starved",
        ),
        ("see the gaps between sample rows and the incidents of their time, and run again",),
    ),
    "continuity/unknown": Remedy(
        (
            "the run goes on, or was stopped before its planned length",
            "it was continued after an interruption: the stretches do not add up to an uninterrupted one",
        ),
        ("let a run reach its planned length in one stretch",),
    ),
}

INCIDENTS: Mapping[str, Remedy] = {
    "worker_crashed": Remedy(
        ("a memory fault on the card", "a bug of the runtime, which aborts the process from its own thread"),
        ("read the kernel log of that second", "run again: a crash at the same shape points to software"),
    ),
    "device_error": Remedy(
        ("a fault on the card", "a kernel that this driver cannot run"),
        ("look up the runtime's message", "compare with another card and another driver"),
    ),
    "device_lost": Remedy(
        ("power or bus: supply cables, riser, slot", "the card shut itself down for heat"),
        ("power the machine off and on, reseat the card, use its own supply cables, run again",),
    ),
    "device_reset": Remedy(
        ("a hang that the driver ended", "an uncorrectable memory error"),
        ("read the kernel log: the line before the reset names the block",),
    ),
    "no_progress": Remedy(
        ("a hung kernel or a hung card", "the driver lost an interrupt"),
        ("read the kernel log for ring timeouts", "run again with the same seed: the same shape is software"),
    ),
    "mismatch": Remedy(
        ("a silent data error",),
        ("see the replay: repeatable, transient or unstable; then as for the integrity criterion",),
    ),
    "digest_disagreement": Remedy(
        ("one of the cards computes wrong results", "the cards differ in driver, kernel or compiler"),
        ("compare versions of both, then replay against the float64 reference",),
    ),
    "worker_killed": Remedy(
        ("someone or something sent a signal (a batch system's limit, an operator)",),
        ("find the sender: audit log, job limits; run again",),
    ),
    "worker_out_of_memory": Remedy(
        ("the host or its cgroup has too little memory", "another process took it"),
        ("raise the memory limit of the container or service, or take fewer `--tokens`",),
    ),
    "worker_stopped": Remedy(("SIGSTOP or a frozen cgroup",), ("do not suspend the service during a run",)),
    "worker_error": Remedy(
        ("a bug of this program or a broken environment",), ("report the traceback with the versions above",)
    ),
    "compile_error": Remedy(
        ("the compiler does not know this card or shape",),
        ("run `soak doctor`; see the versions it wants for this architecture",),
    ),
    "out_of_device_memory": Remedy(
        ("another process holds the card's memory", "the load is too large for this card"),
        ("end what else uses the card, or take fewer `--tokens`",),
    ),
    "host_starved": Remedy(
        ("other work on the host", "a CPU limit of the container that is too tight"),
        ("give the run a quiet host or a larger CPU limit",),
    ),
    "worker_unkillable": Remedy(
        ("the process waits inside the driver for a card that does not answer",),
        ("reboot before the card is used again",),
    ),
    "restarts_exhausted": Remedy(
        ("the cause of the earlier incidents persists",),
        ("see the first incident of this card, not the last",),
    ),
    "unclean_reboot": Remedy(
        ("power loss", "a kernel panic", "the card took the machine down"),
        ("read the last boot's kernel log and the BMC's event log; an unexplained one repeats the run",),
    ),
    "lease_lost": Remedy(
        ("another daemon took the run or a card while this one gave no sign of life for a minute",),
        ("see which host has the run now; one daemon a card, on a store that both can reach",),
    ),
    "suspended": Remedy(("the machine went to sleep",), ("switch suspend off during a run",)),
    "interrupted": Remedy(
        ("SIGTERM or SIGINT: an operator, a service manager, a batch system",),
        ("give the job more time than the planned length",),
    ),
    "sensor_gap": Remedy(
        ("a driver call that did not return", "a starved host"), ("see what else happened then",)
    ),
    "sensor_error": Remedy(
        ("the card was in reset", "missing permission in the container"),
        ("run `soak doctor` in the same environment",),
    ),
    "ecc_reset": Remedy(
        ("the driver was reloaded or the card was reset",), ("nobody but the run should touch the driver",)
    ),
    "clock_step": Remedy(
        ("time synchronisation set the clock",), ("nothing is lost; let the clock be set before a run",)
    ),
    "scheduler_missed": Remedy(("a starved host",), ("see `host_starved`",)),
    "store_error": Remedy(
        ("the disk is full or read-only", "another process locks the database"),
        ("free space, or move the data folder to a local disk",),
    ),
    "rows_dropped": Remedy(
        ("the store was away for too long",), ("free space, then run again: this run cannot pass",)
    ),
    "kernel_log": Remedy(("see the line",), ("look the message up for this driver version",)),
}

CERTIFIES_NOT = (
    "It speaks of these devices in this machine under this load: attention, forward and backward, as above. "
    "Video engines, display, peer-to-peer links and other instructions were not exercised.",
    "Memory that the load does not use was not written and read back; run a memory test for that.",
    "Another room, chassis, supply, driver, clock or power limit is another test.",
    "It is about the past: a device can fail the day after.",
)
SIMULATED_NOT = "Nothing real was tested: the cards of this run are simulated."
WAIVED_NOT = "{waived} was waived: nothing is known about it."
CPU_NOT = "No GPU was tested: the load ran on the processor."
