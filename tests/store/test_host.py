"""Who holds a lease, and whether that process has ended for certain."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from soak.core.errors import CannotRun
from soak.store.host import Holder, boot_id, host_id, is_gone, this_process


def test_a_host_id_is_made_once(tmp_path: Path) -> None:
    first = host_id(tmp_path)
    assert len(first) == 32
    assert host_id(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["host-id"]


def test_of_many_that_make_one_at_once_one_wins(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = {future.result() for future in [pool.submit(host_id, tmp_path) for _ in range(32)]}
    assert made == {(tmp_path / "host-id").read_text().strip()}


@pytest.mark.parametrize("content", ["", "no id at all", "ü" * 32, "../../etc"])
def test_a_file_that_holds_no_id_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "host-id").write_text(content, encoding="utf-8")
    with pytest.raises(CannotRun, match="host-id"):
        host_id(tmp_path)


def test_a_folder_that_is_gone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=r"cannot be read or made \(No such file or directory\)"):
        host_id(tmp_path / "none")


def test_an_id_that_cannot_be_written_leaves_no_draft(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(CannotRun, match="cannot be read or made"):
            host_id(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_this_process_is_told_by_proc() -> None:
    me = this_process("host-0001")
    assert (me.host_id, me.pid, me.boot_id) == ("host-0001", os.getpid(), boot_id())
    assert me.boot_id
    assert me.pid_namespace
    assert me.pid_start
    assert not is_gone(me, me)


def test_without_proc_nothing_is_claimed(tmp_path: Path) -> None:
    me = this_process("host-0001", proc=tmp_path)
    assert me == Holder("host-0001", "", 0, os.getpid(), 0)
    assert not is_gone(replace(me, pid=1 << 22), me, proc=tmp_path)


@pytest.fixture
def other() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def holder_of(process: subprocess.Popen[bytes]) -> Holder:
    stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return replace(this_process("host-0001"), pid=process.pid, pid_start=int(stat[19]))


def test_a_process_is_gone_when_it_was_killed_even_before_it_is_reaped(
    other: subprocess.Popen[bytes],
) -> None:
    me, holder = this_process("host-0001"), holder_of(other)
    assert not is_gone(holder, me)
    other.send_signal(signal.SIGSTOP)
    assert not is_gone(holder, me), "a stopped process is still there"
    other.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(holder, me), "a zombie does nothing any more"
    other.communicate()
    assert is_gone(holder, me)


def test_a_pid_that_was_given_to_another_process_is_gone() -> None:
    me = this_process("host-0001")
    assert is_gone(replace(me, pid_start=me.pid_start - 1), me)


def test_what_cannot_be_known_is_not_gone() -> None:
    me = this_process("host-0001")
    dead = replace(me, pid=1 << 22)  # beyond the largest pid
    assert is_gone(dead, me)
    assert not is_gone(replace(dead, host_id="host-0002"), me), "another host"
    assert not is_gone(replace(dead, pid_namespace=1), me), "another container: its pids are not ours"
    assert not is_gone(replace(dead, boot_id=""), me)


def test_after_a_reboot_everything_before_is_gone_unless_the_folder_is_shared() -> None:
    me = this_process("host-0001")
    before = replace(me, boot_id="another boot")
    assert is_gone(before, me)
    assert not is_gone(before, me, folder_is_shared=True), "the host id may be another machine's"


def test_a_name_with_blanks_and_brackets_is_read_past(tmp_path: Path) -> None:
    me = this_process("host-0001")
    stat = tmp_path / str(1 << 22) / "stat"
    stat.parent.mkdir()
    stat.write_text("4194304 (a) R 1 (b) S " + " ".join(str(n) for n in range(4, 53)))
    holder = replace(me, pid=1 << 22, pid_start=22)
    assert not is_gone(holder, me, proc=tmp_path)
    assert is_gone(replace(holder, pid_start=23), me, proc=tmp_path)


def test_a_process_that_proc_hides_is_found_by_its_pid(tmp_path: Path) -> None:
    me = this_process("host-0001")
    assert not is_gone(me, me, proc=tmp_path)
    assert is_gone(replace(me, pid=1 << 22), me, proc=tmp_path)
