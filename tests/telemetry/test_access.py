"""Device nodes that are missing or closed, told as the line that is missing. Files for nodes; real modes."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from soak.core.records import Device
from soak.telemetry.access import closed, is_container, none_found
from tests.telemetry.as_user import NOBODY, a_user

THEIR_GROUP = 20109
MI50, H200 = Device("0000:33:00.0", "amd"), Device("0000:0f:00.0", "nvidia")
IN_CONTAINER, ON_HOST = {"container": "oci"}, {"PATH": "/bin"}
KFD, RENDER = "dev/kfd", "dev/dri/renderD129"
CTL, UVM = "dev/nvidiactl", "dev/nvidia-uvm"

Machine = Callable[..., Path]


@pytest.fixture
def machine() -> Iterator[Machine]:
    """Makes a root with an MI50 and an H200 on its bus, and these nodes below `dev`."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)

        def make(*nodes: str, mode: int = 0o666, gid: int | None = None, cards: str = "amd nvidia") -> Path:
            if "amd" in cards:
                _card(root, MI50.gpu, "0x1002")
                (root / f"sys/bus/pci/devices/{MI50.gpu}/drm/renderD129").mkdir(parents=True)
            if "nvidia" in cards:
                _card(root, H200.gpu, "0x10de")
            for name in nodes:
                node = root / name
                node.parent.mkdir(parents=True, exist_ok=True)
                node.touch()
                if gid is not None and os.geteuid() == 0:
                    os.chown(node, 0, gid)
                node.chmod(mode)
            return root

        yield make


def test_all_nodes_that_are_passed_and_open_need_no_word(machine: Machine) -> None:
    root = machine(KFD, RENDER, CTL, UVM)
    with a_user():
        assert closed([MI50, H200, Device("cpu", "cpu")], root, IN_CONTAINER) == {}
        assert none_found(root, IN_CONTAINER) == ""


@pytest.mark.parametrize(
    ("nodes", "device", "line"),
    [
        ((), MI50, "--device /dev/kfd --device /dev/dri --group-add"),
        ((KFD,), MI50, "--device /dev/dri/renderD129"),
        ((), H200, "--gpus all"),
        ((CTL,), H200, "--gpus all"),
    ],
)
def test_a_node_that_was_not_passed_is_told_as_the_missing_line(
    machine: Machine, nodes: tuple[str, ...], device: Device, line: str
) -> None:
    root = machine(*nodes)
    assert line in closed([device], root, IN_CONTAINER)[device.gpu]


def test_one_closed_card_does_not_close_the_others(machine: Machine) -> None:
    assert set(closed([MI50, H200], machine(CTL, UVM), IN_CONTAINER)) == {MI50.gpu}


def test_outside_of_a_container_nothing_is_said_of_docker(machine: Machine) -> None:
    root = machine()
    told = closed([MI50, H200], root, ON_HOST)
    assert set(told) == {MI50.gpu}, "NVIDIA's driver makes its nodes when they are asked for"
    assert "docker" not in told[MI50.gpu]
    assert none_found(root, ON_HOST) == ""


@pytest.mark.parametrize("node", [KFD, RENDER])
def test_the_wrong_group_is_named_by_its_number(machine: Machine, node: str) -> None:
    root = machine(KFD, RENDER)
    (root / node).chmod(0o060)
    if os.geteuid() == 0:
        os.chown(root / node, 0, THEIR_GROUP)
    gid = (root / node).stat().st_gid
    with a_user():
        told = closed([MI50], root, IN_CONTAINER)[MI50.gpu]
        if os.geteuid() == NOBODY:
            assert (
                f"/{node} is closed to uid {NOBODY}: it belongs to group {gid}, add `--group-add {gid}`"
                in told
            )
        assert f"/{node} is closed to uid" in told
        assert str(gid) in told
    with a_user((gid,)):
        assert closed([MI50], root, IN_CONTAINER) == {}


def test_a_closed_node_is_why_no_card_was_found(machine: Machine) -> None:
    root = machine(KFD, mode=0o060, gid=THEIR_GROUP, cards="")
    with a_user():
        assert none_found(root, IN_CONTAINER).startswith("/dev/kfd is closed to uid")


def test_a_node_that_no_group_may_use_asks_for_no_group(machine: Machine) -> None:
    root = machine(KFD, RENDER, mode=0o000, gid=THEIR_GROUP)
    with a_user():
        told = closed([MI50], root, IN_CONTAINER)[MI50.gpu]
    assert "mode 0" in told
    assert "--group-add" not in told


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another group")
def test_a_group_without_a_number_in_this_user_namespace_is_kept(machine: Machine) -> None:
    root = machine(KFD, RENDER, mode=0o660, gid=65534)
    with a_user():
        assert "--group-add keep-groups" in closed([MI50], root, IN_CONTAINER)[MI50.gpu]


@pytest.mark.parametrize(
    ("cards", "lines"),
    [
        ("amd", {"--device /dev/kfd"}),
        ("nvidia", {"--gpus all"}),
        ("", {"--device /dev/kfd", "--gpus all"}),
        ("amd nvidia", {"--device /dev/kfd", "--gpus all"}),
    ],
)
def test_no_device_at_all_is_told_by_what_is_on_the_bus(
    machine: Machine, cards: str, lines: set[str]
) -> None:
    told = none_found(machine(cards=cards), IN_CONTAINER)
    assert set(re.findall(r"--device /dev/kfd|--gpus all", told)) == lines


def test_runtimes_say_in_three_ways_that_this_is_a_container(tmp_path: Path) -> None:
    assert not is_container(tmp_path, ON_HOST)
    assert is_container(tmp_path, {"container": "podman"})
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.containerenv").touch()
    assert is_container(tmp_path, ON_HOST)
    (tmp_path / "run/.containerenv").rename(tmp_path / ".dockerenv")
    assert is_container(tmp_path, ON_HOST)


def _card(root: Path, gpu: str, vendor: str) -> None:
    folder = root / "sys/bus/pci/devices" / gpu
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text("0x038000\n")
