"""Deaths, processes, cgroups and environments: the small parts that decide who did it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from soak.core.records import Device
from soak.load import wire
from soak.load.cgroup import allowed_cores, oom_kills
from soak.load.deaths import explain
from soak.load.environment import worker_environment
from soak.load.process import look_at


@pytest.mark.parametrize(
    ("returncode", "n_oom_kills", "kind"),
    [
        (-signal.SIGSEGV, 0, "worker_crashed"),
        (-signal.SIGABRT, 0, "worker_crashed"),
        (-signal.SIGBUS, 0, "worker_crashed"),
        (-signal.SIGABRT, 1, "worker_crashed"),  # the kernel kills for memory by SIGKILL only
        (-signal.SIGKILL, 0, "worker_killed"),
        (-signal.SIGKILL, 1, "worker_out_of_memory"),
        (-signal.SIGTERM, 0, "worker_killed"),
        (-signal.SIGTERM, 1, "worker_killed"),
        (-signal.SIGHUP, 0, "worker_killed"),
        (-signal.SIGILL, 0, "worker_error"),
        (1, 0, "worker_error"),
        (0, 0, "worker_error"),  # nobody asked it to stop
        (wire.EXIT_PARENT_GONE, 0, "worker_error"),
        *((code, 0, "") for code in wire.EXIT_CODES.values()),  # it has said why itself
    ],
)
def test_why_a_worker_ended(returncode: int, n_oom_kills: int, kind: str) -> None:
    assert explain(returncode, n_oom_kills=n_oom_kills, last_words="").kind == kind


def test_last_words_are_told() -> None:
    death = explain(1, n_oom_kills=0, last_words="ModuleNotFoundError: No module named 'torch'")
    assert death.detail == (
        "the worker ended with exit code 1; its last words: ModuleNotFoundError: No module named 'torch'"
    )


def test_a_stopped_process_is_seen() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            look = look_at(sleeper.pid)
            assert look is not None
            assert not look.stopped
            sleeper.send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + 5.0
            while not (look := look_at(sleeper.pid)) or not look.stopped:
                assert time.monotonic() < deadline
        finally:
            sleeper.kill()
    assert look_at(sleeper.pid) is None


def test_processor_time_and_runnable_threads_are_seen() -> None:
    began = look_at(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    look = look_at(os.getpid())
    assert began is not None
    assert look is not None
    assert look.cpu_ms >= began.cpu_ms + 50
    assert look.n_runnable >= 1  # this very thread


def test_a_name_with_brackets_and_spaces(tmp_path: Path) -> None:
    fields = ["T", *["0"] * 10, "100", "50", *["0"] * 20]
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    for folder in (tmp_path / "7", tmp_path / "7" / "task" / "7"):
        (folder / "stat").write_text(f"7 (a) R (b) {' '.join(fields)}\n")
    look = look_at(7, tmp_path)
    assert look is not None
    assert (look.state, look.n_runnable, look.stopped) == ("T", 0, True)
    assert look.cpu_ms == 150 * 1000 // os.sysconf("SC_CLK_TCK")


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 64),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/cgroup.controllers": "",
          "sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/../elsewhere\n", "sys/fs/cgroup/cgroup.controllers": "",
          "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/job\n", "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "400000\n",
          "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n"}, 4),
        ({"proc/self/cgroup": "4:cpu:/job\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 64),
    ],
)  # fmt: skip
def test_allowed_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    assert allowed_cores(tree(tmp_path, files)) == cores


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, None),
        ({"proc/vmstat": "nr_free_pages 1\noom_kill 3\n"}, 3),
        ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/cgroup.controllers": "",
          "proc/vmstat": "oom_kill 9\n", "sys/fs/cgroup/job/memory.events": "low 0\noom 5\noom_kill 2\n"}, 2),
        ({"proc/self/cgroup": "4:memory:/job\n", "proc/vmstat": "oom_kill 9\n",
          "sys/fs/cgroup/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"}, 1),
    ],
)  # fmt: skip
def test_kills_for_memory(tmp_path: Path, files: dict[str, str], kills: int | None) -> None:
    assert oom_kills(tree(tmp_path, files)) == kills


def test_this_machine_answers() -> None:
    assert 1 <= allowed_cores() <= len(os.sched_getaffinity(0))
    assert oom_kills() is None or oom_kills() >= 0  # type: ignore[operator]  # None was asked about


INHERITED = {
    "PATH": "/bin",
    "CUDA_VISIBLE_DEVICES": "1,0",
    "HIP_VISIBLE_DEVICES": "0",
    "ROCR_VISIBLE_DEVICES": "2",
}


def test_an_nvidia_worker_sees_its_card_by_uuid() -> None:
    environment = worker_environment(Device("0000:33:00.0", "nvidia", index=5, uuid="GPU-abc"), INHERITED)
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-abc"
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_an_amd_worker_sees_its_card_by_uuid_and_nothing_renumbers() -> None:
    environment = worker_environment(Device("0000:33:00.0", "amd", uuid="GPU-12ab"), INHERITED)
    assert environment["ROCR_VISIBLE_DEVICES"] == "GPU-12ab"
    assert "HIP_VISIBLE_DEVICES" not in environment
    assert "CUDA_VISIBLE_DEVICES" not in environment


def test_an_amd_card_without_uuid_keeps_what_the_user_set() -> None:
    environment = worker_environment(Device("0000:33:00.0", "amd"), INHERITED)
    assert {name: environment[name] for name in INHERITED} == INHERITED


def test_the_cpu_worker_sees_no_card_and_one_thread_a_lane() -> None:
    environment = worker_environment(Device("cpu", "cpu"), INHERITED)
    assert environment["CUDA_VISIBLE_DEVICES"] == environment["ROCR_VISIBLE_DEVICES"] == ""
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["PATH"] == "/bin"
