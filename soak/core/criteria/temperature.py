"""temperature: the card settled in the profile's band, or kept its distance from its own slow-down limit."""

from __future__ import annotations

from typing import ClassVar

from soak.core.criteria.base import Card, Conclusion, Evidence, Standing, earliest
from soak.core.records import Cause, Quantity, ReadingStatus, Slot, State

_ROUNDING = 1e-9  # products of a fraction and a count are compared with counts


class Temperature:
    """Judges closed slots after warm-up that have enough polls of the sensor.

    Kind `band`: the slot's mean. Kind `margin`: the slot's maximum against the card's limit, and the seconds
    of thermal throttling, so that those polls have to tell of it too.
    """

    name: ClassVar[str] = "temperature"

    def __init__(self, card: Card) -> None:
        self._card = card
        self._sensor = card.device.temperature_sensor
        self._n_over = 0  # closed slots after warm-up, judged or not
        self._n_judged = 0
        self._n_bad = 0
        self._n_outer = 0
        self._throttled_ms = 0
        self._worst_c: float | None = None  # farthest from what is wanted
        self._first_bad_ms: int | None = None

    def fold(self, record: Evidence) -> None:
        if not isinstance(record, Slot):
            return
        self._throttled_ms += record.throttled_ms
        protocol, limits = self._card.protocol, self._card.protocol.limits
        if not record.closed or not protocol.is_warm(record.index, self._card.stretches):
            return
        self._n_over += 1
        stats = record.stats.get(self._sensor) if self._sensor is not None else None
        told = [stats, record.stats.get(Quantity.THERMAL_THROTTLE)] if self._by_margin else [stats]
        polls_min = limits.temperature_polls_min * protocol.n_polls(record.index)
        if stats is None or any(each is None or each.n < polls_min for each in told):
            return
        value_c = stats.max if self._by_margin else stats.mean
        good = self._good_c(value_c)
        if good is None:
            return
        self._n_judged += 1
        self._n_bad += not good
        if limits.temperature_kind == "band":
            self._n_outer += abs(value_c - limits.temperature_target_c) > limits.temperature_outer_c
        if self._worst_c is None or self._badness(value_c) > self._badness(self._worst_c):
            self._worst_c = value_c
        if not good:
            self._first_bad_ms = earliest(self._first_bad_ms, record.start_ms)

    @property
    def _by_margin(self) -> bool:
        return self._card.protocol.limits.temperature_kind == "margin"

    def _good_c(self, value_c: float) -> bool | None:
        limits = self._card.protocol.limits
        if limits.temperature_kind == "band":
            return abs(value_c - limits.temperature_target_c) <= limits.temperature_band_c
        slowdown_c = self._card.device.slowdown_c
        return None if slowdown_c is None else slowdown_c - value_c >= limits.temperature_margin_c

    def _badness(self, value_c: float) -> float:
        limits = self._card.protocol.limits
        band = limits.temperature_kind == "band"
        return abs(value_c - limits.temperature_target_c) if band else value_c

    def conclude(self, standing: Standing) -> Conclusion:
        protocol, limits = self._card.protocol, self._card.protocol.limits
        # A slot that is over waits up to two polls for its last one, and then for somebody to look: until it
        # is closed it is not due, but to come.
        settled_ms = standing.elapsed_ms - (0 if standing.ended else 2 * self._card.two_polls_ms)
        due = protocol.n_slots_warm(protocol.n_slots_closed(settled_ms), self._card.stretches)
        to_come = protocol.n_slots_warm(protocol.n_slots, self._card.stretches) - self._n_over
        allowed = 1 - limits.temperature_good_min
        failed = (
            self._n_outer > 0
            or self._n_bad > allowed * (self._n_judged + to_come) + _ROUNDING
            or self._throttles_beyond(protocol.duration_ms)
        )
        enough = self._n_judged >= 1 and self._n_judged >= limits.temperature_judged_min * due - _ROUNDING
        good = self._n_bad <= allowed * self._n_judged + _ROUNDING
        state = State.UNKNOWN
        if failed:
            state = State.FAIL
        elif enough and good and not self._throttles_beyond(standing.elapsed_ms):
            state = State.PASS
        return Conclusion(
            state,
            self._reason(due),
            value=self._worst_c,
            threshold=self._threshold_c(),
            unit="°C, worst slot",
            cause=Cause.ENVIRONMENT if failed else None,
            at_ms=self._first_bad_ms if failed else None,
        )

    def _throttles_beyond(self, span_ms: int) -> bool:
        limits = self._card.protocol.limits
        allowed_ms = max(limits.throttle_max * span_ms, self._card.two_polls_ms)
        return self._by_margin and self._throttled_ms > allowed_ms

    def _threshold_c(self) -> float | None:
        limits, slowdown_c = self._card.protocol.limits, self._card.device.slowdown_c
        if limits.temperature_kind == "band":
            return limits.temperature_target_c
        return None if slowdown_c is None else slowdown_c - limits.temperature_margin_c

    def _reason(self, due: int) -> str:
        limits, device = self._card.protocol.limits, self._card.device
        if self._sensor is None:
            return "this card has no temperature sensor to judge"
        supported = device.supported.get(self._sensor)
        if supported is not None and supported.status is ReadingStatus.UNSUPPORTED:
            return f"{self._sensor}: {supported.reason}"
        if self._by_margin and device.slowdown_c is None:
            return "the card does not say at which temperature it slows down"
        throttle = device.supported.get(Quantity.THERMAL_THROTTLE)
        if self._by_margin and throttle is not None and throttle.status is ReadingStatus.UNSUPPORTED:
            return f"thermal throttling cannot be seen: {throttle.reason}"
        if limits.temperature_kind == "band":
            wanted = f"{limits.temperature_target_c:g} ± {limits.temperature_band_c:g} °C"
        else:
            wanted = f"≥ {limits.temperature_margin_c:g} °C below {device.slowdown_c:g} °C"
        throttled = f", {self._throttled_ms / 1000:.0f} s of thermal throttling" if self._throttled_ms else ""
        if not due:
            return f"no slot after the warm-up of {self._card.protocol.warmup_ms / 1000:.0f} s yet{throttled}"
        outer = f", {self._n_outer} beyond ± {limits.temperature_outer_c:g} °C" if self._n_outer else ""
        good = self._n_judged - self._n_bad
        return f"{good} of {self._n_judged} judged slots {wanted}{outer}; {due} were due{throttled}"
