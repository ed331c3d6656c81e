"""The clocks of this machine."""

from __future__ import annotations

import time

MS = 1_000_000  # nanoseconds


class SystemClock:
    """CLOCK_BOOTTIME for elapsed time (suspend included), the wall clock for stamps."""

    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // MS

    def utc_ms(self) -> int:
        return time.time_ns() // MS

    def awake_ms(self) -> int:
        """CLOCK_MONOTONIC: stands still while the machine is suspended."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // MS
