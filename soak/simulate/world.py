"""A machine that does not exist: a virtual clock, and cards whose sensors and steps follow a fault plan.

Readings come as stretches of equal polls, cut where something changes, so that 48 hours are cheap. The parts
implement the ports of a real run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from soak.core.ports import Checked, Happening, LoadEvent, Progress, Ready
from soak.core.protocol import Protocol, Shape
from soak.core.records import Device, GradientCheck, Poll, Quantity, Reading, TensorError
from soak.simulate.scenarios import Fault

GIB = 1 << 30
STEP_MS = 400.0
CHECK_MS = 45_000  # how long a gradient check takes
PATIENCE_MS = 2_000  # after its last step a card is suspect (two polls)
NO_PROGRESS_MS = 60_000
IDLE_C, SETTLED_C = 48.0, 72.0


class VirtualClock:
    """Time that moves when it is told to."""

    def __init__(self, boot_ms: int = 3_600_000, utc_ms: int = 1_767_225_600_000) -> None:
        self._boot_ms = boot_ms
        self._offset_ms = utc_ms - boot_ms

    def boot_ms(self) -> int:
        return self._boot_ms

    def utc_ms(self) -> int:
        return self._boot_ms + self._offset_ms

    def advance_to(self, boot_ms: int) -> None:
        assert boot_ms >= self._boot_ms
        self._boot_ms = boot_ms

    def set_wall(self, by_ms: int) -> None:
        """Somebody sets the wall clock; nothing else moves."""
        self._offset_ms += by_ms


def simulated_device(index: int, *, ecc: bool) -> Device:
    """An MI50 as it would describe itself."""
    gpu = f"0000:{0x33 + index:02x}:00.0"
    raw = {f"ras/umc/{kind}": Reading.ok(0.0) for kind in ("corrected", "uncorrected")}
    none = Reading.unsupported("the VBIOS does not present ECC (simulated)")
    return Device(
        gpu=gpu,
        vendor="simulated",
        index=index,
        model="Instinct MI50 (simulated)",
        arch="gfx906",
        uuid=f"{0x5EED0000 + index:016x}",
        driver="simulated",
        vbios="113-D1631400-000",
        memory_total_bytes=16 * GIB,
        temperature_sensor=Quantity.TEMPERATURE_EDGE_C,
        slowdown_c=100.0,
        power_cap_w=225.0,
        ecc=Reading.ok(1.0) if ecc else none,
        ecc_baseline=raw if ecc else {},
    )


class World:
    """The cards, their faults, and where each is on the elapsed clock. `faults` are on that clock too."""

    def __init__(
        self,
        clock: VirtualClock,
        protocol: Protocol,
        devices: Sequence[Device],
        faults: Sequence[Fault],
        seed: int,
        start_ms: int = 0,
    ) -> None:
        """`start_ms`: elapsed time now, where an attempt is taken up again."""
        self.clock = clock
        self.protocol = protocol
        self.devices = tuple(devices)
        self.faults = tuple(faults)
        self.boot_at_t0_ms = clock.boot_ms() - start_ms
        self._noise = random.Random(f"soak/simulate/{seed}")
        self.offset_c = {d.gpu: self._noise.uniform(-1.0, 1.0) for d in devices}

    def now_ms(self) -> int:
        return self.clock.boot_ms() - self.boot_at_t0_ms

    def begun(self, kind: str, index: int, at_ms: int) -> Fault | None:
        """The fault that a stretch beginning at `at_ms` is under."""
        return self._fault(
            kind, index, lambda f: f.at_ms <= at_ms and (f.until_ms is None or at_ms < f.until_ms)
        )

    def lasting(self, kind: str, index: int, at_ms: int) -> Fault | None:
        """The fault that a stretch ending at `at_ms` was under."""
        return self._fault(
            kind, index, lambda f: f.at_ms < at_ms and (f.until_ms is None or at_ms <= f.until_ms)
        )

    def _fault(self, kind: str, index: int, holds: Callable[[Fault], bool]) -> Fault | None:
        mine = (f for f in self.faults if f.kind == kind and f.gpu == index)
        return next((f for f in mine if holds(f)), None)

    def last_step_ms(self, index: int, at_ms: int) -> int:
        """When card `index` finished its last step, as of an instant."""
        stuck = self.lasting("hang", index, at_ms) or self.lasting("lost", index, at_ms)
        return at_ms if stuck is None else stuck.at_ms

    def instants(self) -> list[int]:
        """Where a stretch of constant readings has to be cut, and what happens has to be noticed."""
        cuts: set[int] = set()
        for fault in self.faults:
            ends = [fault.at_ms] + ([fault.until_ms] if fault.until_ms is not None else [])
            cuts.update(ends)
            if fault.kind in ("hang", "lost"):
                cuts.update((fault.at_ms + PATIENCE_MS, fault.at_ms + NO_PROGRESS_MS))
        return sorted(cuts)


class SimulatedTelemetry:
    """Every card's polls since the last take, as stretches."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._taken_ms = world.now_ms()
        self._stopped_ms: int | None = None
        self._lost: set[str] = set()

    def take(self) -> Sequence[Poll | Happening]:
        world, every = self._world, self._world.protocol.poll_ms
        begin_ms, now_ms = self._taken_ms, world.now_ms()
        n = ((now_ms if self._stopped_ms is None else self._stopped_ms) - begin_ms) // every
        if n <= 0:
            return []
        self._taken_ms = begin_ms + n * every
        items: list[Poll | Happening] = []
        for index, device in enumerate(world.devices):
            items += self._of_card(index, device, begin_ms, n)
        return items

    def _of_card(self, index: int, device: Device, begin_ms: int, n: int) -> list[Poll | Happening]:
        world = self._world
        last_ms = begin_ms + n * world.protocol.poll_ms
        boot_ms = world.boot_at_t0_ms + last_ms
        if world.begun("lost", index, begin_ms) is not None:
            if device.gpu in self._lost:
                return []
            self._lost.add(device.gpu)
            lost_boot_ms = world.boot_at_t0_ms + begin_ms
            return [
                Happening(
                    "device_lost", lost_boot_ms, device.gpu, "the card is gone from the bus (simulated)"
                )
            ]
        readings, ecc = self._readings(index, device, begin_ms)
        return [Poll(device.gpu, boot_ms, readings, ecc, n)]

    def _readings(
        self, index: int, device: Device, at_ms: int
    ) -> tuple[dict[Quantity, Reading], dict[str, Reading] | None]:
        """Constant from `at_ms` to the next cut."""
        world = self._world
        low = world.begun("utilisation", index, at_ms)
        temperature_c = self._temperature_c(index, device, at_ms)
        values = {
            Quantity.UTILISATION_PCT: low.value if low is not None else 99.0,
            Quantity.TEMPERATURE_EDGE_C: temperature_c,
            Quantity.TEMPERATURE_JUNCTION_C: temperature_c + 15,
            Quantity.TEMPERATURE_MEMORY_C: temperature_c + 8,
            Quantity.POWER_W: 96.0 if low is not None else 221.0,
            Quantity.CLOCK_CORE_HZ: 1.6e9,
            Quantity.CLOCK_MEMORY_HZ: 1.0e9,
            Quantity.MEMORY_TOTAL_BYTES: 16.0 * GIB,
            Quantity.MEMORY_FREE_BYTES: 12.0 * GIB,
            Quantity.THERMAL_THROTTLE: 0.0,
            Quantity.PCIE_WIDTH: 4.0 if low is not None else 16.0,
        }
        readings = {quantity: Reading.ok(value) for quantity, value in values.items()}
        if device.ecc.value is None:
            return readings, None
        errors = sum(f.value for f in world.faults if f.kind == "ecc" and f.gpu == index and f.at_ms <= at_ms)
        ecc = {"ras/umc/corrected": Reading.ok(errors), "ras/umc/uncorrected": Reading.ok(0.0)}
        return readings, ecc

    def _temperature_c(self, index: int, device: Device, at_ms: int) -> float:
        world = self._world
        settled_c = SETTLED_C + world.offset_c[device.gpu]
        warming = min(at_ms / max(world.protocol.warmup_ms, 1), 1.0)
        drift = world.begun("drift", index, at_ms)
        hours = 0.0 if drift is None else (at_ms - drift.at_ms) / world.protocol.duration_ms * 48
        rise_c = 0.0 if drift is None else drift.value * hours
        return round(IDLE_C + (settled_c - IDLE_C) * warming + rise_c, 2)

    def stop(self, deadline_ms: int) -> None:  # noqa: ARG002 - nothing takes any time
        """Nothing runs any more; what was polled up to now can still be taken."""
        self._stopped_ms = self._world.now_ms()


