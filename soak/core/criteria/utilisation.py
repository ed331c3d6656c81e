"""utilisation: the card was busy, with work behind it, for more than 98 % of the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from soak.core.criteria.base import Card, Conclusion, Evidence, Standing, earliest
from soak.core.records import Cause, Incident, Quantity, Slot, State

# What left the card without work although the card was able to: who did it.
_NO_WORK: Mapping[str, Cause] = {
    "worker_stopped": Cause.ENVIRONMENT,
    "worker_killed": Cause.ENVIRONMENT,
    "worker_out_of_memory": Cause.ENVIRONMENT,
    "host_starved": Cause.ENVIRONMENT,
    "out_of_device_memory": Cause.ENVIRONMENT,
    "worker_error": Cause.SOFTWARE,
    "compile_error": Cause.SOFTWARE,
}


class Utilisation:
    name: ClassVar[str] = "utilisation"

    def __init__(self, card: Card) -> None:
        self._card = card
        self._in_spec_ms = 0
        self._suspect_ms = 0
        self._bad_ms = 0
        self._throttled_ms = 0
        self._widest = 0.0  # PCIe lanes
        self._narrowest = float("inf")
        self._first_bad_ms: int | None = None
        self._bad_slots = 0  # bit k: slot k has bad seconds
        self._without_work = 0  # bit k: in slot k something took the card's work away
        self._why_without_work: tuple[int, str] | None = None  # the earliest

    def fold(self, record: Evidence) -> None:
        if isinstance(record, Incident) and record.kind in _NO_WORK:
            self._without_work |= 1 << self._card.protocol.slot_index(record.at_ms)
            why = (record.at_ms, record.kind)
            self._why_without_work = min(self._why_without_work or why, why)
        if not isinstance(record, Slot):
            return
        self._in_spec_ms += record.in_spec_ms
        self._suspect_ms += record.suspect_ms
        self._bad_ms += record.bad_ms
        if record.bad_ms:
            self._bad_slots |= 1 << record.index
            self._throttled_ms += record.throttled_ms
            self._first_bad_ms = earliest(self._first_bad_ms, record.first_bad_ms)
        width = record.stats.get(Quantity.PCIE_WIDTH)
        if width is not None:
            self._widest = max(self._widest, width.max)
            self._narrowest = min(self._narrowest, width.min)

    def conclude(self, standing: Standing) -> Conclusion:
        limits, elapsed_ms = self._card.protocol.limits, standing.elapsed_ms
        lost_ms = elapsed_ms - self._in_spec_ms
        share = self._in_spec_ms / elapsed_ms if elapsed_ms > 0 else None
        planned_loss_ms = limits.utilisation_loss_max * self._card.protocol.duration_ms
        state, cause, reason = State.UNKNOWN, None, self._split(elapsed_ms)
        if self._bad_ms >= planned_loss_ms and self._bad_ms > self._card.two_polls_ms:
            state, (cause, why) = State.FAIL, self._blame()
            reason = f"{reason}; {why}"
        elif self._in_spec_ms > 0 and (
            lost_ms < limits.utilisation_loss_max * elapsed_ms or lost_ms <= self._card.two_polls_ms
        ):
            state = State.PASS
        return Conclusion(
            state,
            reason,
            value=share,
            threshold=1 - limits.utilisation_loss_max,
            unit="of the time",
            cause=cause,
            at_ms=self._first_bad_ms if state is State.FAIL else None,
        )

    def _split(self, elapsed_ms: int) -> str:
        if elapsed_ms <= 0:
            return "nothing observed yet"
        unobserved_ms = max(elapsed_ms - self._in_spec_ms - self._suspect_ms - self._bad_ms, 0)
        return (
            f"of {elapsed_ms / 1000:.0f} s: {self._in_spec_ms / 1000:.0f} in spec, "
            f"{self._bad_ms / 1000:.0f} bad, {self._suspect_ms / 1000:.0f} without work behind it, "
            f"{unobserved_ms / 1000:.0f} unobserved"
        )

    def _blame(self) -> tuple[Cause, str]:
        if self._narrowest < self._widest:
            return (
                Cause.HARDWARE,
                f"the PCIe link fell from {self._widest:.0f} to {self._narrowest:.0f} lanes",
            )
        if self._why_without_work is not None and self._was_left_without_work():
            kind = self._why_without_work[1]
            return _NO_WORK[kind], f"around an incident that left the card without work ({kind})"
        if 2 * self._throttled_ms >= self._bad_ms:
            return Cause.ENVIRONMENT, "the card throttled itself for heat"
        return Cause.HARDWARE, "no throttling and no change of the link was seen"

    def _was_left_without_work(self) -> bool:
        """Whether at least half of the bad slots follow, without a break, from one in which (or beside which)
        the card's work was taken away."""
        bad, taken = self._bad_slots, self._without_work
        begun = (taken | taken << 1 | taken >> 1) & bad
        followed = begun | bad & ~(bad + begun)  # the carry runs through neighbouring bits and clears them
        return 2 * followed.bit_count() >= bad.bit_count()
