"""The sampler child for real: stopped, killed, crashed, orphaned; the daemon goes on."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from soak.core.errors import CannotRun
from soak.core.ports import Happening
from soak.core.records import Poll, Quantity, ReadingStatus
from soak.telemetry.watch import Patience, Sampler, spawn_child

QUICK = Patience(silent_ms=1500, start_ms=3000, backoff_ms=20)


def polls(news: Sequence[Poll | Happening]) -> list[Poll]:
    return [item for item in news if isinstance(item, Poll)]


def kinds(news: Sequence[Poll | Happening]) -> list[str]:
    """Of what happened; that this machine's kernel log cannot be read is not of interest here."""
    happenings = [item for item in news if isinstance(item, Happening)]
    return [item.kind for item in happenings if item.data.get("source") != "kernel_log"]


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far; the kernel counts in hundredths."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_this_machine_is_polled(start, until):
    sampler = start(("cpu",))
    (device,) = sampler.devices()
    assert (device.gpu, device.vendor) == ("cpu", "cpu")
    assert device.supported[Quantity.UTILISATION_PCT].status is ReadingStatus.OK
    assert device.memory_total_bytes is not None
    sampler.watch(["cpu"], 100, 300)
    news = until(sampler, lambda n: len(n) >= 5)
    assert kinds(news) == []
    for poll in polls(news):
        assert 0 <= poll.readings[Quantity.UTILISATION_PCT].value <= 100
        assert poll.readings[Quantity.MEMORY_TOTAL_BYTES].value == device.memory_total_bytes
        assert 0 < poll.cost_ms < 50
        assert poll.n == 1


def test_cadence_has_no_drift_and_stamps_are_boottime(start, until, clock):
    sampler = start(("cpu",))
    sampler.devices()
    begun_ms = clock.boot_ms()
    sampler.watch(["cpu"], 100, 1000)
    stamps = [poll.boot_ms for poll in polls(until(sampler, lambda n: len(n) >= 30))]
    assert begun_ms < stamps[0]
    assert stamps[-1] <= clock.boot_ms()
    assert statistics.median(b - a for a, b in pairwise(stamps)) in range(97, 104)
    # every beat lies on the grid of the first order: lateness of one beat moves none of the later ones
    phases = [(stamp - stamps[0]) % 100 for stamp in stamps]
    assert statistics.median(min(phase, 100 - phase) for phase in phases) <= 10


def test_a_stopped_child_is_a_gap_and_is_replaced(start, until, is_running):
    sampler = start(("cpu",), patience=QUICK)
    sampler.devices()
    sampler.watch(["cpu"], 100, 1000)
    until(sampler, polls)
    stopped = sampler.pid
    os.kill(stopped, signal.SIGSTOP)
    begun = time.monotonic()
    sampler.take()
    assert time.monotonic() - begun < 0.1, "take waited for the child"
    news = until(sampler, lambda n: "sampler_restarted" in kinds(n) and isinstance(n[-1], Poll))
    assert kinds(news) == ["sensor_gap", "sampler_restarted"]
    assert sampler.pid != stopped
    assert not is_running(stopped)


def test_a_killed_child_is_replaced_and_watches_as_before(start, until):
    sampler = start(("cpu",), patience=QUICK)
    sampler.devices()
    sampler.watch(["cpu"], 100, 1000)
    until(sampler, polls)
    os.kill(sampler.pid, signal.SIGKILL)
    news = until(sampler, lambda n: "sampler_restarted" in kinds(n) and isinstance(n[-1], Poll))
    (restarted,) = (item for item in news if isinstance(item, Happening))
    assert "SIGKILL" in restarted.detail


def test_restarts_are_bounded(start, until, tmp_path):
    dying = tmp_path / "dying.py"
    dying.write_text("import sys; sys.exit('the library is broken')")

    def spawn(_: Sequence[str]) -> subprocess.Popen[bytes]:
        return spawn_child([sys.executable, str(dying)])

    sampler = start(("cpu",), spawn=spawn, patience=Patience(backoff_ms=1, n_restarts_max=3))
    news = until(sampler, lambda n: any("given up" in item.detail for item in n))
    assert kinds(news) == ["sampler_restarted"] * 4
    assert "ended with exit code 1: the library is broken" in news[0].detail
    assert sampler.devices(1000) == ()
    assert "the library is broken" in sampler.absences["cpu"]


def test_a_machine_without_a_process_to_spare_is_tried_again(start):
    refusals = [errno.EAGAIN, errno.ENOMEM]

    def spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
        if refusals:
            code = refusals.pop(0)
            raise OSError(code, os.strerror(code))
        return spawn_child(command)

    sampler = start(("cpu",), spawn=spawn, patience=QUICK)
    assert [device.gpu for device in sampler.devices()] == ["cpu"]
    news = sampler.take()
    assert kinds(news) == ["sampler_restarted"] * 2
    assert "Resource temporarily unavailable" in news[0].detail


