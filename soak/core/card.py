"""One card in one attempt: what comes in of it, the rows that come of that, and what they prove so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from soak.core.criteria import Card, Standing, broken_limits
from soak.core.ecc import EccLedger
from soak.core.ports import Happening, Progress
from soak.core.protocol import Protocol
from soak.core.records import (
    Device,
    Finding,
    GradientCheck,
    Incident,
    IntegrityCheck,
    Poll,
    ReadingStatus,
    Rotation,
    RunRecord,
    Slot,
)
from soak.core.slots import SlotFold, Work, throttle_ms
from soak.core.snapshot import CardSnapshot
from soak.core.verdict import CardJudge, Earlier, card_verdict, combined

Row: TypeAlias = Slot | Rotation | IntegrityCheck | GradientCheck | Incident
R = TypeVar("R", Slot, Rotation, IntegrityCheck, GradientCheck)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a card's attempt begins on the clocks."""

    attempt: int
    boot_at_t0_ms: int  # CLOCK_BOOTTIME at elapsed 0 (moved forward by the gaps of `continue`)
    utc_at_t0_ms: int
    start_ms: int = 0  # elapsed time at which this process takes over


class CardState:
    """Folds a card's polls, progress, checks and incidents; hands out rows; concludes at any instant.

    `before`: the run as stored, where this attempt is taken up by `continue`; its rows of the attempt are
    folded first. `earlier`: what earlier attempts leave behind.
    """

    def __init__(
        self,
        card: Card,
        start: Start,
        before: RunRecord | None = None,
        earlier: Earlier | None = None,
    ) -> None:
        self._card = card
        self._start = start
        self._earlier = earlier or Earlier()
        self._kernel = card.device.kernel
        self._judge = CardJudge(card)
        self._rotation: _RotationTally | None = None
        self._ready: list[Row] = []  # rows that are final and not handed out yet
        self._progress: Progress | None = None
        self._poll: Poll | None = None
        self._read_boot_ms: int | None = None  # of the last poll in which a sensor gave a value
        self._check: GradientCheck | None = None
        self._n_checks = {"pass": 0, "fail": 0}
        self._made: set[int] = set()  # checks
        self._end_boot_ms: int | None = None
        self._n_sensor_errors: dict[str, int] = {}
        self._totals = {"steps": 0, "flops": 0, "rotations": 0, "compared": 0, "mismatches": 0, "restarts": 0}
        self._closed_ms = {"observed": 0, "in_spec": 0}
        self._closed_throttle_ms: dict[str, int] = {}  # by reason
        self._ecc: Mapping[str, int] | None = None
        self.is_lost = False
        self.is_out = False  # cannot work any more
        for incident in self._earlier.incidents:
            self._judge.fold(incident)
        slot, ledger = self._take_up(before)
        self._slots = SlotFold(
            card.protocol, card.device, start.attempt, start.utc_at_t0_ms, start.start_ms, slot, ledger
        )

    @property
    def device(self) -> Device:
        return self._card.device

    @property
    def protocol(self) -> Protocol:
        return self._card.protocol

    def _take_up(self, before: RunRecord | None) -> tuple[Slot | None, EccLedger | None]:
        """Folds the attempt's stored rows; the slot left open, and the error counters as last read."""
        if before is None:
            return None, None
        gpu, attempt = self.device.gpu, self._start.attempt
        last_open: Slot | None = None
        ledger: EccLedger | None = None
        in_progress = self.protocol.slot_in_progress(self._start.start_ms)
        for slot in sorted(_mine(before.slots, gpu, attempt), key=lambda s: s.index):
            if slot.ecc is not None:
                ledger = EccLedger(dict(slot.ecc_raw), doubt=slot.ecc_doubt, before=dict(slot.ecc))
            if slot.index == in_progress and not slot.closed:
                last_open = slot
                continue
            if not slot.closed:  # over, but the end came before its last poll
                slot = replace(slot, closed=True)
                self._ready.append(slot)
            self._fold_slot(slot)
        for check in _mine(before.gradient_checks, gpu, attempt):
            self._note_check(check)
        rotations = {r.index: r for r in _mine(before.rotations, gpu, attempt)}
        in_progress = self.protocol.rotation_index(self._start.start_ms)
        for integrity in _mine(before.integrity_checks, gpu, attempt):
            tally = _RotationTally.stored(rotations.get(integrity.rotation), integrity)
            if integrity.rotation == in_progress:
                self._rotation = tally
            else:
                self._judge.fold(integrity)
                self._count_rotation(tally)
        for incident in before.incidents:
            if incident.gpu in (gpu, None) and incident.attempt == attempt:
                self._judge.fold(incident)
        return last_open, ledger

    def has_made(self, index: int) -> bool:
        """Whether gradient check `index` was made in this attempt."""
        return index in self._made

    def end(self, boot_ms: int) -> None:
        """The attempt is over: what sensors say from here on is of a load that is being stopped."""
        self._end_boot_ms = boot_ms

    def take_poll(self, poll: Poll) -> list[Happening]:
        """Folds a poll; what a person should know of it (error counters that moved)."""
        if self._end_boot_ms is not None and poll.boot_ms > self._end_boot_ms:
            return []
        at_ms = self.elapsed_ms(poll.boot_ms)
        errors_before = sum(self._slots.ecc_totals.values())
        self._slots.add(poll, at_ms, self._work())
        self._poll = poll
        if any(reading.status is ReadingStatus.OK for reading in poll.readings.values()):
            self._read_boot_ms = poll.boot_ms
        for quantity, reading in poll.readings.items():
            if reading.status is ReadingStatus.UNREADABLE:
                self._n_sensor_errors[quantity] = self._n_sensor_errors.get(quantity, 0) + 1
        if poll.ecc is not None:
            self._ecc = self._slots.ecc_totals or None
        return self._ecc_happenings(poll, errors_before)

    def _ecc_happenings(self, poll: Poll, errors_before: int) -> list[Happening]:
        totals = self._slots.ecc_totals
        rise = sum(totals.values()) - errors_before
        first_boot_ms = poll.boot_ms - (poll.n - 1) * self.protocol.poll_ms
        happened = []
        if rise > 0:
            counted = ", ".join(f"{n} {kind}" for kind, n in totals.items() if n)
            happened.append(Happening("ecc_error", first_boot_ms, self.device.gpu, f"{counted} since t0"))
        for key in self._slots.went_back:
            happened.append(Happening("ecc_reset", first_boot_ms, self.device.gpu, f"{key} went back"))
        self._slots.went_back.clear()
        return happened

    def _work(self) -> Work:
        progress = self._progress
        if progress is None:
            return Work()
        last = progress.last_step_boot_ms
        return Work(
            last_step_ms=None if last is None else self.elapsed_ms(last),
            expected_step_ms=progress.expected_step_ms,
            rate_ratio=progress.rate_ratio,
            exempt=progress.exempt,
        )

    def elapsed_ms(self, boot_ms: int) -> int:
        return boot_ms - self._start.boot_at_t0_ms

    def take_progress(self, progress: Progress) -> list[Happening]:
        """Counts a worker's steps into its rotation's rows; a restarted worker's add to the earlier."""
        if self._progress is not None and progress.boot_ms < self._progress.boot_ms:
            return []  # overtaken
        self._progress = progress
        first = self.protocol.rotation_index(self._start.start_ms)
        if progress.rotation < (first if self._rotation is None else self._rotation.index):
            return []  # of a rotation that is over
        if self._rotation is None or progress.rotation > self._rotation.index:
            self._finish_rotation()
            self._rotation = _RotationTally(progress.rotation)
        differs = self._rotation.take(progress)
        if not differs:
            return []
        detail = f"rotation {progress.rotation}: a restarted worker got {progress.golden}, before {differs}"
        return [Happening("mismatch", progress.boot_ms, self.device.gpu, detail)]

    def _finish_rotation(self) -> None:
        if self._rotation is None:
            return
        rotation, integrity = self._rotation_rows()
        self._judge.fold(integrity)
        self._count_rotation(self._rotation)
        self._ready += [rotation, integrity]
        self._rotation = None

    def _count_rotation(self, tally: _RotationTally) -> None:
        self._totals["rotations"] += 1
        for name, value in tally.totals().items():
            self._totals[name] += value

    def _rotation_rows(self) -> tuple[Rotation, IntegrityCheck]:
        assert self._rotation is not None
        tally, attempt, gpu = self._rotation, self._start.attempt, self.device.gpu
        shape = self.protocol.shape(tally.index)
        start_ms = tally.index * self.protocol.rotate_ms
        totals = tally.totals()
        rotation = Rotation(
            attempt, gpu, tally.index, start_ms, shape.seq_len, shape.causal, shape.seed, self._kernel,
            tally.golden, totals["steps"], totals["flops"],
        )  # fmt: skip
        integrity = IntegrityCheck(
            attempt, gpu, tally.index, tally.n_due, totals["compared"], totals["mismatches"],
            max(self.elapsed_ms(tally.boot_ms), start_ms),
        )  # fmt: skip
        return rotation, integrity

    def take_check(self, check: GradientCheck, boot_ms: int) -> None:
        """Gives a check its place in the attempt. One that is made again counts only where it fails."""
        if self.has_made(check.index) and not broken_limits(check, self.protocol.limits):
            return
        due_ms = check.index * self.protocol.check_ms
        check = replace(
            check, attempt=self._start.attempt, due_ms=due_ms, at_ms=max(self.elapsed_ms(boot_ms), due_ms)
        )
        self._note_check(check)
        self._ready.append(check)

    def _note_check(self, check: GradientCheck) -> None:
        self._judge.fold(check)
        self._check = check
        self._made.add(check.index)
        result = "fail" if broken_limits(check, self.protocol.limits) else "pass"
        self._n_checks[result] += 1

    def take_incident(self, incident: Incident) -> None:
        self._judge.fold(incident)
        self._totals["restarts"] += incident.kind == "worker_restarted"
        self.is_lost |= incident.kind == "device_lost"
        self.is_out |= incident.kind in ("restarts_exhausted", "worker_unkillable", "device_lost")

    def rows(self, elapsed_ms: int, *, at_end: bool = False) -> list[Row]:
        """Rows that will not change any more, each handed out once."""
        if at_end:
            self._finish_rotation()
        for slot in self._slots.closed(elapsed_ms, at_end=at_end):
            self._fold_slot(slot)
            self._ready.append(slot)
        ready, self._ready = self._ready, []
        return ready

    def open_rows(self) -> list[Row]:
        """Rows as they stand now, of the slot and the rotation in progress."""
        rows: list[Row] = list(self._slots.open_slots())
        return rows + list(self._rotation_rows()) if self._rotation is not None else rows

    def _fold_slot(self, slot: Slot) -> None:
        self._judge.fold(slot)
        self._closed_ms["observed"] += slot.observed_ms
        self._closed_ms["in_spec"] += slot.in_spec_ms
        self._closed_throttle_ms = self._throttle_ms([slot])

    def _throttle_ms(self, slots: Sequence[Slot]) -> dict[str, int]:
        """Closed slots' throttling and that of `slots`, by reason; one that was never read is absent."""
        total_ms = dict(self._closed_throttle_ms)
        for slot in slots:
            for reason, throttled_ms in throttle_ms(slot, self.protocol.poll_ms):
                total_ms[reason] = total_ms.get(reason, 0) + throttled_ms
        return total_ms

    def findings(self, standing: Standing, open_rows: Sequence[Row]) -> tuple[Finding, ...]:
        """What the card's records prove at this instant; `open_rows` as `open_rows()` gave them."""
        found = self._judge.findings(standing, [r for r in open_rows if not isinstance(r, Rotation)])
        return combined(self._earlier.findings, found)

    def snapshot(self, standing: Standing, utc_offset_ms: int) -> CardSnapshot:
        """The card at this instant; `utc_offset_ms` turns boot time into wall-clock stamps."""
        rows = self.open_rows()
        slots = [row for row in rows if isinstance(row, Slot)]
        found = self.findings(standing, rows)
        progress, poll = self._progress, None if self.is_lost else self._poll
        last_step_ms = progress.last_step_boot_ms if progress is not None else None
        now = self._rotation.totals() if self._rotation is not None else {}
        return CardSnapshot(
            device=self.device,
            up=not self.is_lost,
            verdict=card_verdict(found),
            findings=found,
            poll=poll,
            poll_utc_ms=None if self._read_boot_ms is None else self._read_boot_ms + utc_offset_ms,
            slot=slots[-1] if slots else None,
            progress=progress,
            progress_utc_ms=None if last_step_ms is None else last_step_ms + utc_offset_ms,
            check=self._check,
            n_checks=dict(self._n_checks),
            n_steps=self._totals["steps"] + now.get("steps", 0),
            flops=self._totals["flops"] + now.get("flops", 0),
            n_rotations=self._totals["rotations"] + bool(now),
            n_compared=self._totals["compared"] + now.get("compared", 0),
            n_mismatches=self._totals["mismatches"] + now.get("mismatches", 0),
            n_restarts=self._totals["restarts"],
            observed_ms=self._closed_ms["observed"] + sum(s.observed_ms for s in slots),
            in_spec_ms=self._closed_ms["in_spec"] + sum(s.in_spec_ms for s in slots),
            throttle_ms=self._throttle_ms(slots),
            ecc=self._ecc,
            n_sensor_errors=dict(self._n_sensor_errors),
            is_out=self.is_out,
        )

    @property
    def last_poll_ms(self) -> int | None:
        return None if self._poll is None else self.elapsed_ms(self._poll.boot_ms)


