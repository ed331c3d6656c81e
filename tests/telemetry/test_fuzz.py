"""Whatever a file holds: no exception but CardGone, no absence that becomes a value, nothing impossible."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from soak.core.records import Reading, ReadingStatus
from soak.telemetry.amd import AmdBackend
from soak.telemetry.cpu import CpuBackend
from soak.telemetry.kernel_log import classified, message_of
from soak.telemetry.pci import address_of
from soak.telemetry.plausible import BOUNDS, COUNT_MAX
from soak.telemetry.sensors import Backend, CardGone, Unavailable

MI50 = Path(__file__).parents[1] / "captures/amd__instinct-mi50-32gb__by-hand/root"
NASTY = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"", b"\n", b"\0" * 4096, b"N/A", b"[N/A]", b"-1", b"9" * 4096, b"ue: -1\nce: 99\n"]),
    st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
)  # fmt: skip
FUZZ = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=150
)

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


def read_all(backend: Backend) -> None:
    with suppress(CardGone, Unavailable):
        for gpu in backend.find():
            sensor = backend.open(gpu)
            device = sensor.describe()
            assert device.memory_total_bytes is None or device.memory_total_bytes > 0
            told = [device.model, device.uuid, device.vbios, device.driver, *device.notes, device.ecc.reason]
            assert all(len(text) < 500 for text in told if text is not None)
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
        assert 0 < len(reading.reason) < 500


@pytest.fixture
def mi50(tmp_path: Path) -> tuple[Path, list[Path]]:
    root = Path(shutil.copytree(MI50, tmp_path / "mi50", symlinks=True))
    return root, sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())


@FUZZ
@given(data=st.data(), content=NASTY)
def test_any_file_of_an_amd_card(mi50, data, content):
    root, files = mi50
    path = data.draw(st.sampled_from(files), label="file")
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        read_all(AmdBackend(root))
    finally:
        path.write_bytes(before)


@pytest.fixture
def cpu(tmp_path: Path) -> Path:
    for name, text in CPU_FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text)
    return tmp_path


@settings(FUZZ, max_examples=80)
@given(data=st.data(), content=NASTY)
def test_any_file_of_a_cpu(cpu, data, content):
    name = data.draw(st.sampled_from(sorted(CPU_FILES)), label="file")
    (cpu / name).write_bytes(content)
    try:
        read_all(CpuBackend(cpu, lambda: {0, 1}))
    finally:
        (cpu / name).write_bytes(CPU_FILES[name])


@given(st.text(max_size=300))
def test_any_line_of_a_kernel_log(text):
    about = classified(message_of(text), ["0000:33:00.0"])
    assert about is None or about[0] in (None, "0000:33:00.0")


@given(st.text(max_size=30))
def test_any_text_for_an_address(text):
    address = address_of(text)
    assert address is None or (len(address) >= 12 and address == address.lower())
