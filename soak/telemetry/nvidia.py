"""NVIDIA cards through NVML (nvidia-ml-py), one session held open: volatile counters live as long as it does.

A card is its PCI address: NVML's indices shift when a card is lost, and CUDA orders them otherwise.
"""

from __future__ import annotations

import importlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from soak.core.records import Device, Quantity, Reading
from soak.telemetry.gpm import QUANTITIES, Activity
from soak.telemetry.nvidia_ecc import NvidiaCounters
from soak.telemetry.nvml import Nvml, Session
from soak.telemetry.nvml_record import ANSWERS, Replay
from soak.telemetry.pci import address_of
from soak.telemetry.plausible import judged
from soak.telemetry.sensors import CardGone, Sensor, Unavailable

Q = Quantity
GTS_OF_GENERATION = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0, 7: 128.0}
# nvmlClocksEventReasons: the bits that mean heat, and those that mean power. HwSlowdown comes with the one of
# the two that caused it on cards that tell them apart; alone it is heat.
_SW_THERMAL, _HW_THERMAL, _HW_SLOWDOWN = 0x20, 0x40, 0x08
_SW_POWER_CAP, _HW_POWER_BRAKE = 0x04, 0x80
_CARDS_MAX = 64
ENERGY_EVERY_S = 10.0
_MIG_ON = "MIG is on: NVML tells no utilisation of a part of a card; switch it off (nvidia-smi -mig 0)"


class NvidiaBackend:
    """Every card that NVML has: the machine's own (`root` is `/`), or what its `nvml.json` has recorded."""

    def __init__(self, root: Path, nvml: Nvml | None = None) -> None:
        self._root = root
        self._nvml = nvml
        self._starting = threading.Lock()
        self._started = False

    def find(self) -> Sequence[str]:
        nvml = self.session()
        try:
            n_cards = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise Unavailable(f"NVML does not count its cards: {error}") from error
        found = []
        for index in range(min(n_cards, _CARDS_MAX)):
            try:
                told = nvml.nvmlDeviceGetPciInfo(nvml.nvmlDeviceGetHandleByIndex(index)).busId
            except nvml.NVMLError:
                continue  # a lost card keeps its number and nothing else; whoever expects it will miss it
            address = address_of(told.decode() if isinstance(told, bytes) else told)
            if address is not None:
                found.append(address)
        return tuple(found)

    def open(self, gpu: str) -> Sensor:
        nvml = self.session()
        try:
            handle = nvml.nvmlDeviceGetHandleByPciBusId(gpu)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_GpuIsLost, nvml.NVMLError_InvalidArgument) as error:
            raise CardGone(f"gone from its driver: {error}") from error
        except nvml.NVMLError as error:
            raise Unavailable(f"NVML does not open the card: {error}") from error
        return NvidiaSensor(nvml, gpu, handle)

    def session(self) -> Nvml:
        """NVML, started once. Raises Unavailable with what to do."""
        with self._starting:
            nvml = self._nvml = self._nvml or library(self._root)
            if self._started:
                return nvml
            try:
                nvml.nvmlInit()
            except nvml.NVMLError_LibraryNotFound as error:
                raise Unavailable("no NVIDIA driver: libnvidia-ml.so.1 is not installed") from error
            except nvml.NVMLError_DriverNotLoaded as error:
                raise Unavailable("the NVIDIA driver is not loaded") from error
            except nvml.NVMLError_LibRmVersionMismatch as error:
                raise Unavailable(
                    "NVIDIA's library and driver differ in version: reload the driver"
                ) from error
            except nvml.NVMLError as error:
                raise Unavailable(f"NVML does not start: {error}") from error
            self._started = True
            return nvml