def test_a_backend_that_crashes_costs_its_own_cards_only(start, tmp_path):
    """NVML may take its process along: the answer of the others must not depend on it."""
    crashing = tmp_path / "crashing.py"
    crashing.write_text(
        "import os, signal\n"
        "from soak.telemetry import sampler\n"
        "class Crashing:\n"
        "    def __init__(self, root): pass\n"
        "    def find(self): os.kill(os.getpid(), signal.SIGSEGV)\n"
        "import sys; sys.modules['crashing'] = sys.modules['__main__']\n"
        "sampler.BACKENDS['nvidia'] = ('crashing', 'Crashing')\n"
        "sampler.main()\n"
    )

    def spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
        return spawn_child([sys.executable, str(crashing), *command[-2:]])

    sampler = start(("nvidia", "cpu"), spawn=spawn, patience=QUICK)
    assert [device.gpu for device in sampler.devices(10_000)] == ["cpu"]
    assert "SIGSEGV" in sampler.absences["nvidia"]


def test_a_child_that_talks_nonsense_is_replaced(start, until, tmp_path):
    babbling = tmp_path / "babbling.py"
    babbling.write_text('import time; print(\'{"type": "polled"}\', flush=True); time.sleep(60)')

    def spawn(_: Sequence[str]) -> subprocess.Popen[bytes]:
        return spawn_child([sys.executable, str(babbling)])

    sampler = start(("cpu",), spawn=spawn, patience=QUICK)
    news = until(sampler, lambda n: n)
    assert "what is no report" in news[0].detail


