"""Captures: this machine and recorded ones, written, read again, searched for what should not be in them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from soak.core.errors import CannotRun
from soak.core.records import Device
from soak.doctor.capture import _kernel_log, capture, folder_name
from soak.doctor.pseudonyms import Pseudonyms
from soak.doctor.replay import EXPECTED, LOG, ROOT, made_of
from soak.telemetry.sensors import Unavailable

CAPTURES = Path(__file__).parents[1] / "captures"
MI50 = CAPTURES / "amd__instinct-mi50-32gb__by-hand"
GPU = "0000:33:00.0"
UNIQUE_ID, SERIAL, CONTAINER = "8f3ac5d2b7e91406", "PCB204413-0092", "c4" * 32
UUID = "GPU-5e0f1c2a-77aa-4b3c-9d1e-0123456789ab"


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield str(path.relative_to(folder)), path.read_bytes()


def without_uuids(made: dict[str, Any]) -> dict[str, Any]:
    return json.loads(re.sub(r'"uuid": "[^"]*"', '"uuid": ""', json.dumps(made)))


@pytest.fixture
def mi50(tmp_path: Path) -> Path:
    """The recorded MI50 with secrets in it, and a file that is never to be read."""
    machine = Path(shutil.copytree(MI50, tmp_path / MI50.name, symlinks=True))
    card = (machine / "root/sys/bus/pci/devices" / GPU).resolve()
    (card / "unique_id").write_text(f"{UNIQUE_ID}\n")
    (card / "serial_number").write_text(f"{SERIAL}\n")
    os.mkfifo(card / "pcie_bw")  # a read would never end
    topology = machine / "root/sys/class/kfd/kfd/topology/nodes/1/properties"
    topology.write_text(topology.read_text() + f"unique_id {int(UNIQUE_ID, 16)}\n")
    kmsg = machine / "root/dev/kmsg"
    kmsg.parent.mkdir()
    kmsg.write_text(
        "6,1,1,-;usb 1-1: new device of somebody\n"
        f"3,2,2,-;amdgpu {GPU}: amdgpu: GPU reset begin!\n"
        f"4,3,3,-;amdgpu {GPU}: process secret-job pid 77 thread secret-job:cs0 pid 78\n"
        f"6,4,4,-;amdgpu {GPU}: card {UNIQUE_ID} serial {SERIAL} at 10.1.2.3\n"
    )
    return machine


def test_an_mi50_reads_of_its_capture_as_of_itself(mi50: Path, tmp_path: Path):
    captured = capture("amd", mi50 / "root", tmp_path / "out")
    folder = Path(captured.folder)
    assert folder.name == "amd__instinct-mi50-32gb__6.7.0"
    assert captured.cards == (GPU,)
    assert captured.differing == ()
    made = made_of(folder)
    assert made.pop("kernel log") == {f"{GPU}: the driver resets the card": 1}
    assert without_uuids(made) == without_uuids(made_of(mi50))
    assert json.loads((folder / EXPECTED).read_text()) == made_of(folder)
    assert (folder / "README.md").read_text().startswith("# 1 x AMD Instinct MI50 32GB")


def test_nothing_in_it_tells_whose_card_it_is(mi50: Path, tmp_path: Path):
    folder = Path(capture("amd", mi50 / "root", tmp_path / "out").folder)
    secrets = (UNIQUE_ID, str(int(UNIQUE_ID, 16)), SERIAL, "secret-job", "10.1.2.3", "somebody")
    for name, content in contents(folder):
        for secret in secrets:
            assert secret not in name
            assert secret.encode() not in content, name
    log = (folder / LOG).read_text()
    assert "process program pid 77" in log
    unique_id = (folder / ROOT / "sys/bus/pci/devices" / GPU / "unique_id").read_text().strip()
    assert re.fullmatch(r"[0-9a-f]{16}", unique_id)
    assert f"card {unique_id} " in log  # the same for the same


def test_a_file_that_cannot_be_read_is_named(mi50: Path, tmp_path: Path):
    unreadable = (mi50 / "root/sys/bus/pci/devices" / GPU).resolve() / "ras/broken_err_count"
    unreadable.symlink_to("/proc/self/mem")  # a read of its start fails, for root too
    captured = capture("amd", mi50 / "root", tmp_path / "out")
    assert "broken_err_count`: EIO" in (Path(captured.folder) / "README.md").read_text()


def test_links_that_lead_nowhere_or_in_a_circle_end_nothing(mi50: Path, tmp_path: Path):
    (mi50 / "root/sys/class/drm/card9").mkdir()
    (mi50 / "root/sys/class/drm/card9/device").symlink_to("device")
    (mi50 / "root/sys/bus/pci/drivers/amdgpu/0000:e3:00.0").symlink_to("../../nowhere")
    circle = mi50 / "root/sys/module/amdgpu/version"
    circle.unlink()
    circle.symlink_to("version")
    captured = capture("amd", mi50 / "root", tmp_path / "out")
    assert captured.cards == (GPU,)
    assert captured.differing == ()


def test_a_worn_serial_number_is_blanked(mi50: Path, tmp_path: Path):
    serial = (mi50 / "root/sys/bus/pci/devices" / GPU).resolve() / "serial_number"
    serial.write_bytes(b"\xff\xfeAB12\xff\n")
    folder = Path(capture("amd", mi50 / "root", tmp_path / "out").folder)
    blanked = folder / ROOT / "sys/bus/pci/devices" / GPU / "serial_number"
    assert blanked.read_bytes() == b"\xff\xfe0000\xff\n"


def test_an_h200_s_answers_are_recorded_again(tmp_path: Path):
    """The recording of a recording gives what the first one gave."""
    machine = CAPTURES / "nvidia__h200__580.159.04"
    captured = capture("nvidia", machine / "root", tmp_path)
    folder = Path(captured.folder)
    assert folder.name == machine.name
    assert captured.n_answers > 50
    assert captured.differing == ()
    made, original = made_of(folder), made_of(machine)
    assert made.keys() == original.keys()
    for gpu, card in made.items():
        assert card["device"] | {"notes": []} == original[gpu]["device"] | {
            "notes": [],
            "uuid": card["device"]["uuid"],
        }
        assert card["counters"] == original[gpu]["counters"]


def test_where_the_log_is_closed_its_lines_are_the_journal_s():
    said = f"echo 'usb 1-1: nothing'; echo 'amdgpu {GPU}: amdgpu: GPU reset begin!'"
    lines, no_log = _kernel_log(Path("/no/such/kmsg"), ["bash", "-c", said], Pseudonyms())
    assert (lines, no_log) == ([f"amdgpu {GPU}: amdgpu: GPU reset begin!"], "")
    assert (
        _kernel_log(Path("/no/such/kmsg"), (), Pseudonyms())[1] == "the kernel log could not be read (ENOENT)"
    )


def test_this_machine(tmp_path: Path):
    captured = capture("cpu", Path("/"), tmp_path)
    folder = Path(captured.folder)
    made = made_of(folder)
    assert captured.cards == ("cpu",)
    assert captured.differing == ()
    assert made["cpu"]["readings"]["memory_total_bytes"] > 1 << 20
    assert "processor" in made["cpu"]["readings"]["utilisation_pct"]  # a rate needs two moments
    cgroup = Path("/proc/self/cgroup").read_text()
    for container in re.findall(r"[0-9a-f]{32,}", cgroup):
        assert all(
            container not in name and container.encode() not in text for name, text in contents(folder)
        )


def test_a_folder_is_never_written_over(tmp_path: Path):
    capture("amd", MI50 / "root", tmp_path)
    with pytest.raises(CannotRun, match="exists"):
        capture("amd", MI50 / "root", tmp_path)


def test_no_card_is_no_capture(tmp_path: Path):
    (tmp_path / "empty/sys").mkdir(parents=True)
    with pytest.raises(Unavailable):
        capture("amd", tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_s_name():
    assert (
        folder_name(Device("0", "nvidia", model="NVIDIA H200", driver="580.159.04"))
        == "nvidia__h200__580.159.04"
    )
    assert folder_name(Device("0", "amd", driver="amdgpu of Linux 6.8.0-x", arch="gfx906")) == (
        "amd__gfx906__linux-6.8.0-x"
    )
    assert folder_name(Device("0", "amd")) == "amd__unknown__unknown"


class TestPseudonyms:
    def test_the_same_for_the_same_and_of_the_same_form(self):
        names = Pseudonyms()
        hidden = names.hide(f"{UUID} and {UUID}, /docker/{CONTAINER}")
        first, _, second = hidden.partition(" and ")
        assert second.startswith(first)
        assert re.fullmatch(r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", first)
        assert re.search(r"/docker/[0-9a-f]{64}$", hidden)
        assert UUID not in hidden
        assert CONTAINER not in hidden

    def test_what_is_made_up_is_not_made_up_again(self):
        names = Pseudonyms()
        names.learn([SERIAL, UNIQUE_ID])
        once = names.hide(f"{SERIAL} {UNIQUE_ID} {UUID}")
        assert names.hide(once) == once

    def test_two_are_told_apart(self):
        names = Pseudonyms()
        names.learn(["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"])
        assert names.hide("aaaaaaaaaaaaaaaa") != names.hide("bbbbbbbbbbbbbbbb")

    def test_what_only_looks_like_a_name_stays(self):
        names = Pseudonyms()
        names.learn(["vm", "0000000000000000", "pc"])
        for text in (
            "96.00.A5.00.03",
            "580.159.04",
            GPU,
            "vm",
            "0000000000000000",
            "16.0 GT/s PCIe",
            "90.02.17.00.55",
        ):
            assert names.hide(text) == text
            assert names.hide_in_log(text) == text

    def test_a_part_of_a_word_stays(self):
        names = Pseudonyms()
        names.learn(["node"])
        assert names.hide_in_log("node0 of a node's nodes") == "node0 of a host3's nodes".replace(
            "host3", names.hide("node")
        )
