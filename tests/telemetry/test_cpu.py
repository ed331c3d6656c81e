"""The CPU backend over small machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from soak.core.records import Quantity, Reading, ReadingStatus
from soak.telemetry.cpu import CpuBackend, CpuSensor

SECOND_NS = 1_000_000_000
MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:   12000000 kB\n"


def stat(*cores: tuple[int, ...]) -> str:
    lines = [f"cpu{index} " + " ".join(map(str, ticks)) for index, ticks in enumerate(cores)]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 1 2 3", "ctxt 5"]) + "\n"


class Time:
    ns = 5 * SECOND_NS

    def __call__(self) -> int:
        return self.ns


def sensor(root: Path, cores: set[int], now: Time | None = None) -> CpuSensor:
    opened = CpuBackend(root, lambda: cores, now or Time()).open("cpu")
    assert isinstance(opened, CpuSensor)
    return opened


def utilisation(of: CpuSensor) -> Reading:
    return of.read()[Quantity.UTILISATION_PCT]


# user nice system idle iowait irq softirq steal guest guest_nice
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((0, 0, 0, 0, 0, 0, 0, 0, 0, 0), (95, 0, 0, 5, 0, 0, 0, 0, 0, 0), 95.0),
        ((0, 0, 0, 0, 0, 0, 0, 0, 0, 0), (40, 0, 10, 30, 20, 0, 0, 0, 0, 0), 50.0),  # iowait is idle
        (
            (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
            (50, 0, 0, 50, 0, 0, 0, 0, 50, 0),
            50.0,
        ),  # a guest is in user already
        ((0, 0, 0, 0, 0, 0, 0, 0, 0, 0), (10, 10, 10, 50, 0, 10, 10, 0, 0, 10), 50.0),
        ((0, 0, 0, 0, 50, 0, 0, 0, 0, 0), (100, 0, 0, 0, 45, 0, 0, 0, 0, 0), 100.0),  # iowait may go back
    ],
)
def test_utilisation_is_non_idle_time(tree, before, after, expected):
    root = tree({"proc/stat": stat(before), "proc/meminfo": MEMINFO})
    subject = sensor(root, {0})
    tree({"proc/stat": stat(after)})
    assert utilisation(subject) == Reading.ok(expected)


def test_utilisation_is_of_the_allowed_cores(tree):
    idle, busy = (0, 0, 0, 100, 0, 0, 0, 0), (100, 0, 0, 0, 0, 0, 0, 0)
    nothing = (0, 0, 0, 0, 0, 0, 0, 0)
    for cores, expected in (({0}, 0.0), ({1}, 100.0), ({1, 2}, 100.0), ({0, 1, 2, 3}, 50.0)):
        tree({"proc/stat": stat(nothing, nothing, nothing, nothing), "proc/meminfo": MEMINFO})
        subject = sensor(tree({}), cores)
        tree({"proc/stat": stat(idle, busy, busy, idle)})
        assert utilisation(subject) == Reading.ok(expected)


@pytest.mark.parametrize("text", ["", "\0" * 4096, "cpu0", "cpu0 a b c d", "cpu0 1 2", "garbage\n" * 100_000])
def test_a_broken_proc_stat_is_unreadable_and_no_zero(tree, text):
    subject = sensor(tree({"proc/stat": text, "proc/meminfo": MEMINFO}), {0})
    assert utilisation(subject).status is ReadingStatus.UNREADABLE


def test_no_time_between_two_reads_is_unreadable(tree):
    subject = sensor(tree({"proc/stat": stat((1, 0, 0, 1, 0, 0, 0, 0)), "proc/meminfo": MEMINFO}), {0})
    assert utilisation(subject).status is ReadingStatus.UNREADABLE


def cgroup2(limits: dict[str, str], own: str = "/soak") -> dict[str, str]:
    return {
        "proc/stat": stat(*[(0, 0, 0, 100, 0, 0, 0, 0)] * 4),
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": f"0::{own}\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
    } | {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}


def test_a_v2_quota_below_the_cores_is_the_whole(tree):
    files = {"soak/cpu.max": "200000 100000\n", "soak/cpu.stat": "usage_usec 1000000\nuser_usec 1\n"}
    now = Time()
    subject = sensor(tree(cgroup2(files)), {0, 1, 2, 3}, now)
    now.ns += SECOND_NS
    tree(cgroup2({"soak/cpu.stat": "usage_usec 2500000\nuser_usec 1\n"}))
    assert utilisation(subject) == Reading.ok(75.0)
    now.ns += SECOND_NS
    tree(cgroup2({"soak/cpu.stat": "usage_usec 4600000\nuser_usec 1\n"}))  # a burst: 2.1 s in a second of 2
    assert utilisation(subject) == Reading.ok(100.0)
    assert any("limited to 2 cores by cgroup v2" in note for note in subject.describe().notes)


def test_a_v2_limit_may_sit_on_an_ancestor_and_the_narrowest_counts(tree):
    files = {
        "a/cpu.max": "100000 100000\n",
        "a/cpu.stat": "usage_usec 0\n",
        "a/b/cpu.max": "max 100000\n",
        "a/b/cpu.stat": "usage_usec 0\n",
        "a/memory.max": "8000000000\n",
        "a/memory.current": "3000000000\n",
        "a/memory.stat": "anon 1\ninactive_file 1000000000\n",
        "a/b/memory.max": "max\n",
    }
    now = Time()
    subject = sensor(tree(cgroup2(files, "/a/b")), {0, 1}, now)
    now.ns += SECOND_NS
    tree(cgroup2({"a/cpu.stat": "usage_usec 500000\n"}, "/a/b"))
    readings = subject.read()
    assert readings[Quantity.UTILISATION_PCT] == Reading.ok(50.0)
    assert readings[Quantity.MEMORY_TOTAL_BYTES] == Reading.ok(8e9)
    assert readings[Quantity.MEMORY_FREE_BYTES] == Reading.ok(6e9)  # the page cache can be dropped


def test_a_quota_wider_than_the_allowed_cores_changes_nothing(tree):
    files = {"soak/cpu.max": "400000 100000\n", "soak/cpu.stat": "usage_usec 0\n"}
    subject = sensor(tree(cgroup2(files)), {0, 1})
    tree({"proc/stat": stat(*[(100, 0, 0, 100, 0, 0, 0, 0)] * 4)})
    assert utilisation(subject) == Reading.ok(100.0)


def cgroup1(own: str, mounted: str, limits: dict[str, str]) -> dict[str, str]:
    return {
        "proc/stat": stat(*[(0, 0, 0, 100, 0, 0, 0, 0)] * 4),
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": f"9:memory:{own}\n3:cpu,cpuacct:{own}\n1:name=systemd:/\n0::/\n",
        "proc/self/mountinfo": (
            f"33 23 0:29 {mounted} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
            f"34 23 0:30 {mounted} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        ),
    } | {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}


@pytest.mark.parametrize(
    ("own", "mounted", "folder"),
    [
        ("/docker/1", "/", "docker/1/"),  # seen from the host
        ("/docker/1", "/docker/1", ""),  # inside the container, which shows its own cgroup as the root
        ("/docker/1/x", "/docker/1", "x/"),
        ("/../other", "/", ""),  # a cgroup namespace that we are outside of
    ],
)
def test_v1_limits(tree, own, mounted, folder):
    limits = {
        f"cpu,cpuacct/{folder}cpu.cfs_quota_us": "50000\n",
        f"cpu,cpuacct/{folder}cpu.cfs_period_us": "100000\n",
        f"cpu,cpuacct/{folder}cpuacct.usage": "0\n",
        f"memory/{folder}memory.limit_in_bytes": "2000000000\n",
        f"memory/{folder}memory.usage_in_bytes": "1500000000\n",
        f"memory/{folder}memory.stat": "inactive_file 7\ntotal_inactive_file 500000000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    if not folder:
        limits["memory/memory.limit_in_bytes"] = "2000000000\n"
    now = Time()
    subject = sensor(tree(cgroup1(own, mounted, limits)), {0, 1}, now)
    now.ns += SECOND_NS
    tree({f"sys/fs/cgroup/cpu,cpuacct/{folder}cpuacct.usage": f"{SECOND_NS // 4}\n"})
    readings = subject.read()
    assert readings[Quantity.UTILISATION_PCT] == Reading.ok(50.0)
    assert readings[Quantity.MEMORY_TOTAL_BYTES] == Reading.ok(2e9)
    assert readings[Quantity.MEMORY_FREE_BYTES] == Reading.ok(1e9)


def test_v1_without_limits_is_the_machine(tree):
    limits = {
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    subject = sensor(tree(cgroup1("/", "/", limits)), {0})
    tree({"proc/stat": stat((25, 0, 0, 175, 0, 0, 0, 0))})
    readings = subject.read()
    assert readings[Quantity.UTILISATION_PCT] == Reading.ok(25.0)
    assert readings[Quantity.MEMORY_TOTAL_BYTES] == Reading.ok(16_000_000 * 1024)
    assert readings[Quantity.MEMORY_FREE_BYTES] == Reading.ok(12_000_000 * 1024)


def hwmon(name: str, temperatures: dict[str, str], number: int = 2) -> dict[str, str]:
    files = {f"sys/class/hwmon/hwmon{number}/name": f"{name}\n", "proc/stat": stat(), "proc/meminfo": MEMINFO}
    for index, (label, millidegrees) in enumerate(temperatures.items(), start=1):
        files[f"sys/class/hwmon/hwmon{number}/temp{index}_label"] = f"{label}\n"
        files[f"sys/class/hwmon/hwmon{number}/temp{index}_input"] = f"{millidegrees}\n"
    return files


def zone(number: int, kind: str, millidegrees: str) -> dict[str, str]:
    folder = f"sys/class/thermal/thermal_zone{number}"
    return {f"{folder}/type": f"{kind}\n", f"{folder}/temp": f"{millidegrees}\n"}


PACKAGE_0 = hwmon("coretemp", {"Package id 0": "50000"})


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (hwmon("coretemp", {"Package id 0": "61000", "Core 0": "63000"}), 61.0),
        (hwmon("k10temp", {"Tctl": "72000", "Tdie": "62000", "Tccd1": "80000"}), 62.0),
        (hwmon("k10temp", {"Tctl": "72125"}), 72.125),
        (hwmon("zenpower", {"Tdie": "55000"}), 55.0),
        (PACKAGE_0 | hwmon("coretemp", {"Package id 1": "58000"}, 10), 58.0),
        (hwmon("nvme", {"Composite": "90000"}, 3) | PACKAGE_0, 50.0),
        (zone(0, "acpitz", "27800") | zone(1, "x86_pkg_temp", "48000"), 48.0),
    ],
)
def test_temperature_is_the_processor_package(tree, files, expected):
    assert sensor(tree(files), {0}).read()[Quantity.TEMPERATURE_CORE_C] == Reading.ok(expected)


def test_no_sensor_is_unsupported_and_an_impossible_value_unreadable(tree):
    reading = sensor(tree({"proc/meminfo": MEMINFO}), {0}).read()[Quantity.TEMPERATURE_CORE_C]
    assert reading.status is ReadingStatus.UNSUPPORTED
    assert "coretemp" in reading.reason
    for raw in ("65535000", "-273150", "0", "", "N/A", "61 C", "61000\0\0"):
        reading = sensor(tree(hwmon("coretemp", {"Package id 0": raw})), {0}).read()[
            Quantity.TEMPERATURE_CORE_C
        ]
        if raw.startswith("61000"):
            assert reading == Reading.ok(61.0)
        else:
            assert reading.status is ReadingStatus.UNREADABLE


def test_hwmon_numbered_anew_is_found_again(tree):
    root = tree(hwmon("coretemp", {"Package id 0": "50000"}, 3))
    subject = sensor(root, {0})
    (root / "sys/class/hwmon/hwmon3").rename(root / "sys/class/hwmon/hwmon12")
    first, second = (subject.read()[Quantity.TEMPERATURE_CORE_C] for _ in range(2))
    assert first.status in (ReadingStatus.UNREADABLE, ReadingStatus.UNSUPPORTED)
    assert first.value is None
    assert second == Reading.ok(50.0)


def edac(ce: str, ue: str, controller: int = 0) -> dict[str, str]:
    folder = f"sys/devices/system/edac/mc/mc{controller}"
    return {f"{folder}/ce_count": ce, f"{folder}/ue_count": ue, "proc/meminfo": MEMINFO}


def test_edac_counters(tree):
    root = tree(edac("3\n", "0\n") | edac("1\n", "2\n", 10))
    subject = sensor(root, {0})
    expected = {
        "edac/mc0/corrected": Reading.ok(3.0),
        "edac/mc0/uncorrected": Reading.ok(0.0),
        "edac/mc10/corrected": Reading.ok(1.0),
        "edac/mc10/uncorrected": Reading.ok(2.0),
    }
    assert subject.read_ecc() == expected
    device = subject.describe()
    assert device.ecc == Reading.ok(1.0)
    assert device.ecc_baseline == expected
    tree(edac("Input/output error\n", "\n"))
    counters = subject.read_ecc() or {}
    assert counters["edac/mc0/corrected"].status is ReadingStatus.UNREADABLE
    assert counters["edac/mc0/uncorrected"].status is ReadingStatus.UNREADABLE
    assert counters["edac/mc10/corrected"] == Reading.ok(1.0)


def test_no_edac_is_unsupported_and_no_zero(tree):
    subject = sensor(tree({"proc/meminfo": MEMINFO, "sys/devices/system/edac/mc/power/control": "auto"}), {0})
    assert subject.read_ecc() is None
    device = subject.describe()
    assert device.ecc.status is ReadingStatus.UNSUPPORTED
    assert "EDAC" in device.ecc.reason
    assert device.ecc_baseline == {}


def test_a_counter_that_cannot_be_read_at_the_start_is_said(tree):
    device = sensor(tree(edac("nonsense", "0")), {0}).describe()
    assert device.ecc.status is ReadingStatus.UNREADABLE


def test_power_is_the_rise_of_the_energy_counters_also_over_a_wrap(tree):
    def energy(first: int, second: int) -> dict[str, str]:
        zone = "sys/class/powercap/intel-rapl:"
        zones = (("0", "package-0", first), ("1", "package-1", second), ("0:0", "core", 5), ("2", "psys", 5))
        return {
            f"{zone}{number}/{name}": f"{text}\n"
            for number, kind, counter in zones
            for name, text in (("name", kind), ("energy_uj", counter), ("max_energy_range_uj", 262143328850))
        } | {"proc/meminfo": MEMINFO}

    now = Time()
    subject = sensor(tree(energy(1_000_000, 262_143_328_850)), {0}, now)
    now.ns += 2 * SECOND_NS
    tree(energy(201_000_000, 100_000_000))
    power = subject.read()[Quantity.POWER_W]
    assert power.value == pytest.approx(150.0, rel=1e-6)


def test_clock(tree):
    files = {
        f"sys/devices/system/cpu/cpu{n}/cpufreq/scaling_cur_freq": f"{3_000_000 + n}\n" for n in range(4)
    }
    subject = sensor(tree(files | {"proc/meminfo": MEMINFO}), {1, 3})
    assert subject.read()[Quantity.CLOCK_CORE_HZ] == Reading.ok(3_000_002_000.0)
    root = tree({"proc/cpuinfo": "processor\t: 0\nmodel name\t: A CPU\ncpu MHz\t\t: 2445.404\n"})
    subject = sensor(root, {9})
    assert subject.read()[Quantity.CLOCK_CORE_HZ] == Reading.ok(2445.404e6)
    assert subject.describe().model == "A CPU"


def test_no_meminfo_is_unreadable_or_unsupported_and_no_zero(tree):
    for files in (
        {},
        {"proc/meminfo": ""},
        {"proc/meminfo": "MemTotal: lots\n"},
        {"proc/meminfo": "MemTotal: 0 kB"},
    ):
        readings = sensor(tree(files), {0}).read()
        for quantity in (Quantity.MEMORY_TOTAL_BYTES, Quantity.MEMORY_FREE_BYTES):
            assert readings[quantity].value is None
