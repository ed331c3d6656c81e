"""The kernel log: which lines are about a card of the run, and what they mean."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from soak.core.incidents import KINDS
from soak.core.ports import Happening
from soak.core.records import Poll
from soak.telemetry.journal import follow_command
from soak.telemetry.kernel_log import PATTERNS, KernelLog, classified, message_of
from tests.telemetry.as_user import a_user

LOGS = Path(__file__).parents[1] / "captures/logs"
MI50, H100 = "0000:e3:00.0", "0000:9b:00.0"


def found(line: str, *gpus: str) -> tuple[str | None, str, str] | None:
    about = classified(line, gpus)
    return None if about is None else (about[0], about[1].kind, about[1].topic)


def test_every_pattern_is_an_incident_that_the_verdict_knows():
    assert {pattern.kind for pattern in PATTERNS} <= set(KINDS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "device_lost",
        ),
        ("NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=nvidia-smi, Timeout after 6s", "device_error"),
        ("NVRM: Xid (PCI:0000:9b:00): 48, pid=1234, DBE", "kernel_log"),
        ("NVRM: Xid (PCI:0000:9B:00): 94, Contained: SM", "kernel_log"),
        ("NVRM: Xid (PCI:0000:9b:00): 13, pid=5, Graphics Exception", "kernel_log"),
        (
            "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed to 0x1 (GPU Reset Required)",
            "device_error",
        ),
        ("NVRM: Xid (PCI:0000:9b:00): 790, a number that only begins like one", "kernel_log"),
        ("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.", "device_lost"),
    ],
)
def test_nvidia_lines(line, expected):
    assert found(line, MI50, H100)[:2] == (H100, expected)
    assert found(line, MI50) is None, "another card's line"


@pytest.mark.parametrize(
    ("text", "kind", "topic"),
    [
        ("amdgpu: GPU reset begin!", "device_reset", "reset"),
        ("amdgpu: GPU reset begin!. Source:  1", "device_reset", "reset"),
        ("amdgpu: GPU reset end with ret = -62", "device_reset", "reset"),
        ("amdgpu: GPU reset(2) succeeded!", "kernel_log", "reset"),
        ("amdgpu: device lost from bus!", "device_lost", "bus"),
        ("amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!", "device_error", "ras"),
        ("amdgpu: ring comp_1.0.0 timeout, signaled seq=1, emitted seq=3", "device_error", "hang"),
        ("amdgpu: ring gfx timeout, but soft recovered", "kernel_log", "hang"),
        ("amdgpu: qcm fence wait loop timeout expired", "device_error", "hang"),
        ("amdgpu: 1 new correctable hardware errors detected in umc block", "kernel_log", "ecc"),
        (
            "amdgpu: socket: 4, die: 0 2 uncorrectable hardware errors detected in total in umc block",
            "kernel_log",
            "ecc",
        ),
        ("amdgpu: [gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8)", "kernel_log", "fault"),
        ("PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)", "kernel_log", "pcie"),
        ("AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer", "kernel_log", "pcie"),
    ],
)
def test_amdgpu_and_bus_lines(text, kind, topic):
    assert found(f"amdgpu {MI50}: {text}", H100, MI50) == (MI50, kind, topic)
    assert found(f"amdgpu 0000:e3:00.1: {text}", MI50) is None


@pytest.mark.parametrize(
    "line",
    [
        "mce: [Hardware Error]: Machine check events logged",
        "[Hardware Error]: Corrected error, no action required.",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0",
    ],
)
def test_machine_checks_are_the_hosts(line):
    assert found(line, MI50) == (None, "kernel_log", "machine_check")


def test_recorded_logs():
    expected = {
        "gpud_dmesg_xid119.log": [(H100, "device_error", "xid")] * 5,
        "gpud_kmsg_raw.log": [],
        "dmesg_mi50_boot_ecc_active.txt": [],
        "dmesg_ecc_absent_and_partial.txt": [],
        "dmesg_mi50_ue_reset.txt": [
            (MI50, "device_error", "ras"),
            (MI50, "device_reset", "reset"),
            (MI50, "kernel_log", "smu"),
            (MI50, "kernel_log", "smu"),
        ],
    }
    logs = {path.name: path for path in LOGS.iterdir() if path.name != "README.md"}
    assert logs.keys() == expected.keys()
    for name, path in logs.items():
        lines = [message_of(line) for line in path.read_text().splitlines()]
        assert [about for line in lines if (about := found(line, MI50, H100)) is not None] == expected[
            name
        ], name


def test_records_of_kmsg():
    record = (
        f"3,3964,206764307,-;amdgpu {MI50}: amdgpu: GPU reset begin!\n SUBSYSTEM=pci\n DEVICE=+pci:{MI50}\n"
    )
    assert message_of(record) == f"amdgpu {MI50}: amdgpu: GPU reset begin!"
    assert message_of("[Sat Jan  7] plain; with a semicolon") == "[Sat Jan  7] plain; with a semicolon"


def test_what_would_steer_a_terminal_is_not_passed_on():
    assert message_of("process \x1b[2J\x07 pid 7") == "process ?[2J? pid 7"
    assert message_of(f"3,1,2,-;amdgpu {MI50}: ring gfx\x1b timeout") == f"amdgpu {MI50}: ring gfx? timeout"


def test_a_storm_is_a_few_lines_with_what_was_kept_back(tmp_path):
    told: list[Happening] = []
    now = [0]
    log = KernelLog(tmp_path / "none", [MI50], told.append, lambda: now[0])
    for second in range(0, 7200, 1):
        now[0] = second * 1000
        log.take_in(f"amdgpu {MI50}: PCIe Bus Error: severity=Corrected, type=Physical Layer")
    assert len(told) == 7  # after 0, 1, 3, 7, 15, 31, 63 minutes
    assert sum(item.data["kept_back"] for item in told) + len(told) <= 7200
    assert told[1].data["kept_back"] == 59
    log.take_in(f"amdgpu {MI50}: GPU reset begin!")
    assert told[-1].kind == "device_reset", "another matter is told at once"


def test_a_log_that_cannot_be_read_is_said(tmp_path):
    told: list[Happening] = []
    done = threading.Event()

    def tell(item: Happening) -> None:
        told.append(item)
        done.set()

    KernelLog(tmp_path / "none", [MI50], tell, lambda: 5).start()
    assert done.wait(5)
    assert (told[0].kind, told[0].gpu) == ("sensor_error", None)
    assert "ENOENT" in told[0].detail


def heard_of(journal: list[str], n_told: int) -> list[Happening]:
    """What is told where there is no kernel log but a journal."""
    told: list[Happening] = []
    enough = threading.Event()

    def tell(item: Happening) -> None:
        told.append(item)
        if len(told) == n_told:
            enough.set()

    KernelLog(Path("/no/such/kmsg"), [MI50], tell, lambda: 5, journal).start()
    assert enough.wait(10), told
    return told


def test_where_the_log_is_closed_the_journal_is_heard():
    says = f"amdgpu {MI50}: amdgpu: GPU reset begin!"
    told = heard_of(["bash", "-c", f"echo nothing of ours; echo '{says}'; printf '\\xff\\n'"], 2)
    assert [(item.kind, item.gpu) for item in told] == [("device_reset", MI50), ("sensor_error", None)]
    assert told[0].data["line"] == says
    assert "(ENOENT, and journalctl has ended): one witness less" in told[1].detail


def test_a_journal_that_does_not_start_is_said_with_the_log():
    (told,) = heard_of(["/no/such/journalctl"], 1)
    assert "(ENOENT, journalctl: ENOENT): one witness less" in told.detail


def test_the_journal_is_followed_by_who_may_read_it():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        journal = root / "var/log/journal/0123456789abcdef/system.journal"
        assert follow_command(root, lambda _: "/bin/journalctl") == (), "there is none"
        journal.parent.mkdir(parents=True)
        journal.touch(0o640)
        command = follow_command(root, lambda _: "/bin/journalctl")
        assert command[:3] == ("/bin/journalctl", "--dmesg", "--follow")
        assert "--lines=0" in command, "only what comes from now on"
        assert follow_command(root, lambda _: None) == ()
        journal.chmod(0o000)
        with a_user():
            assert follow_command(root, lambda _: "/bin/journalctl") == ()


def test_what_prints_the_journal_ends_with_who_reads_it(is_running):
    """The process that follows is killed, as the sampler may be: journalctl sees its pipe close."""
    code = (
        "import sys\nfrom soak.telemetry.journal import lines_of\n"
        "print(next(lines_of(['bash', '-c', 'while echo $$; do sleep 0.1; done'])), flush=True)\n"
        "import time; time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        pid = int(reader.stdout.readline())
        reader.kill()
    end_s = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert not is_running(pid)


def test_lines_reach_the_daemon_and_only_those_after_the_start(start, until, tree):
    root = tree(
        {"sys/class/drm/card1/device/uevent": f"DRIVER=amdgpu\nPCI_SLOT_NAME={MI50}\n", "dev/null": ""}
    )
    os.mkfifo(root / "dev/kmsg")
    sampler = start(("amd",), root)
    sampler.devices()
    sampler.watch([MI50], 100, 1000)
    with (root / "dev/kmsg").open("w") as log:
        log.write(f"6,1,1,-;amdgpu {MI50}: amdgpu: GPU reset begin!\n")
        log.flush()
        news = until(sampler, lambda n: any(isinstance(item, Happening) for item in n))
    (happening,) = (item for item in news if isinstance(item, Happening))
    assert (happening.kind, happening.gpu) == ("device_reset", MI50)
    assert happening.data["line"].endswith("GPU reset begin!")
    assert all(isinstance(item, Poll | Happening) for item in news)
