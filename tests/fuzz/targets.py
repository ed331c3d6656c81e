"""What is fuzzed: every parser of what a machine says. A target takes bytes and raises at a broken promise.

The promises: no exception but those that are meant (a card is gone, a backend is absent), no absence that
becomes a value, nothing impossible, no reason or name that fills a page.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pynvml

from soak.core.records import Quantity, Reading, ReadingStatus
from soak.doctor.look_amd import look_at_amd
from soak.doctor.pseudonyms import Pseudonyms
from soak.telemetry import gpu_metrics
from soak.telemetry.amd import AmdBackend
from soak.telemetry.cpu import CpuBackend
from soak.telemetry.kernel_log import KernelLog, classified, message_of
from soak.telemetry.nvidia import NvidiaBackend
from soak.telemetry.nvml_record import Replay
from soak.telemetry.pci import address_of, is_address
from soak.telemetry.plausible import BOUNDS, COUNT_MAX
from soak.telemetry.sensors import Backend, CardGone, Sensor, Unavailable
from soak.telemetry.wire import order_of, reports_decoder

CAPTURES = Path(__file__).parents[1] / "captures"
MI50 = CAPTURES / "amd__instinct-mi50-32gb__by-hand/root"
H200 = CAPTURES / "nvidia__h200__580.159.04/root"
GPU = "0000:33:00.0"
TEXT_MAX = 500  # characters of a reason, a note, a name

Target = Callable[[bytes], None]
Q = Quantity


# -- promises ------------------------------------------------------------------------------------------------


def read_all(backend: Backend) -> None:
    """Everything that a backend can be asked, twice."""
    with suppress(CardGone, Unavailable):
        for gpu in backend.find():
            sensor = backend.open(gpu)
            device = sensor.describe()
            assert device.memory_total_bytes is None or device.memory_total_bytes > 0
            told = [device.model, device.uuid, device.vbios, device.driver, *device.notes, device.ecc.reason]
            assert all(len(text) < TEXT_MAX for text in told if text is not None)
            read_twice(sensor)


def read_twice(sensor: Sensor) -> None:
    for _ in range(2):
        for quantity, reading in sensor.read().items():
            assert_sound(reading, *BOUNDS[quantity])
        for reading in (sensor.read_ecc() or {}).values():
            assert_sound(reading, 0, COUNT_MAX)


def assert_sound(reading: Reading, low: float, high: float) -> None:
    if reading.status is ReadingStatus.OK:
        assert reading.value is not None
        assert low <= reading.value <= high
    else:
        assert reading.value is None
        assert 0 < len(reading.reason) < TEXT_MAX


# -- machines of files ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """A folder that stands for `/`, and the files in it that may be spoilt."""

    root: Path
    files: tuple[Path, ...]

    @contextmanager
    def spoilt(self, data: bytes) -> Iterator[tuple[Path, bytes]]:
        """One file holds other content for a while: the first two bytes say which, the rest is what."""
        path = self.files[int.from_bytes(data[:2], "big") % len(self.files)]
        before = path.read_bytes()
        path.write_bytes(data[2:])
        try:
            yield path, data[2:]
        finally:
            path.write_bytes(before)


@cache
def machine_of(kind: str) -> Machine:
    """A copy in memory where there is a file system for that; it goes with the process."""
    folder = tempfile.TemporaryDirectory(
        prefix="soak-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    )
    _KEPT.append(folder)
    root = Path(folder.name) / "root"
    if kind == "amd":
        shutil.copytree(MI50, root, symlinks=True)
    else:
        for name, text in CPU_FILES.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(text)
    return Machine(root, tuple(sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())))


_KEPT: list[tempfile.TemporaryDirectory[str]] = []

CPU_FILES = {
    "proc/stat": b"cpu0 1 0 0 1 0 0 0 0\n",
    "proc/meminfo": b"MemTotal: 100 kB\nMemAvailable: 90 kB\n",
    "proc/cpuinfo": b"model name : a CPU\ncpu MHz : 2000.5\n",
    "proc/self/cgroup": b"0::/soak\n3:memory,cpu:/soak\n",
    "proc/self/mountinfo": b"30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    b"31 23 0:27 / /v1 rw - cgroup cgroup rw,cpu,memory\n",
    "sys/fs/cgroup/soak/cpu.max": b"10000 100000\n",
    "sys/fs/cgroup/soak/cpu.stat": b"usage_usec 5\n",
    "sys/fs/cgroup/soak/memory.max": b"50000\n",
    "sys/fs/cgroup/soak/memory.current": b"20000\n",
    "v1/soak/cpu.cfs_quota_us": b"5000\n",
    "v1/soak/cpu.cfs_period_us": b"100000\n",
    "v1/soak/cpuacct.usage": b"5\n",
    "v1/soak/memory.limit_in_bytes": b"40000\n",
    "v1/soak/memory.usage_in_bytes": b"4000\n",
    "sys/class/hwmon/hwmon0/name": b"coretemp\n",
    "sys/class/hwmon/hwmon0/temp1_label": b"Package id 0\n",
    "sys/class/hwmon/hwmon0/temp1_input": b"50000\n",
    "sys/class/hwmon/hwmon0/temp1_crit": b"100000\n",
    "sys/devices/system/edac/mc/mc0/ce_count": b"0\n",
    "sys/devices/system/edac/mc/mc0/ue_count": b"0\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": b"2000000\n",
    "sys/class/powercap/intel-rapl:0/name": b"package-0\n",
    "sys/class/powercap/intel-rapl:0/max_energy_range_uj": b"1000000\n",
    "sys/class/powercap/intel-rapl:0/energy_uj": b"5\n",
}
# Files that hold one number and nothing else, by the quantity that is read of them.
ONE_NUMBER: Mapping[str, Quantity] = {
    "gpu_busy_percent": Q.UTILISATION_PCT,
    "mem_busy_percent": Q.MEMORY_BUSY_PCT,
    "mem_info_vram_total": Q.MEMORY_TOTAL_BYTES,
    "mem_info_vram_used": Q.MEMORY_FREE_BYTES,
    "mem_info_gtt_used": Q.MEMORY_GTT_USED_BYTES,
    "pcie_replay_count": Q.PCIE_REPLAYS,
    "temp1_input": Q.TEMPERATURE_EDGE_C,
    "temp2_input": Q.TEMPERATURE_JUNCTION_C,
    "temp3_input": Q.TEMPERATURE_MEMORY_C,
    "power1_input": Q.POWER_W,
    "freq1_input": Q.CLOCK_CORE_HZ,
}


def amd_file(data: bytes) -> None:
    """Any file of an amdgpu card holds anything, before and after the card was opened."""
    machine = machine_of("amd")
    backend = AmdBackend(machine.root)
    opened = backend.open(GPU)
    with machine.spoilt(data) as (path, content):
        read_all(backend)
        with suppress(KeyError):
            look_at_amd(machine.root, GPU)
        with suppress(CardGone):
            readings = opened.read()
            quantity = ONE_NUMBER.get(path.name)
            if quantity is not None and not re.fullmatch(rb"[+-]?\d{1,20}", content.strip(b"\0 \t\r\n")):
                assert readings[quantity].value is None, "an absence became a value"
            read_twice(opened)


def cpu_file(data: bytes) -> None:
    """Any file of a CPU's machine holds anything."""
    machine = machine_of("cpu")
    opened = CpuBackend(machine.root, lambda: {0, 1}).open("cpu")
    with machine.spoilt(data):
        read_all(CpuBackend(machine.root, lambda: {0, 1}))
        read_twice(opened)


