"""What the looking child sees, on real folders, real files and a real compiler."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from soak.child import Child
from soak.core.protocol import Limits, Protocol
from soak.doctor import look
from soak.doctor.examine import _with_look
from soak.doctor.facts import CardLook, Facts, Holder, Intent, Told
from soak.doctor.look_amd import holders, look_at_amd
from soak.doctor.look_nvidia import look_at_nvidia
from soak.doctor.toolchain import c_compiler, cache_writable
from soak.store.db import Database, sqlite_url
from soak.store.lease import holder_of_card

CAPTURES = Path(__file__).parents[1] / "captures"
MI50 = CAPTURES / "amd__instinct-mi50-32gb__by-hand/root"
GPU = "0000:33:00.0"
NO_PROTOCOL = Protocol(1, 1, 1, 1, 1, 0, 1, 1, 0, Limits(frozenset()))


@pytest.fixture
def mi50(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MI50, tmp_path / "mi50", symlinks=True))


def card_folder(root: Path) -> Path:
    return (root / "sys/bus/pci/devices" / GPU).resolve()


def in_hwmon(root: Path, name: str) -> Path:
    (found,) = card_folder(root).glob("hwmon/hwmon*")
    return found / name


class TestAmd:
    def test_a_capture(self, mi50: Path):
        look = look_at_amd(mi50, GPU)
        assert (look.power_cap_w, look.power_default_w) == (225.0, 225.0)
        assert (look.link_width, look.link_width_max) == (16, 16)
        assert (look.holders, look.troubles, look.restraints) == ((), (), ())

    def test_a_lowered_cap(self, mi50: Path):
        in_hwmon(mi50, "power1_cap").write_text("150000000\n")
        in_hwmon(mi50, "power1_cap_default").write_text("225000000\n")
        found = look_at_amd(mi50, GPU)
        assert (found.power_cap_w, found.power_default_w) == (150.0, 225.0)

    def test_a_cap_that_is_not_told_is_unknown(self, mi50: Path):
        in_hwmon(mi50, "power1_cap").write_text("\n")
        assert look_at_amd(mi50, GPU).power_cap_w is None

    def test_pages_that_wait_or_failed(self, mi50: Path):
        pages = "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n0x00000003 : 0x00001000 : F\n"
        (card_folder(mi50) / "ras/gpu_vram_bad_pages").write_text(pages)
        assert look_at_amd(mi50, GPU).troubles == (
            "1 bad memory pages wait for a reset to be retired",
            "1 bad memory pages could not be retired",
        )

    def test_a_held_clock(self, mi50: Path):
        (card_folder(mi50) / "power_dpm_force_performance_level").write_text("low\n")
        assert "low" in look_at_amd(mi50, GPU).restraints[0]

    def test_who_has_it_open(self, tmp_path: Path):
        def process(pid: int, node: str, pdev: str) -> None:
            for name in ("fd", "fdinfo"):
                (tmp_path / str(pid) / name).mkdir(parents=True)
            (tmp_path / str(pid) / "fd/5").symlink_to(node)
            (tmp_path / str(pid) / "fdinfo/5").write_text(
                f"pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t{pdev}\n"
            )
            (tmp_path / str(pid) / "comm").write_text(f"user-{pid}\n")

        process(7_000_001, "/dev/dri/renderD128", GPU)
        process(7_000_002, "/dev/dri/renderD129", "0000:43:00.0")
        process(7_000_003, "/dev/null", GPU)
        assert list(holders(tmp_path, GPU)) == [Holder(7_000_001, "user-7000001")]


def test_an_h200_by_its_recorded_answers():
    root = CAPTURES / "nvidia__h200__580.159.04/root"
    answers = msgspec.json.decode((root / "nvml.json").read_bytes())
    assert any(key.startswith("nvmlDeviceGetHandleByPciBusId") for key in answers)
    gpu = next(key for key in answers if "ByPciBusId" in key).partition("(")[2].rstrip(")")
    found = look_at_nvidia(root, gpu)
    assert found.power_cap_w == 700.0
    assert found.link_width == 16
    assert found.troubles == ()


class TestPlaces:
    def test_a_folder(self, tmp_path: Path):
        assert str(tmp_path / "new") in look.data_folder(tmp_path / "new").says
        (tmp_path / "file").write_text("")
        told = look._told(lambda: look.data_folder(tmp_path / "file"))
        assert "is no folder" in told.fault

    def test_a_folder_whose_host_id_is_none(self, tmp_path: Path):
        (tmp_path / "host-id").write_text("?\n")
        assert "holds no host id" in look._told(lambda: look.data_folder(tmp_path)).fault

    def test_a_folder_that_is_full_soon(self, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(look, "FREE_MIN_BYTES", 1 << 60)
        assert "free some" in look.data_folder(tmp_path).fault

    def test_a_database_that_will_be_made_is_not_made(self, tmp_path: Path):
        told = look.database(sqlite_url(tmp_path / "soak.db"))
        assert told == Told(f"{tmp_path / 'soak.db'} will be made")
        assert list(tmp_path.iterdir()) == []

    def test_a_database_of_this_version(self, tmp_path: Path):
        url = sqlite_url(tmp_path / "soak.db")
        with Database.open(url) as database:
            database.upgrade()
        assert "version" in look.database(url).says

    def test_another_program_s_database(self, tmp_path: Path):
        connection = sqlite3.connect(tmp_path / "soak.db")
        connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.commit()
        connection.close()
        told = look._told(lambda: look.database(sqlite_url(tmp_path / "soak.db")))
        assert told.fault

    def test_a_port_that_is_taken(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            number = taken.getsockname()[1]
            assert "taken" in look._told(lambda: look.port("127.0.0.1", number)).fault
        assert look.port("127.0.0.1", 0).fault == ""

    def test_a_kernel_log(self, tmp_path: Path):
        assert "ENOENT" in look.kernel_log(tmp_path / "kmsg").fault
        by_journal = look.kernel_log(tmp_path / "kmsg", ["journalctl"])
        assert by_journal.fault == ""
        assert "read of the journal" in by_journal.says
        (tmp_path / "kmsg").write_text("")
        assert look.kernel_log(tmp_path / "kmsg").fault == ""

    def test_a_card_held_by_another_soak(self, tmp_path: Path):
        assert holder_of_card(GPU, tmp_path) == ""
        path = tmp_path / f"card-{GPU}.lock"
        path.write_text("process 7, uid 0\n")
        assert holder_of_card(GPU, tmp_path) == ""
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert holder_of_card(GPU, tmp_path) == "process 7, uid 0"


class TestToolchain:
    @pytest.fixture
    def script(self, tmp_path: Path) -> Callable[[str], str]:
        def write(text: str) -> str:
            path = tmp_path / "cc"
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
            return str(path)

        return write

    def test_this_machine_s(self):
        told = c_compiler(os.environ)
        assert bool(told.says) is not bool(told.fault)
        if shutil.which("gcc"):
            assert told.fault == ""

    def test_one_that_fails(self, script: Callable[[str], str]):
        cc = script("echo 'doctor.c:1:10: fatal error: Python.h: No such file' >&2; exit 1")
        assert "Python.h" in c_compiler({"CC": cc}).fault

    def test_one_that_is_not_there(self):
        assert "/no/such/cc" in c_compiler({"CC": "/no/such/cc"}).fault

    def test_one_that_builds_nothing(self, script: Callable[[str], str]):
        assert "cannot be loaded" in c_compiler({"CC": script("exit 0")}).fault

    def test_the_cache_folder(self, tmp_path: Path):
        assert cache_writable({"TRITON_HOME": str(tmp_path)}).says == str(tmp_path / ".triton/cache")
        (tmp_path / "file").write_text("")
        assert "not writable" in cache_writable({"TRITON_CACHE_DIR": str(tmp_path / "file/cache")}).fault


def quest(root: Path, data_dir: Path, *cards: look.Subject) -> look.Quest:
    return look.Quest(
        str(root), str(data_dir), sqlite_url(data_dir / "soak.db"), ("127.0.0.1", 0), False, cards
    )


def looked(asked: look.Quest, deadline_s: float = 20.0) -> Facts:
    child: Child[look.Seen] = Child("soak.doctor.look", (), look.Seen)
    try:
        child.say(msgspec.json.encode(asked))
        return _with_look(Facts(Intent(protocol=NO_PROTOCOL)), asked, child, deadline_s)
    finally:
        child.end()


def test_the_child_looks_at_everything(mi50: Path, tmp_path: Path):
    facts = looked(quest(mi50, tmp_path / "data", look.Subject(GPU, "amd")))
    assert set(facts.places) == {("data folder", None), ("database", None), ("port", None), ("held", GPU)}
    assert not [told.fault for told in facts.places.values() if told.fault]
    assert facts.cards == {GPU: look_at_amd(mi50, GPU)}


def test_a_file_that_is_never_answered_costs_its_own_card(mi50: Path, tmp_path: Path):
    cap = in_hwmon(mi50, "power1_cap")
    cap.unlink()
    os.mkfifo(cap)
    facts = looked(quest(mi50, tmp_path / "data", look.Subject(GPU, "amd"), look.Subject("cpu", "cpu")), 6.0)
    assert facts.card_faults == {GPU: "no answer in 6 s"}
    assert facts.cards == {"cpu": CardLook()}
    assert facts.places["data folder", None].fault == ""


def test_a_card_that_is_gone_is_told(mi50: Path, tmp_path: Path):
    facts = looked(quest(mi50, tmp_path / "data", look.Subject("0000:99:00.0", "amd")))
    assert "0000:99:00.0" in facts.card_faults["0000:99:00.0"]