class _RotationTally:
    """A rotation's counts, added up over the workers that ran it (a restarted one begins at 0)."""

    NAMES = ("steps", "flops", "due", "compared", "mismatches")

    def __init__(self, index: int) -> None:
        self.index = index
        self.golden = ""
        self.boot_ms = 0
        self._base = dict.fromkeys(self.NAMES, 0)
        self._now = dict.fromkeys(self.NAMES, 0)

    @classmethod
    def stored(cls, rotation: Rotation | None, integrity: IntegrityCheck) -> _RotationTally:
        tally = cls(integrity.rotation)
        if rotation is not None:
            tally.golden = rotation.golden
            tally._base |= {"steps": rotation.n_steps, "flops": rotation.flops}
        tally._base |= {
            "due": integrity.n_due, "compared": integrity.n, "mismatches": integrity.mismatches,
        }  # fmt: skip
        return tally

    def take(self, progress: Progress) -> str:
        """Takes a heartbeat; the earlier golden digest where this one differs from it, else ""."""
        if progress.n_steps < self._now["steps"]:
            self._base = {name: self._base[name] + self._now[name] for name in self.NAMES}
        counts = (progress.n_steps, progress.flops, progress.n_due, progress.n_compared, progress.mismatches)
        self._now = dict(zip(self.NAMES, counts, strict=True))
        self.boot_ms = progress.boot_ms
        earlier = self.golden
        self.golden = progress.golden or earlier
        return earlier if earlier and self.golden != earlier else ""

    def totals(self) -> dict[str, int]:
        return {n: self._base[n] + self._now[n] for n in ("steps", "flops", "compared", "mismatches")}

    @property
    def n_due(self) -> int:
        return self._base["due"] + self._now["due"]


def _mine(rows: Iterable[R], gpu: str, attempt: int) -> list[R]:
    return [row for row in rows if row.gpu == gpu and row.attempt == attempt]