# -- answers of NVML -----------------------------------------------------------------------------------------


@cache
def _answers() -> dict[str, list[Any]]:
    answers: dict[str, list[Any]] = json.loads((H200 / "nvml.json").read_bytes())
    return answers


def nvml_answer(data: bytes) -> None:
    """NVML answers any call with any number or text of the type that it has, or with any of its errors."""
    answers = _answers()
    calls = sorted(call for call in answers if call.startswith("nvmlDeviceGet") and "Handle" not in call)
    call = calls[int.from_bytes(data[:1], "big") % len(calls)]
    spoilt = copy.copy(answers) | {call: [_spoilt(answer, iter(data[1:])) for answer in answers[call]]}
    read_all(NvidiaBackend(H200, Replay(pynvml, spoilt)))


def _spoilt(answer: Any, rest: Iterator[int]) -> Any:
    choice = next(rest, 0)
    if choice < 24:
        return {"error": next(rest, 3) if choice else 999}
    return _changed(answer, rest)


def _changed(value: Any, rest: Iterator[int]) -> Any:
    """Of the same type and shape: every number and text may be another."""
    if isinstance(value, dict):
        return {key: value[key] if key == "handle" else _changed(value[key], rest) for key in value}
    if isinstance(value, list):
        return [_changed(item, rest) for item in value]
    kind = next(rest, 0)
    if kind < 128 or isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        raw = bytes(next(rest, 0) for _ in range(8))
        return int.from_bytes(raw[: 1 + kind % 8], "little", signed=kind % 3 == 0)
    if isinstance(value, float):
        return (float("nan"), float("inf"), -1.0, 1e300)[kind % 4]
    return bytes(next(rest, 0) for _ in range(kind % 40)).decode("utf-8", "replace")


