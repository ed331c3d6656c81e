"""ecc: no corrected, deferred or uncorrected error since t0, by a reading in the last slot."""

from __future__ import annotations

from typing import ClassVar

from soak.core.criteria.base import Card, Conclusion, Evidence, Standing, earliest
from soak.core.records import Cause, ReadingStatus, Slot, State


class Ecc:
    name: ClassVar[str] = "ecc"

    def __init__(self, card: Card) -> None:
        self._card = card
        self._last_slot = -1  # the last one with a reading
        self._errors = 0  # the largest total seen: totals never fall
        self._worst: tuple[tuple[str, int], ...] = ()
        self._first_ms: int | None = None
        self._doubt = ""

    def fold(self, record: Evidence) -> None:
        if not isinstance(record, Slot):
            return
        self._doubt = self._doubt or record.ecc_doubt
        if record.ecc is None:
            return
        self._last_slot = max(self._last_slot, record.index)
        errors = sum(record.ecc.values())
        if errors > self._errors:
            self._errors, self._worst = errors, tuple(record.ecc.items())
        if errors > 0:
            self._first_ms = earliest(self._first_ms, record.start_ms)

    def conclude(self, standing: Standing) -> Conclusion:
        state, reason = self._state(standing)
        return Conclusion(
            state,
            reason,
            value=float(self._errors) if self._last_slot >= 0 else None,
            threshold=0.0,
            unit="errors since t0",
            cause=Cause.HARDWARE if state is State.FAIL else None,
            at_ms=self._first_ms,
        )

    def _state(self, standing: Standing) -> tuple[State, str]:
        if self._errors > 0:
            return State.FAIL, ", ".join(f"{n} {kind}" for kind, n in self._worst if n)
        if self._doubt:
            return State.UNKNOWN, self._doubt
        ecc = self._card.device.ecc
        if self._last_slot < 0 and ecc.status is ReadingStatus.UNSUPPORTED:
            return State.UNKNOWN, f"no ECC on this card: {ecc.reason}"
        if self._last_slot < self._last_due(standing):
            return State.UNKNOWN, "no reading of the error counters in the last slot"
        if self._last_slot < 0:
            return State.UNKNOWN, "the error counters were not read yet"
        return State.PASS, "0 errors"

    def _last_due(self, standing: Standing) -> int:
        """The slot that must have a reading by now: a slot that has just begun, or is shorter than the time
        between two readings, may lack one."""
        protocol, elapsed_ms = self._card.protocol, standing.elapsed_ms
        last = protocol.slot_index(elapsed_ms)
        fresh_ms = protocol.ecc_every_ms + self._card.two_polls_ms
        if standing.ended and protocol.slot_end_ms(last) - protocol.slot_start_ms(last) > fresh_ms:
            return last if elapsed_ms > 0 else -1
        return protocol.slot_index(elapsed_ms - fresh_ms) if elapsed_ms > fresh_ms else -1
