"""Notices a step of the wall clock, and a suspend, by comparing clocks; it moves nothing."""

from __future__ import annotations

from soak.core.ports import Happening

STEP_MS = 500  # between two looks, a second apart: no slewing reaches this


class ClockWatch:
    """Call `look` about once a second."""

    def __init__(self, boot_ms: int, utc_ms: int, awake_ms: int | None = None) -> None:
        """`awake_ms`: CLOCK_MONOTONIC, which stands still in a suspend; None where it is not to be had."""
        self._offset_ms = utc_ms - boot_ms
        self._asleep_ms = None if awake_ms is None else boot_ms - awake_ms

    def look(self, boot_ms: int, utc_ms: int, awake_ms: int | None = None) -> list[Happening]:
        """What the clocks did since the last look."""
        happened = []
        step_ms = utc_ms - boot_ms - self._offset_ms
        self._offset_ms += step_ms
        if abs(step_ms) > STEP_MS:
            way = "forward" if step_ms > 0 else "back"
            detail = f"the wall clock was set {way} by {abs(step_ms) / 1000:.1f} s"
            happened.append(Happening("clock_step", boot_ms, None, detail, {"step_ms": step_ms}))
        if awake_ms is not None and self._asleep_ms is not None:
            slept_ms = boot_ms - awake_ms - self._asleep_ms
            self._asleep_ms += slept_ms
            if slept_ms > STEP_MS:
                detail = f"the machine was suspended for {slept_ms / 1000:.1f} s"
                happened.append(Happening("suspended", boot_ms, None, detail, {"slept_ms": slept_ms}))
        return happened