# -- texts and tables ----------------------------------------------------------------------------------------


def metrics_table(data: bytes) -> None:
    """A `gpu_metrics` of any bytes; what decodes is finite, and not a field full of ones."""
    told = gpu_metrics.decoded(data)
    if isinstance(told, Reading):
        assert_sound(told, 0, 0)
        return
    assert all(0 <= value < 2**32 - 1 for value in told.values.values())
    for is_vega20 in (False, True):
        flags = gpu_metrics.throttled(told, is_vega20=is_vega20)
        assert flags is None or len(flags) == 2


def kernel_line(data: bytes) -> None:
    """Any record of a kernel log is about the run's card, about the host, or about nothing."""
    text = data.decode("utf-8", "replace")
    about = classified(message_of(text), [GPU])
    assert about is None or about[0] in (None, GPU)
    told: list[Any] = []
    log = KernelLog(Path("kmsg"), [GPU], told.append, lambda: 1)
    log.take_in(text)
    log.take_in(text)
    assert len(told) == (about is not None), "the same line is told once"
    assert all(len(str(happening.data)) < 3 * TEXT_MAX for happening in told)


def pci_address(data: bytes) -> None:
    """A text is an address in the one form that is used, or none."""
    address = address_of(data.decode("utf-8", "replace"))
    assert address is None or (is_address(address) and address_of(address) == address)


def wire_line(data: bytes) -> None:
    """A line of the sampler, or of its parent, is a message or is refused."""
    for decode in (reports_decoder().decode, order_of):
        with suppress(msgspec.DecodeError):
            decode(data)


def pseudonym(data: bytes) -> None:
    """A serial number that was learned, and any UUID, does not stand in a text that was hidden."""
    secret, _, text = data.decode("utf-8", "replace").partition("\n")
    names = Pseudonyms()
    names.learn([secret])
    hidden = names.hide_in_log(f"{text} {secret} {text}")
    if re.fullmatch(r"[0-9A-F]{3,8}-[0-9A-F]{4,9}", secret) and set(secret) - set("0-"):
        assert secret not in re.split(r"[^0-9A-Za-z-]", hidden) or names.hide(secret) == secret
    for uuid in set(_UUID.findall(text)):
        assert uuid.startswith("00000000-") or uuid not in _UUID.findall(hidden)


_UUID = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE)


TARGETS: Mapping[str, Target] = {
    target.__name__: target
    for target in (
        amd_file,
        cpu_file,
        nvml_answer,
        metrics_table,
        kernel_line,
        pci_address,
        wire_line,
        pseudonym,
    )
}
