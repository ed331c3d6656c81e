"""How fast a card works now, in operations a millisecond, from the times at which its steps finished."""

from __future__ import annotations

from collections import deque

WINDOW_MS = 5_000.0
STEPS_MIN = 3


class WorkRate:
    """Over the last seconds of one rotation, at least over three steps."""

    def __init__(self, work: float) -> None:
        self._work = work  # operations of a step
        self._finished_ms: deque[float] = deque(maxlen=4096)

    def finished(self, now_ms: float) -> None:
        self._finished_ms.append(now_ms)
        while len(self._finished_ms) > STEPS_MIN + 1 and now_ms - self._finished_ms[1] > WINDOW_MS:
            self._finished_ms.popleft()

    def rate(self, now_ms: float, expected_step_ms: float) -> float | None:
        """None before the fourth step. A step that is overdue counts as time without work."""
        times = list(self._finished_ms)
        if len(times) <= STEPS_MIN:
            return None
        overdue_ms = max(0.0, now_ms - times[-1] - 1.5 * expected_step_ms)
        return self._work * (len(times) - 1) / max(times[-1] - times[0] + overdue_ms, 1e-3)