@dataclass(slots=True)
class _CardAtWork:
    index: int
    device: Device
    n_steps: int = 0
    mismatches: int = 0
    flops: int = 0
    is_out: bool = False


class SimulatedLoad:
    """Every card's worker: steps, comparisons, checks, and what the fault plan does to them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cards = [_CardAtWork(i, d) for i, d in enumerate(world.devices)]
        self._shape: Shape | None = None
        self._taken_ms = world.now_ms()
        self._checks: list[tuple[int, int, Shape]] = []  # (done at, index, shape)
        self._events: list[LoadEvent] = [self._ready(card.device) for card in self._cards]

    def _ready(self, device: Device) -> Ready:
        boot_ms = self._world.clock.boot_ms()
        return Ready(device.gpu, boot_ms, "simulated", "there is no card", STEP_MS, {"simulated": "1"})

    def rotate(self, shape: Shape) -> None:
        self._events += self._progress(self._world.now_ms())
        self._shape = shape
        for card in self._cards:
            card.n_steps = card.mismatches = card.flops = 0

    def check(self, index: int) -> None:
        assert self._shape is not None
        self._checks.append((self._world.now_ms() + CHECK_MS, index, self._shape))

    def next_check_ms(self) -> int | None:
        """When the next check will be done, on the elapsed clock."""
        return min((done_ms for done_ms, _, _ in self._checks), default=None)

    def take(self) -> Sequence[LoadEvent]:
        now_ms = self._world.now_ms()
        events, self._events = self._events, []
        if self._shape is None:
            return events
        events += self._faults(self._taken_ms, now_ms)
        events += self._progress(now_ms)
        for done_ms, index, shape in [c for c in self._checks if c[0] <= now_ms]:
            self._checks.remove((done_ms, index, shape))
            boot_ms = self._world.boot_at_t0_ms + done_ms
            working = [card for card in self._cards if not card.is_out]
            events += [
                Checked(c.device.gpu, boot_ms, _healthy_check(c.device, index, shape)) for c in working
            ]
        self._taken_ms = now_ms
        return events

    def _progress(self, now_ms: int) -> list[LoadEvent]:
        if self._shape is None:
            return []
        return [self._progress_of(card, self._shape, now_ms) for card in self._cards if not card.is_out]

    def _progress_of(self, card: _CardAtWork, shape: Shape, now_ms: int) -> Progress:
        world = self._world
        begun_ms = shape.index * world.protocol.rotate_ms
        last_ms = max(world.last_step_ms(card.index, now_ms), begun_ms)
        card.n_steps = max(card.n_steps, int((last_ms - begun_ms) / STEP_MS) + 1)
        low = world.lasting("utilisation", card.index, now_ms)
        n_due = card.n_steps // world.protocol.compare_every
        return Progress(
            gpu=card.device.gpu,
            boot_ms=world.clock.boot_ms(),
            rotation=shape.index,
            n_steps=card.n_steps,
            flops=card.n_steps * 4_000_000_000_000,
            last_step_boot_ms=world.boot_at_t0_ms + last_ms,
            expected_step_ms=STEP_MS,
            rate_ratio=0.4 if low is not None else 1.0,
            golden=f"{shape.seed:016x}",
            n_due=n_due,
            n_compared=n_due,
            mismatches=card.mismatches,
        )

    def _faults(self, begin_ms: int, now_ms: int) -> list[LoadEvent]:
        """What the plan makes of (begin, now] for the workers."""
        events: list[LoadEvent] = []
        for card in self._cards:
            for fault in self._world.faults:
                if fault.gpu == card.index and not card.is_out:
                    events += self._fault(card, fault, begin_ms, now_ms)
        return events

    def _fault(self, card: _CardAtWork, fault: Fault, begin_ms: int, now_ms: int) -> list[LoadEvent]:
        def reached(instant_ms: int) -> bool:
            return begin_ms < instant_ms <= now_ms

        def happening(kind: str, at_ms: int, detail: str) -> Happening:
            return Happening(
                kind, self._world.boot_at_t0_ms + at_ms, card.device.gpu, f"{detail} (simulated)"
            )

        if fault.kind == "bit-flip" and reached(fault.at_ms):
            card.mismatches += 1
            return [happening("mismatch", fault.at_ms, "dq, head 3, rows 128-191: 1 bit, transient")]
        if fault.kind == "hang" and reached(fault.at_ms + NO_PROGRESS_MS):
            return [
                happening("no_progress", fault.at_ms + NO_PROGRESS_MS, "no step finished for 60 s"),
                happening("worker_restarted", fault.at_ms + NO_PROGRESS_MS, "restart 1 of 3"),
            ]
        if fault.kind == "lost" and reached(fault.at_ms + PATIENCE_MS):
            card.is_out = True
            return [happening("device_error", fault.at_ms + PATIENCE_MS, "the runtime lost the device")]
        return []

    def stop(self, deadline_ms: int) -> None:  # noqa: ARG002 - the port's signature
        """Nothing runs; what was done up to now can still be taken."""
        self._events += self._progress(self._world.now_ms())


def _healthy_check(device: Device, index: int, shape: Shape) -> GradientCheck:
    def error(tensor: str, max_abs: float) -> TensorError:
        return TensorError(tensor, 4 * shape.seq_len * 128, 0, max_abs, 3e-4, 2.0)

    errors = (error("o", 3e-4), error("dq", 4.2e-4), error("dk", 3.2e-4), error("dv", 1.8e-3))
    slices = tuple((0, (index + i) % 16) for i in range(4))
    return GradientCheck(
        0, device.gpu, index, 0, 0, shape.index, shape.seq_len, shape.causal, shape.seed, slices, errors,
        duration_ms=CHECK_MS, golden_proved=True,
    )  # fmt: skip


def without_ecc(devices: Sequence[Device], faults: Sequence[Fault]) -> tuple[Device, ...]:
    """The devices, those with the fault `no-ecc` stripped of their error counters."""
    bare = {f.gpu for f in faults if f.kind == "no-ecc"}
    return tuple(
        replace(d, ecc=simulated_device(i, ecc=False).ecc, ecc_baseline={}) if i in bare else d
        for i, d in enumerate(devices)
    )
