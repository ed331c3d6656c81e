"""Polls to slots: the only place that sees polls.

Slot k covers (k * sample, (k + 1) * sample]. A poll stands for the time since the one before, at most two
poll intervals; that time is split at slot borders, while the poll's values belong to the slot it was done in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from soak.core.ecc import EccLedger, readable
from soak.core.protocol import Protocol
from soak.core.records import Device, Poll, Quantity, ReadingStatus, Slot, Stats


@dataclass(frozen=True, slots=True)
class Work:
    """What the load did, as known when a poll is judged; elapsed milliseconds."""

    last_step_ms: int | None = None
    expected_step_ms: float = 0.0
    rate_ratio: float | None = None
    exempt: bool = False


RATE_MIN = 0.5  # of the card's own calibrated work rate


def required_quantities(protocol: Protocol, device: Device) -> frozenset[Quantity]:
    """What has to be read for a second to count as observed; what the card never had is not asked again."""
    wanted = {Quantity.UTILISATION_PCT}
    if "temperature" in protocol.limits.required and device.temperature_sensor is not None:
        wanted.add(device.temperature_sensor)
    return frozenset(
        q
        for q in wanted
        if q is Quantity.UTILISATION_PCT
        or q not in device.supported
        or device.supported[q].status is not ReadingStatus.UNSUPPORTED
    )


class SlotFold:
    """Folds one card's polls of one attempt into slots.

    `resume` is the slot in which an earlier stretch of the attempt ended; its evidence is kept.
    """

    def __init__(
        self,
        protocol: Protocol,
        device: Device,
        attempt: int,
        utc_at_t0_ms: int,
        start_ms: int = 0,
        resume: Slot | None = None,
        ledger: EccLedger | None = None,
    ) -> None:
        self._protocol = protocol
        self._gpu = device.gpu
        self._attempt = attempt
        self._utc_at_t0_ms = utc_at_t0_ms
        self._required = required_quantities(protocol, device)
        self._needs_ecc = "ecc" in protocol.limits.required and device.ecc.status is ReadingStatus.OK
        self._ledger = ledger or EccLedger(readable(device.ecc_baseline) or {})
        self._ecc_gap = ledger is not None or start_ms > 0  # nobody read the counters between two stretches
        self._last_ecc_ms = start_ms if device.ecc.status is ReadingStatus.OK else None
        self._last_poll_ms = start_ms
        self._next_close = protocol.slot_in_progress(start_ms)
        self._open: dict[int, _OpenSlot] = {}
        if resume is not None and not resume.closed:
            self._open[resume.index] = _OpenSlot.taken_up(resume)
        self.went_back: list[str] = []  # ECC counters that fell, for the run to report

    @property
    def ecc_totals(self) -> Mapping[str, int]:
        return self._ledger.totals()

    def add(self, poll: Poll, at_ms: int, work: Work) -> None:
        """Takes a poll done at `at_ms`; n > 1 are n equal polls, the last at `at_ms`.

        A poll that is not later than the one before, or the second after the end, is passed over.
        """
        every = self._protocol.poll_ms
        n, first_ms = poll.n, at_ms - (poll.n - 1) * every
        while n > 0 and self._last_poll_ms < self._protocol.duration_ms:
            stale = (self._last_poll_ms - first_ms) // every + 1
            fit = stale if stale > 0 else self._n_alike(poll, first_ms, work)
            fit = min(fit, n)
            if stale <= 0:
                self._add_alike(poll, fit, first_ms, work)
            n -= fit
            first_ms += fit * every

    def _n_alike(self, poll: Poll, first_ms: int, work: Work) -> int:
        """Of equal polls from `first_ms` on: how many lie in one slot and are judged alike."""
        protocol = self._protocol
        if first_ms >= protocol.duration_ms:
            return 1
        ends_ms = [protocol.slot_end_ms(protocol.slot_index(first_ms))]
        if work.last_step_ms is not None:
            ends_ms.append(work.last_step_ms + math.floor(self._patience_ms(work)))
        if poll.ecc is None and self._last_ecc_ms is not None:
            ends_ms.append(self._last_ecc_ms + self._ecc_fresh_ms)
        return min((end_ms - first_ms) // protocol.poll_ms + 1 for end_ms in ends_ms if end_ms >= first_ms)

    def _add_alike(self, poll: Poll, n: int, first_ms: int, work: Work) -> None:
        protocol = self._protocol
        at_ms = first_ms + (n - 1) * protocol.poll_ms
        index = protocol.slot_index(at_ms)
        if index >= self._next_close:  # else the poll came too late for its slot, which stays as it is
            slot = self._slot(index)
            slot.take_values(poll, n)
            self._take_ecc(poll, first_ms, at_ms, slot)
        kind = self._judge(poll, at_ms, work)
        throttled = _is_on(poll, Quantity.THERMAL_THROTTLE)
        begin_ms = max(self._last_poll_ms, first_ms - 2 * protocol.poll_ms)
        self._last_poll_ms = at_ms
        if kind is not None:
            self._spread(begin_ms, min(at_ms, protocol.duration_ms), kind, throttled)

    def _spread(self, begin_ms: int, end_ms: int, kind: str, throttled: bool) -> None:
        """Credits (begin, end] to the slots it lies in; time of a slot already closed stays unobserved."""
        while begin_ms < end_ms:
            index = begin_ms // self._protocol.sample_ms
            border_ms = min(end_ms, self._protocol.slot_end_ms(index))
            if index >= self._next_close:
                self._slot(index).take_time(begin_ms, border_ms, kind, throttled)
            begin_ms = border_ms

    def _judge(self, poll: Poll, at_ms: int, work: Work) -> str | None:
        """None (unobserved), bad, suspect or in_spec."""
        values = poll.readings
        for quantity in self._required:
            reading = values.get(quantity)
            if reading is None or reading.status is not ReadingStatus.OK:
                return None
        if self._needs_ecc and (self._last_ecc_ms is None or at_ms - self._last_ecc_ms > self._ecc_fresh_ms):
            return None
        utilisation = values[Quantity.UTILISATION_PCT].value
        if utilisation is None or not 0 <= utilisation <= 100:
            return None  # impossible, whoever let it through
        if utilisation < self._protocol.limits.utilisation_min_pct:
            return "bad"
        if work.last_step_ms is None or at_ms - work.last_step_ms > self._patience_ms(work):
            return "suspect"
        slow = work.rate_ratio is not None and work.rate_ratio < RATE_MIN and not work.exempt
        return "suspect" if slow and self._protocol.work_rate_rule else "in_spec"

    def _patience_ms(self, work: Work) -> float:
        """How long a card may be without a finished step."""
        return max(2 * self._protocol.poll_ms, 3 * work.expected_step_ms)

    @property
    def _ecc_fresh_ms(self) -> int:
        """How long a reading of the error counters stands."""
        return self._protocol.ecc_every_ms + 2 * self._protocol.poll_ms

    def _take_ecc(self, poll: Poll, first_ms: int, at_ms: int, slot: _OpenSlot) -> None:
        if poll.ecc is None or self._last_ecc_ms is None:
            return
        raw = readable(poll.ecc)
        if raw is None or not self._ledger.covers(raw):  # no reading; but an error that was seen, was seen
            rose = self._ledger.risen(poll.ecc)
            if rose:
                self._ledger.read(rose, after_gap=False)
                slot.take_ecc(self._ledger)
            return
        gap = self._ecc_gap or first_ms - self._last_ecc_ms > 3 * self._protocol.ecc_every_ms
        self.went_back += self._ledger.read(raw, after_gap=gap)
        self._last_ecc_ms, self._ecc_gap = at_ms, False
        slot.take_ecc(self._ledger)

    def _slot(self, index: int) -> _OpenSlot:
        if index not in self._open:
            self._open[index] = _OpenSlot(
                Slot(
                    attempt=self._attempt,
                    gpu=self._gpu,
                    index=index,
                    start_ms=self._protocol.slot_start_ms(index),
                    end_ms=self._protocol.slot_end_ms(index),
                    utc_ms=self._utc_at_t0_ms + self._protocol.slot_start_ms(index),
                )
            )
        return self._open[index]

    def closed(self, elapsed_ms: int, *, at_end: bool = False) -> list[Slot]:
        """The slots that are over and will get no more polls, each once; empty ones too: a gap is a row."""
        done = []
        while self._next_close < self._protocol.n_slots:
            end_ms = self._protocol.slot_end_ms(self._next_close)
            settled = self._last_poll_ms >= end_ms or elapsed_ms >= end_ms + 2 * self._protocol.poll_ms
            if elapsed_ms < end_ms or not (settled or at_end):
                break
            done.append(replace(self._slot(self._next_close).row(), closed=True))
            del self._open[self._next_close]
            self._next_close += 1
        return done

    def open_slot(self) -> Slot | None:
        """The slot in progress so far (the earliest of two around a border)."""
        slots = self.open_slots()
        return slots[-1] if slots else None

    def open_slots(self) -> list[Slot]:
        return [self._open[index].row() for index in sorted(self._open)]


@dataclass(slots=True)
class _Values:
    """A quantity's values in a slot: how often each was read, so that neither order nor stretches matter."""

    n_of: dict[float, int] = field(default_factory=dict)
    last: float = 0.0

    def take(self, value: float, n: int) -> None:
        self.n_of[value] = self.n_of.get(value, 0) + n
        self.last = value

    def stats(self) -> Stats:
        """Percentiles by nearest rank."""
        ordered = sorted(self.n_of.items())
        n = sum(self.n_of.values())
        return Stats(
            n=n,
            min=ordered[0][0],
            mean=math.fsum(value * count for value, count in ordered) / n,
            max=ordered[-1][0],
            p05=_rank(ordered, max(-(-n * 5 // 100), 1)),
            p95=_rank(ordered, max(-(-n * 95 // 100), 1)),
            last=self.last,
        )


@dataclass(slots=True)
class _OpenSlot:
    base: Slot
    n_polls: int = 0
    times: dict[str, int] = field(default_factory=lambda: {"in_spec": 0, "suspect": 0, "bad": 0})
    throttled_ms: int = 0
    values: dict[Quantity, _Values] = field(default_factory=dict)
    missing: dict[Quantity, str] = field(default_factory=dict)
    ecc: Mapping[str, int] | None = None
    ecc_raw: Mapping[str, int] = field(default_factory=dict)
    ecc_doubt: str = ""
    first_bad_ms: int | None = None

    @classmethod
    def taken_up(cls, slot: Slot) -> _OpenSlot:
        times = {"in_spec": slot.in_spec_ms, "suspect": slot.suspect_ms, "bad": slot.bad_ms}
        return cls(
            slot, slot.n_polls, times, slot.throttled_ms, {}, dict(slot.missing), slot.ecc, slot.ecc_raw,
            slot.ecc_doubt, slot.first_bad_ms,
        )  # fmt: skip

    def take_values(self, poll: Poll, n: int) -> None:
        self.n_polls += n
        for quantity, reading in poll.readings.items():
            if reading.status is ReadingStatus.OK and reading.value is not None:
                self.values.setdefault(quantity, _Values()).take(reading.value, n)
            else:
                self.missing[quantity] = f"{reading.status}: {reading.reason}"

    def take_ecc(self, ledger: EccLedger) -> None:
        self.ecc, self.ecc_raw, self.ecc_doubt = ledger.totals(), dict(ledger.raw), ledger.doubt

    def take_time(self, begin_ms: int, end_ms: int, kind: str, throttled: bool) -> None:
        self.times[kind] += end_ms - begin_ms
        if throttled:
            self.throttled_ms += end_ms - begin_ms
        if kind == "bad" and self.first_bad_ms is None:
            self.first_bad_ms = begin_ms

    def row(self) -> Slot:
        stats = {q: _joined(self.base.stats.get(q), values.stats()) for q, values in self.values.items()}
        return replace(
            self.base,
            n_polls=self.n_polls,
            observed_ms=sum(self.times.values()),
            in_spec_ms=self.times["in_spec"],
            suspect_ms=self.times["suspect"],
            bad_ms=self.times["bad"],
            throttled_ms=self.throttled_ms,
            stats={**self.base.stats, **stats},
            missing=dict(self.missing),
            ecc=self.ecc,
            ecc_raw=self.ecc_raw,
            ecc_doubt=self.ecc_doubt,
            first_bad_ms=self.first_bad_ms,
        )


def throttle_ms(slot: Slot, poll_ms: int) -> Iterator[tuple[str, int]]:
    """How long a slot's card slowed itself, by reason (thermal, power); nothing where it does not tell.

    For power there is no sum of milliseconds: the polls that saw it stand for an interval each.
    """
    if Quantity.THERMAL_THROTTLE in slot.stats:
        yield "thermal", slot.throttled_ms
    power = slot.stats.get(Quantity.POWER_THROTTLE)
    if power is not None:
        yield "power", round(power.mean * power.n) * poll_ms


def _is_on(poll: Poll, quantity: Quantity) -> bool:
    reading = poll.readings.get(quantity)
    return reading is not None and bool(reading.value)


def _rank(ordered: Sequence[tuple[float, int]], rank: int) -> float:
    for value, count in ordered:
        rank -= count
        if rank <= 0:
            return value
    return ordered[-1][0]


def _joined(before: Stats | None, now: Stats) -> Stats:
    """A slot taken up by `continue`: percentiles are those of its last part, the rest is of the whole."""
    if before is None:
        return now
    n = before.n + now.n
    mean = (before.mean * before.n + now.mean * now.n) / n
    return replace(now, n=n, mean=mean, min=min(before.min, now.min), max=max(before.max, now.max))
