"""Before t0: waits until every card has finished its first step and its error counters have been read."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from soak.core.ecc import readable
from soak.core.errors import CannotRun
from soak.core.incidents import KINDS
from soak.core.ports import Happening, LoadEvent, Ready
from soak.core.protocol import Protocol
from soak.core.records import Device, Poll, Quantity, Reading, ReadingStatus, RunInfo, State

READY_WITHIN_MS = 600_000
SHOWS_WITHIN_MS = 10_000  # after the burst of load; the work goes on meanwhile
BUSY_PCT = 80.0
POLLS_KEPT = 900


class Muster:
    """Collects what has to be there before the clock starts; refuses a start that cannot come about."""

    def __init__(self, info: RunInfo, protocol: Protocol, begun_boot_ms: int) -> None:
        self._info, self._protocol = info, protocol
        self._begun_boot_ms = begun_boot_ms
        self._ready: dict[str, Ready] = {}
        self._ecc: dict[str, Mapping[str, Reading]] = {}
        self._seen: dict[tuple[str, Quantity], deque[tuple[int, float]]] = {}  # (boot_ms, value)
        self._shown: set[str] = set()  # cards whose telemetry showed the load
        self.happened: list[Happening] = []

    def take_reading(self, item: Poll | Happening) -> None:
        """Raises CannotRun where a card is lost or was reset."""
        if isinstance(item, Happening):
            if KINDS[item.kind].state is State.FAIL:
                raise CannotRun(_no_start(item))
            self.happened.append(item)
            return
        if item.ecc is not None and readable(item.ecc) is not None:
            self._ecc[item.gpu] = item.ecc
        for quantity in (Quantity.UTILISATION_PCT, Quantity.POWER_W):
            reading = item.readings.get(quantity)
            if reading is not None and reading.value is not None:
                seen = self._seen.setdefault((item.gpu, quantity), deque(maxlen=POLLS_KEPT))
                seen.append((item.boot_ms, reading.value))

    def take_event(self, event: LoadEvent) -> None:
        """Raises CannotRun where a worker reports what would be a fault later on."""
        if isinstance(event, Ready):
            self._ready[event.gpu] = event
        elif isinstance(event, Happening):
            if KINDS[event.kind].criterion is not None:
                raise CannotRun(_no_start(event))
            self.happened.append(event)

    def waiting_for(self, boot_ms: int) -> list[str]:
        """What is missing still, in words; empty: t0 can be set. Raises CannotRun after 10 min."""
        missing = [d.gpu for d in self._info.devices if d.gpu not in self._ready]
        if missing and boot_ms - self._begun_boot_ms > READY_WITHIN_MS:
            raise CannotRun(
                f"{', '.join(missing)}: no step finished within 10 min; is the card able to work?"
            )
        if missing:
            return [f"the first step of {gpu}" for gpu in missing]
        return [
            *(f"the ECC baseline of {d.gpu}" for d in self._info.devices if self._lacks_baseline(d, boot_ms)),
            *(f"a sign of load on {d.gpu}" for d in self._info.devices if self._lacks_load(d, boot_ms)),
        ]

    def _lacks_load(self, device: Device, boot_ms: int) -> bool:
        """The pairing self-test: the card that is read is the one that works. The worker's burst of full load
        before t0 (`Ready.facts["burst"]`; without one nothing is tested) must show in this card's own
        utilisation, and in its power where that is read and was seen idle before."""
        burst = self._ready[device.gpu].facts.get("burst")
        if burst is None or device.gpu in self._shown:
            return False
        began_ms, ended_ms = burst["began_boot_ms"], burst["ended_boot_ms"]
        busy = self._during(device.gpu, Quantity.UTILISATION_PCT, began_ms, boot_ms)
        power = self._during(device.gpu, Quantity.POWER_W, began_ms, boot_ms)
        idle = [w for at_ms, w in self._seen.get((device.gpu, Quantity.POWER_W), ()) if at_ms < began_ms]
        is_busy = bool(busy) and max(busy) >= BUSY_PCT
        rose = not power or not idle or max(power) > min(idle)
        if is_busy and rose:
            self._shown.add(device.gpu)
            return False
        if boot_ms - ended_ms > SHOWS_WITHIN_MS:
            read = f"{max(busy):.0f} %" if busy else "nothing"
            raise CannotRun(
                f"{device.gpu}: the load ran and this card's telemetry shows {read} of utilisation; load and "
                "telemetry are not on the same card, or its utilisation cannot be trusted."
            )
        return True

    def _during(self, gpu: str, quantity: Quantity, began_ms: int, ended_ms: int) -> list[float]:
        seen = self._seen.get((gpu, quantity), ())
        return [value for at_ms, value in seen if began_ms < at_ms <= ended_ms]

    def _lacks_baseline(self, device: Device, boot_ms: int) -> bool:
        unsupported = device.ecc.status is ReadingStatus.UNSUPPORTED
        if "ecc" not in self._protocol.limits.required or unsupported:
            return False
        if device.gpu in self._ecc or readable(device.ecc_baseline) is not None:
            return False
        waited_ms = boot_ms - max(ready.boot_ms for ready in self._ready.values())
        if waited_ms > 2 * self._protocol.ecc_every_ms:
            raise CannotRun(
                f"{device.gpu}: the ECC baseline cannot be read ({device.ecc.reason or 'no answer'}); "
                "without it errors since the start cannot be counted"
            )
        return True

    def info_at_t0(self) -> RunInfo:
        """The run's facts, with what the workers and the last readings before t0 add."""
        devices = tuple(self._device_at_t0(device) for device in self._info.devices)
        kernels = dict.fromkeys(device.kernel for device in devices)  # one, unless a card fell back
        versions = {**self._info.versions, **self._ready[devices[0].gpu].versions}
        return replace(self._info, devices=devices, kernel=", ".join(kernels), versions=versions)

    def _device_at_t0(self, device: Device) -> Device:
        """With its kernel and its baseline; counters that gave one can be read, whatever they said when
        first asked."""
        ready = self._ready[device.gpu]
        load = {"largest_step_ms": ready.step_ms, **ready.facts}
        device = replace(device, kernel=ready.kernel, kernel_reason=ready.kernel_reason, load=load)
        baseline = self._ecc.get(device.gpu)
        if baseline is None:
            return device
        unreadable = device.ecc.status is ReadingStatus.UNREADABLE
        return replace(device, ecc_baseline=baseline, ecc=Reading.ok(1.0) if unreadable else device.ecc)


def _no_start(happening: Happening) -> str:
    where = f"{happening.gpu}: " if happening.gpu else ""
    says = f"{where}the load does not start: {happening.kind.replace('_', ' ')}: {happening.detail}"
    return says if "soak doctor" in says else f"{says.rstrip('.')}; soak doctor names what is missing."