def test_a_child_that_cannot_be_killed_is_left_and_said(start, until):
    """A process in an endless system call survives SIGKILL; here one whose kill goes nowhere."""

    class Unkillable(subprocess.Popen):  # type: ignore[type-arg]  # of bytes or text
        def kill(self) -> None:
            pass

    left: list[Unkillable] = []

    def spawn(command: Sequence[str]) -> subprocess.Popen[bytes]:
        if left:
            return spawn_child(command)
        pipe = subprocess.PIPE
        left.append(Unkillable(["sleep", "60"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0))
        return left[0]

    sampler = start(("cpu",), spawn=spawn, patience=Patience(500, 100, end_ms=100, backoff_ms=1))
    try:
        assert sampler.devices(4000) == ()
        news = until(sampler, lambda n: "sampler_restarted" in kinds(n))
        assert f"process {left[0].pid} does not end and was left" in news[-1].detail
        assert [device.gpu for device in sampler.devices()] == ["cpu"]
    finally:
        subprocess.Popen.kill(left[0])
        left[0].wait()


def test_news_that_nobody_takes_are_bounded_and_said(start):
    sampler = start(("cpu",), n_waiting_max=5)
    sampler.devices()
    sampler.watch(["cpu"], 20, 1000)
    time.sleep(0.6)
    news = sampler.take()
    assert kinds(news) == ["sensor_gap"]
    assert len(polls(news)) == 5


def test_stop_ends_the_child_even_a_stopped_one(start, is_running):
    for stopped in (False, True):
        sampler = start(("cpu",))
        sampler.devices()
        pid = sampler.pid
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
        sampler.stop(1000)
        assert time.monotonic() - begun < 1.2
        assert not is_running(pid)
        assert sampler.pid is None


def test_a_card_that_was_not_found_is_refused_in_a_sentence(start):
    sampler = start(("cpu",))
    sampler.devices()
    with pytest.raises(CannotRun, match=r"No telemetry for 0000:03:00\.0; .*: cpu\."):
        sampler.watch(["0000:03:00.0"], 1000, 10_000)


def test_a_read_that_never_returns_gives_polls_without_values(start, until, tree):
    """A09: the driver call hangs; each missed second says so, and shutdown does not wait."""
    root = tree({"proc/stat": "cpu0 1 0 0 1 0 0 0 0\n", "proc/cpuinfo": ""})
    (root / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 50 kB\n")
    sampler = start(("cpu",), root)
    sampler.devices()
    (root / "proc/meminfo").unlink()
    os.mkfifo(root / "proc/meminfo")
    sampler.watch(["cpu"], 500, 1000)
    child = sampler.pid
    news = polls(until(sampler, lambda n: len(polls(n)) >= 3))
    for poll in news:
        assert poll.readings[Quantity.UTILISATION_PCT].status is ReadingStatus.UNREADABLE
        assert "no answer in" in poll.readings[Quantity.UTILISATION_PCT].reason
        assert poll.ecc is None
    steps = [b.boot_ms - a.boot_ms for a, b in pairwise(news)]
    assert all(400 < step < 1200 for step in steps)
    assert sampler.pid == child, "the child that can still speak was replaced"
    begun = time.monotonic()
    sampler.stop(1000)
    assert time.monotonic() - begun < 1


def test_a_card_that_hangs_while_asked_who_it_is_stays_visible(start, tree):
    root = tree({"proc/stat": "cpu0 1 0 0 1 0 0 0 0\n"})
    os.mkfifo(root / "proc/meminfo")
    sampler = start(("cpu",), root)
    (device,) = sampler.devices(4000)
    assert device.gpu == "cpu"
    assert "no answer in 2 s" in device.supported[Quantity.UTILISATION_PCT].reason
    assert device.ecc.status is ReadingStatus.UNREADABLE


@pytest.mark.parametrize("lingering", [False, True])
def test_kill_9_of_the_daemon_leaves_no_orphan(
    tmp_path: Path, is_running: Callable[[int], bool], lingering: bool
):
    """Also where another child of the daemon has inherited the sampler's pipes and lives on."""
    daemon = tmp_path / "daemon.py"
    daemon.write_text(
        "import os, sys, time\n"
        "from soak.telemetry.watch import Sampler\n"
        "class Clock:\n"
        "    def boot_ms(self): return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 10**6\n"
        "    def utc_ms(self): return 0\n"
        "sampler = Sampler(('cpu',), clock=Clock()); sampler.start(); sampler.devices()\n"
        "sampler.watch(['cpu'], 100, 1000)\n"
        "other = os.fork() if len(sys.argv) > 1 else 0\n"
        "if other == 0 and len(sys.argv) > 1: time.sleep(20); os._exit(0)\n"
        "print(sampler.pid, other, flush=True); time.sleep(60)\n"
    )
    argv = [sys.executable, "-W", "ignore", str(daemon), *(["fork"] if lingering else [])]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child, other = (int(word) for word in parent.stdout.readline().split())
        try:
            assert is_running(child)
            parent.kill()
            parent.wait()
            end = time.monotonic() + 2
            while is_running(child) and time.monotonic() < end:
                time.sleep(0.02)
            assert not is_running(child)
        finally:
            if other:
                os.kill(other, signal.SIGKILL)


def test_it_costs_less_than_one_per_cent_of_a_core(start, until):
    sampler = start(("cpu",))
    sampler.devices()
    sampler.watch(["cpu"], 1000, 10_000)

    until(sampler, polls)
    child_s, parent_s = cpu_s(sampler.pid), time.thread_time()
    time.sleep(4)
    assert len(polls(sampler.take())) in (3, 4, 5)
    assert cpu_s(sampler.pid) - child_s <= 4 * 0.01 + 0.01
    assert time.thread_time() - parent_s < 4 * 0.01


@pytest.mark.parametrize(
    "seconds", [4, pytest.param(150, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_eight_cards_cost_less_than_two_per_cent_of_a_core(start, until, tmp_path, seconds):
    mi50 = Path(__file__).parents[1] / "captures/amd__instinct-mi50-32gb__by-hand/root/sys/devices"
    device = next(path.parent for path in mi50.rglob("gpu_metrics"))
    for number in range(8):
        folder = tmp_path / f"sys/class/drm/card{8 * number + 1}/device"
        shutil.copytree(device, folder)
        (folder / "uevent").write_text(f"DRIVER=amdgpu\nPCI_SLOT_NAME=0000:{number:02x}:00.0\n")
    sampler = start(("amd",), tmp_path)
    gpus = [device.gpu for device in sampler.devices()]
    assert len(gpus) == 8
    sampler.watch(gpus, 1000, 10_000)
    until(sampler, polls)
    sampler.take()
    child_s, begun_s = cpu_s(sampler.pid), time.monotonic()
    time.sleep(seconds)
    used_s, wall_s, n_polls = (
        cpu_s(sampler.pid) - child_s,
        time.monotonic() - begun_s,
        len(polls(sampler.take())),
    )
    print(f"{n_polls} polls of eight cards in {wall_s:.0f} s: {100 * used_s / wall_s:.2f} % of a core")
    assert 8 * (seconds - 1) <= n_polls <= 8 * (wall_s + 1)
    assert used_s <= wall_s * 0.02 + 0.01


def test_the_child_loads_nothing_heavy():
    code = (
        "import sys; import soak.telemetry.sampler, soak.telemetry.cpu\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "numpy", "sqlalchemy", "rich", "psutil", "pynvml", "apscheduler"} & set(out)
    code = "import sys; import soak.telemetry.watch\nprint(*sorted(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    drivers = {"amd", "nvidia", "cpu", "sampler", "beat", "amdgpuinfo", "kernel_log"}
    assert not {f"soak.telemetry.{name}" for name in drivers} & set(out)
    assert "pynvml" not in out


def test_telemetry_port_is_met(clock):
    from soak.core.ports import Telemetry

    telemetry: Telemetry = Sampler(clock=clock)
    assert list(telemetry.take()) == []
    telemetry.stop(10)
