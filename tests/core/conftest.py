"""Records of a short run on one card, made with a word each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from soak.core.criteria import Card, Standing
from soak.core.protocol import Limits, Protocol
from soak.core.records import (
    Attempt,
    Closing,
    Device,
    Finding,
    GradientCheck,
    Incident,
    IntegrityCheck,
    Poll,
    Quantity,
    Reading,
    RunInfo,
    RunRecord,
    Slot,
    Stats,
    Stretch,
    TensorError,
)
from soak.core.verdict import CardJudge

GPU = "0000:33:00.0"
CRITERIA = (
    "utilisation", "temperature", "ecc", "gradient", "integrity", "faults", "coverage", "continuity",
)  # fmt: skip


class Make:
    """Ten minutes: slots of 60 s, rotations of 100 s, checks every 200 s, polls of 1 s, warm-up 60 s."""

    gpu = GPU

    def protocol(self, *, limits: Mapping[str, Any] | None = None, **changes: Any) -> Protocol:
        plain = Protocol(
            duration_ms=600_000,
            rotate_ms=100_000,
            check_ms=200_000,
            sample_ms=60_000,
            poll_ms=1_000,
            warmup_ms=60_000,
            seq_len_min=512,
            seq_len_max=4096,
            seed=7,
            limits=replace(Limits(required=frozenset(CRITERIA)), **(limits or {})),
        )
        return replace(plain, **changes)

    def device(self, **changes: Any) -> Device:
        plain = Device(
            GPU,
            "amd",
            temperature_sensor=Quantity.TEMPERATURE_EDGE_C,
            slowdown_c=100.0,
            ecc=Reading.ok(1.0),
            ecc_baseline=self.counters(corrected=0, uncorrected=0),
        )
        return replace(plain, **changes)

    def card(self, protocol: Protocol | None = None, device: Device | None = None, **changes: Any) -> Card:
        return Card(device or self.device(), protocol or self.protocol(), **changes)

    def judge(self, **changes: Any) -> CardJudge:
        return CardJudge(self.card(**changes))

    def counters(self, **counts: float | Reading) -> dict[str, Reading]:
        """Of one block: corrected=3, or a Reading."""
        return {
            f"ras/umc/{kind}": n if isinstance(n, Reading) else Reading.ok(float(n))
            for kind, n in counts.items()
        }

    def poll(
        self,
        at_ms: int,
        utilisation: float | Reading | None = 99.0,
        temperature: float | Reading | None = 72.0,
        ecc: Mapping[str, Reading] | None = None,
        n: int = 1,
        **others: float,
    ) -> Poll:
        """`boot_ms` is the elapsed time: t0 is 0 on these clocks."""
        values: dict[Quantity, float | Reading | None] = {
            Quantity.UTILISATION_PCT: utilisation,
            Quantity.TEMPERATURE_EDGE_C: temperature,
            **{Quantity(name): value for name, value in others.items()},
        }
        readings = {
            quantity: value if isinstance(value, Reading) else Reading.ok(value)
            for quantity, value in values.items()
            if value is not None
        }
        return Poll(GPU, at_ms, readings, ecc, n)

    def stats(self, value: float, n: int) -> Stats:
        return Stats(n, value, value, value, value, value, value)

    def slot(self, index: int, protocol: Protocol | None = None, **changes: Any) -> Slot:
        """A whole slot in spec, closed, at 72 °C, with 0 errors. `temperature_c` changes the stats."""
        protocol = protocol or self.protocol()
        start_ms, end_ms = protocol.slot_start_ms(index), protocol.slot_end_ms(index)
        n = changes.pop("n_polls", protocol.n_polls(index))
        mean_c = changes.pop("temperature_c", 72.0)
        stats = {} if mean_c is None else {Quantity.TEMPERATURE_EDGE_C: self.stats(mean_c, n)}
        stats |= changes.pop("stats", {})
        spent = {name: changes.pop(name, 0) for name in ("bad_ms", "suspect_ms")}
        observed_ms = changes.pop("observed_ms", end_ms - start_ms)
        plain = Slot(
            1,
            GPU,
            index,
            start_ms,
            end_ms,
            start_ms,
            closed=True,
            n_polls=n,
            observed_ms=observed_ms,
            in_spec_ms=observed_ms - sum(spent.values()),
            stats=stats,
            ecc={"corrected": 0, "uncorrected": 0},
            **spent,
        )
        return replace(plain, **changes)

    def tensor(self, name: str, **changes: Any) -> TensorError:
        limit = {"o": 1.0, "dq": 1e-3, "dk": 1e-3, "dv": 5e-3}[name]
        return replace(TensorError(name, 4096, 0, 0.4 * limit, 3e-4, 2.0), **changes)

    def check(self, index: int, protocol: Protocol | None = None, **changes: Any) -> GradientCheck:
        """Within the limits; `dq={...}` changes one tensor's figures, `dq=None` leaves it out."""
        tensors = {name: changes.pop(name, {}) for name in ("o", "dq", "dk", "dv")}
        errors = tuple(self.tensor(name, **new) for name, new in tensors.items() if new is not None)
        due_ms = index * (protocol or self.protocol()).check_ms
        plain = GradientCheck(
            1, GPU, index, due_ms, due_ms + 5_000, 0, 1024, True, 1, ((0, 0),), errors, golden_proved=True
        )  # fmt: skip
        return replace(plain, **changes)

    def integrity(self, rotation: int, n_due: int = 10, n: int = 10, mismatches: int = 0) -> IntegrityCheck:
        return IntegrityCheck(1, GPU, rotation, n_due, n, mismatches, rotation * 100_000 + 99_000)

    def incident(self, kind: str, at_ms: int = 30_000, **changes: Any) -> Incident:
        return replace(
            Incident(1, changes.pop("seq", 0), at_ms, at_ms, kind, GPU, "what was seen"), **changes
        )

    def standing(self, elapsed_ms: int, **changes: Any) -> Standing:
        return Standing(elapsed_ms, **changes)

    def ended(self, elapsed_ms: int = 600_000, closing: str | None = "") -> Standing:
        return Standing(elapsed_ms, ended=True, closing=closing)

    def healthy(self, protocol: Protocol | None = None) -> list[Any]:
        """Every row of a healthy run."""
        protocol = protocol or self.protocol()
        return [
            *(self.slot(index, protocol) for index in range(protocol.n_slots)),
            *(self.check(index, protocol) for index in range(protocol.n_checks(protocol.duration_ms))),
            *(self.integrity(index) for index in range(protocol.n_rotations(protocol.duration_ms))),
        ]

    def record(self, rows: list[Any], attempts: list[Attempt] | None = None, **changes: Any) -> RunRecord:
        """A stored run of these rows; the last attempt's closing record counts them, if it has ended."""
        of: dict[type, Any] = {
            kind: tuple(row for row in rows if isinstance(row, kind))
            for kind in (Slot, GradientCheck, IntegrityCheck, Incident)
        }
        attempts = attempts if attempts is not None else [self.attempt()]
        info = RunInfo(
            "run-1", 0, "host", "mi50", "asked for", 7, "kernel", False, (self.device(),), {}, **changes
        )  # fmt: skip
        counts = {
            "run": 1,
            "attempt": len(attempts),
            "device": 1,
            "sample": len(of[Slot]),
            "gradient_check": len(of[GradientCheck]),
            "integrity_check": len(of[IntegrityCheck]),
            "incident": len(of[Incident]),
        }
        last = attempts[-1] if attempts else None
        if last is not None and last.end != "running" and last.closing is None:
            attempts = [*attempts[:-1], replace(last, closing=Closing(counts, 0))]
        return RunRecord(
            info,
            tuple(attempts),
            slots=of[Slot],
            gradient_checks=of[GradientCheck],
            integrity_checks=of[IntegrityCheck],
            incidents=of[Incident],
            rows=counts,
        )

    def attempt(self, number: int = 1, elapsed_ms: int = 600_000, end: str = "completed") -> Attempt:
        return Attempt(number, 0, "boot", (Stretch(0, 0),), elapsed_ms, None, end)

    def by_name(self, findings: tuple[Finding, ...]) -> dict[str, Finding]:
        return {finding.criterion: finding for finding in findings}


@pytest.fixture(scope="session")
def make() -> Make:
    return Make()