class NvidiaSensor:
    """One card."""

    def __init__(self, nvml: Nvml, gpu: str, handle: Any) -> None:
        self._session = Session(nvml)
        self._nvml = nvml
        self._gpu = gpu
        self._handle = handle
        self._seen_us = 0  # time stamp of the last utilisation sample taken
        self._mig = self._session.fact(lambda: nvml.nvmlDeviceGetMigMode(handle)[0]) == 1
        self._new_samples()  # what came before the first poll is not of it
        self._activity = Activity(nvml, handle)
        self._energy_read: tuple[float, Reading | None] = (0.0, None)
        self._throttled_ns: dict[int, int] = {}  # time counters at the last poll, by field
        self._ecc = NvidiaCounters(self._session, handle)

    def describe(self) -> Device:
        nvml, handle = self._nvml, self._handle
        readings = self.read()
        counters = self.read_ecc() or {}
        core = readings[Q.TEMPERATURE_CORE_C]
        total = readings[Q.MEMORY_TOTAL_BYTES].value
        capability = self._session.fact(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
        cap_mw = self._session.fact(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        return Device(
            gpu=self._gpu,
            vendor="nvidia",
            index=self._session.fact(lambda: nvml.nvmlDeviceGetIndex(handle)) or 0,
            model=self._session.text(lambda: nvml.nvmlDeviceGetName(handle)),
            arch=f"sm_{capability[0]}{capability[1]}" if capability else None,
            uuid=self._session.text(lambda: nvml.nvmlDeviceGetUUID(handle)),
            driver=self._session.text(nvml.nvmlSystemGetDriverVersion),
            vbios=self._session.text(lambda: nvml.nvmlDeviceGetVbiosVersion(handle)),
            memory_total_bytes=None if total is None else int(total),
            temperature_sensor=Q.TEMPERATURE_CORE_C,
            slowdown_c=self._limit_c("SLOWDOWN", core),
            power_cap_w=cap_mw / 1000 if cap_mw else None,
            supported=readings,
            ecc=self._ecc.support(counters),
            ecc_baseline=counters,
            notes=tuple(self._notes(counters, self._limit_c("SHUTDOWN", core))),
        )

    def read(self) -> Mapping[Quantity, Reading]:
        nvml, handle = self._nvml, self._handle
        clock, generation = nvml.nvmlDeviceGetClockInfo, nvml.nvmlDeviceGetCurrPcieLinkGeneration
        readings = {
            Q.UTILISATION_PCT: self._utilisation(),
            Q.MEMORY_BUSY_PCT: self._ask(
                Q.MEMORY_BUSY_PCT, lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory
            ),
            Q.TEMPERATURE_CORE_C: self._ask(Q.TEMPERATURE_CORE_C, self._core_temperature),
            Q.TEMPERATURE_MEMORY_C: self._ask(
                Q.TEMPERATURE_MEMORY_C, lambda: self._field(nvml.NVML_FI_DEV_MEMORY_TEMP)
            ),
            Q.POWER_W: self._ask(Q.POWER_W, lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            Q.CLOCK_CORE_HZ: self._ask(Q.CLOCK_CORE_HZ, lambda: clock(handle, nvml.NVML_CLOCK_SM) * 1e6),
            Q.CLOCK_MEMORY_HZ: self._ask(Q.CLOCK_MEMORY_HZ, lambda: clock(handle, nvml.NVML_CLOCK_MEM) * 1e6),
            Q.PCIE_WIDTH: self._ask(Q.PCIE_WIDTH, lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            Q.PCIE_SPEED_GTS: self._ask(
                Q.PCIE_SPEED_GTS, lambda: GTS_OF_GENERATION.get(generation(handle), 0.0)
            ),
            Q.PCIE_REPLAYS: self._ask(Q.PCIE_REPLAYS, lambda: nvml.nvmlDeviceGetPcieReplayCounter(handle)),
            Q.ENERGY_J: self._energy(),
        }
        return readings | self._memory() | self._throttle() | self._at_work()

    def read_ecc(self) -> Mapping[str, Reading] | None:
        return self._ecc.read()

    def _utilisation(self) -> Reading:
        """The mean of NVML's own samples since the last poll; its last figure where there is none."""
        if self._mig:
            return Reading.unsupported(_MIG_ON)
        samples = self._new_samples()
        if not samples:
            rates = self._nvml.nvmlDeviceGetUtilizationRates
            return self._ask(Q.UTILISATION_PCT, lambda: rates(self._handle).gpu)
        readings = [judged(Q.UTILISATION_PCT, sample) for sample in samples]
        impossible = [reading for reading in readings if reading.value is None]
        return impossible[0] if impossible else Reading.ok(sum(samples) / len(samples))

    def _new_samples(self) -> list[int]:
        nvml = self._nvml
        samples = self._session.fact(
            lambda: nvml.nvmlDeviceGetSamples(self._handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._seen_us)[
                1
            ]
        )
        new = [sample for sample in samples or () if sample.timeStamp > self._seen_us]
        self._seen_us = max((sample.timeStamp for sample in new), default=self._seen_us)
        return [sample.sampleValue.uiVal for sample in new]

    def _core_temperature(self) -> int:
        nvml, handle = self._nvml, self._handle
        told = self._session.newest(
            lambda: nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU),  # from driver 560 on
            lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        )
        return int(told)

    def _energy(self) -> Reading:
        """The counter as it was at most ENERGY_EVERY_S ago: the driver works 5 ms for it on an H200."""
        read_s, reading = self._energy_read
        now_s = time.monotonic()
        if reading is None or reading.value is None or now_s - read_s >= ENERGY_EVERY_S:
            ask = self._nvml.nvmlDeviceGetTotalEnergyConsumption
            reading = self._ask(Q.ENERGY_J, lambda: ask(self._handle) / 1000)
            self._energy_read = now_s, reading
        return reading

    def _memory(self) -> dict[Quantity, Reading]:
        """What the driver reserves is not free; v2 tells it apart from what is used, v1 adds the two."""
        nvml, handle = self._nvml, self._handle
        info: list[Any] = []

        def total() -> int:
            told = self._session.newest(
                lambda: nvml.nvmlDeviceGetMemoryInfo(
                    handle, version=nvml.nvmlMemory_v2
                ),  # from driver 510 on
                lambda: nvml.nvmlDeviceGetMemoryInfo(handle),
            )
            info.append(told)
            return int(told.total)

        reading = self._ask(Q.MEMORY_TOTAL_BYTES, total)
        if not info:
            return {Q.MEMORY_TOTAL_BYTES: reading, Q.MEMORY_FREE_BYTES: reading}
        return {Q.MEMORY_TOTAL_BYTES: reading, Q.MEMORY_FREE_BYTES: judged(Q.MEMORY_FREE_BYTES, info[0].free)}

    def _at_work(self) -> dict[Quantity, Reading]:
        try:
            return self._activity.read()
        except self._nvml.NVMLError as error:  # a lost card has raised before
            return dict.fromkeys(QUANTITIES, Reading.unreadable(f"NVML: {error}"))

    def _throttle(self) -> dict[Quantity, Reading]:
        """Whether the card slowed itself since the last poll: by its reasons now, and its time counters."""
        nvml = self._nvml
        asked: list[int] = []

        def heat() -> int:
            reasons = self._session.newest(
                lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle),  # from driver 535 on
                lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle),
            )
            asked.append(reasons)
            slowed = asked[0] & _HW_SLOWDOWN and not asked[0] & _HW_POWER_BRAKE
            return int(bool(asked[0] & (_SW_THERMAL | _HW_THERMAL) or slowed))

        reading = self._ask(Q.THERMAL_THROTTLE, heat)
        slowed_before = [self._has_slowed(field) for field in _throttle_fields(nvml)]
        if not asked:
            return {Q.THERMAL_THROTTLE: reading, Q.POWER_THROTTLE: reading}
        by_power = bool(asked[0] & (_SW_POWER_CAP | _HW_POWER_BRAKE))
        flags = bool(reading.value) or slowed_before[0], by_power or slowed_before[1]
        heat_reading, power_reading = (Reading.ok(float(flag)) for flag in flags)
        return {Q.THERMAL_THROTTLE: heat_reading, Q.POWER_THROTTLE: power_reading}

    def _has_slowed(self, field_id: int) -> bool:
        """Whether a counter of slowed nanoseconds has risen since the last poll."""
        now_ns = self._session.fact(lambda: self._field(field_id, "ullVal"))
        if now_ns is None:
            return False
        last_ns = self._throttled_ns.get(field_id, now_ns)
        self._throttled_ns[field_id] = now_ns
        return bool(now_ns > last_ns)

    def _field(self, field_id: int, kind: str = "uiVal") -> int:
        (value,) = self._nvml.nvmlDeviceGetFieldValues(self._handle, [field_id])
        if value.nvmlReturn != self._nvml.NVML_SUCCESS:
            raise self._nvml.NVMLError(value.nvmlReturn)
        return int(getattr(value.value, kind))

    def _signed_field(self, field_id: int) -> int:
        value = self._field(field_id)
        return value - (1 << 32) if value >= 1 << 31 else value

    def _limit_c(self, name: str, now: Reading) -> float | None:
        """Where the card slows itself down (SLOWDOWN) or off (SHUTDOWN). Hopper tells only how far that is
        from now."""
        nvml, handle, fact = self._nvml, self._handle, self._session.fact
        kind = getattr(nvml, f"NVML_TEMPERATURE_THRESHOLD_{name}")
        threshold = fact(lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, kind))
        if threshold:
            return judged(Q.TEMPERATURE_CORE_C, threshold).value
        margin = fact(lambda: nvml.nvmlDeviceGetMarginTemperature(handle))
        beyond = fact(lambda: self._signed_field(getattr(nvml, f"NVML_FI_DEV_TEMPERATURE_{name}_TLIMIT")))
        if now.value is None or margin is None or beyond is None:
            return None
        # Both count down, the margin to 0 and the limit on below it.
        return judged(Q.TEMPERATURE_CORE_C, now.value + margin - beyond).value

    def _notes(self, counters: Mapping[str, Reading], shutdown_c: float | None) -> Iterator[str]:
        """What the report should say beside the readings."""
        if self._mig:
            yield _MIG_ON
        if shutdown_c is not None:
            yield f"shuts itself down at {shutdown_c:g} °C"
        yield from self._ecc.notes(counters)

    def _ask(self, quantity: Quantity, question: Callable[[], float]) -> Reading:
        return self._session.guarded(lambda: judged(quantity, question()))


def library(root: Path) -> Nvml:
    """pynvml, or the answers of a recorded machine in its place. Raises Unavailable."""
    pynvml = importlib.import_module("pynvml")
    if root == Path("/"):
        return pynvml
    try:
        answers = json.loads((root / ANSWERS).read_bytes())
    except FileNotFoundError as error:
        raise Unavailable("no answers of NVML were recorded of this machine") from error
    except (OSError, ValueError) as error:
        raise Unavailable(f"the answers of NVML in {root / ANSWERS} cannot be read: {error}") from error
    if not isinstance(answers, dict) or not all(isinstance(told, list) for told in answers.values()):
        raise Unavailable(f"{root / ANSWERS} holds no answers of NVML: lists of answers by call are wanted")
    return Replay(pynvml, answers)


def _throttle_fields(nvml: Nvml) -> tuple[int, int]:
    """Counters of nanoseconds slowed for heat and for power. The newer, finer ones have changed their numbers
    between drivers, these have not."""
    return nvml.NVML_FI_DEV_PERF_POLICY_THERMAL, nvml.NVML_FI_DEV_PERF_POLICY_POWER
