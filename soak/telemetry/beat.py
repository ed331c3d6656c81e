"""One card at its cadence: a thread that reads it, and a look from outside that never waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from soak.core.ports import Happening
from soak.core.records import Poll, Quantity, Reading, ReadingStatus
from soak.telemetry.sensors import CardGone, Sensor, Unavailable

ERROR_EVERY_MS = 60_000  # a flapping sensor is told once a minute per quantity

BootMs = Callable[[], int]
Tell = Callable[[Poll | Happening], None]


def boot_ms() -> int:
    """CLOCK_BOOTTIME in milliseconds."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Beat:
    """Polls one card every `poll_ms` without drift; beats that were missed are skipped, not made up for.

    `open_sensor` and every read may hang: `look` then gives the polls that say so, from another thread.
    """

    def __init__(
        self,
        gpu: str,
        open_sensor: Callable[[], Sensor],
        tell: Tell,
        poll_ms: int,
        ecc_every_ms: int,
        clock: BootMs = boot_ms,
    ) -> None:
        self._gpu = gpu
        self._open_sensor = open_sensor
        self._tell = tell
        self._poll_ms = poll_ms
        self._ecc_every_ms = ecc_every_ms
        self._clock = clock
        self._answer_ms = max(2000, 2 * poll_ms)
        self._lock = threading.Lock()  # orders what the reading thread tells and what `look` tells
        self._asked_ms: int | None = None  # when the read in progress began
        self._gap_ms = -ERROR_EVERY_MS  # when a gap was last told of as an incident
        self._told_ms = 0  # when `look` last said that there is no answer
        self._sensor: Sensor | None = None
        self._ecc_due_ms = 0
        self._gone = False
        self._readings: Mapping[Quantity, Reading] = {}
        self._ecc: Mapping[str, Reading] = {}  # the counters as last read
        self._errors_ms: dict[str, int] = {}

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"beat {self._gpu}", daemon=True).start()

    def look(self) -> None:
        """Tells a poll without values where the card has not answered in time, and a gap at first. Never
        waits for the card."""
        with self._lock:
            now_ms = self._clock()
            if self._asked_ms is None or now_ms - self._asked_ms < self._answer_ms:
                return
            if now_ms - max(self._told_ms, self._asked_ms) < self._poll_ms:
                return
            reason = f"no answer in {(now_ms - self._asked_ms) / 1000:.0f} s"
            if self._told_ms < self._asked_ms and now_ms - self._gap_ms >= ERROR_EVERY_MS:
                self._gap_ms = now_ms
                self._tell(Happening("sensor_gap", now_ms, self._gpu, reason))
            self._told_ms = now_ms
            self._tell(Poll(self._gpu, now_ms, self._nothing(reason)))

    def _run(self) -> None:
        due_ms = self._clock() + self._poll_ms
        with self._lock:
            self._asked_ms = self._clock()
        with suppress(Exception):  # opened early, so that rates have their first interval; a beat tries again
            self._sensor = self._open_sensor()
        with self._lock:
            self._asked_ms = None
        while True:
            time.sleep(max(due_ms - self._clock(), 0) / 1000)
            self._beat()
            missed = max(self._clock() - due_ms, 0) // self._poll_ms
            due_ms += (missed + 1) * self._poll_ms

    def _beat(self) -> None:
        with self._lock:
            self._asked_ms = self._clock()
        begun_ns = time.thread_time_ns()
        happening: Happening | None = None
        ecc: Mapping[str, Reading] | None = None
        try:
            self._sensor = self._sensor or self._open_sensor()
            readings = self._sensor.read()
            if self._clock() >= self._ecc_due_ms:
                ecc = self._sensor.read_ecc()
                self._ecc_due_ms = self._clock() + self._ecc_every_ms - self._poll_ms // 2
            self._gone = False
        except CardGone as gone:
            readings = self._nothing(str(gone))
            self._sensor = None
            if not self._gone:
                happening = Happening("device_lost", self._clock(), self._gpu, str(gone))
            self._gone = True
        except Unavailable as absent:
            readings = self._nothing(str(absent))
        except Exception as fault:  # noqa: BLE001  the loop of this card: what went wrong becomes a record
            readings = self._nothing(f"{type(fault).__name__}: {fault}")
            self._sensor = None
        cost_ms = (time.thread_time_ns() - begun_ns) / 1e6
        with self._lock:
            self._asked_ms = None
            poll = Poll(self._gpu, self._clock(), readings, ecc, cost_ms=cost_ms)
            if happening is not None:
                self._tell(happening)
            for error in self._new_errors(poll):
                self._tell(error)
            self._readings = readings
            self._ecc = ecc if ecc is not None else self._ecc
            self._tell(poll)

    def _nothing(self, reason: str) -> Mapping[Quantity, Reading]:
        """The quantities that this card has, all without a value."""
        offered = [q for q, r in self._readings.items() if r.status is not ReadingStatus.UNSUPPORTED]
        return {quantity: Reading.unreadable(reason) for quantity in offered or [Quantity.UTILISATION_PCT]}

    def _new_errors(self, poll: Poll) -> list[Happening]:
        """What gave a value when it was last read and gives none now: a quantity, or an error counter."""
        if self._gone:
            return []
        read = [(q.value, reading, self._readings.get(q)) for q, reading in poll.readings.items()]
        read += [(f"ecc {key}", reading, self._ecc.get(key)) for key, reading in (poll.ecc or {}).items()]
        found = []
        for name, reading, last in read:
            if reading.status is ReadingStatus.OK or last is None or last.status is not ReadingStatus.OK:
                continue
            if poll.boot_ms - self._errors_ms.get(name, -ERROR_EVERY_MS) >= ERROR_EVERY_MS:
                self._errors_ms[name] = poll.boot_ms
                detail = f"{name}: {reading.reason}"
                found.append(Happening("sensor_error", poll.boot_ms, poll.gpu, detail, {"quantity": name}))
        return found
