"""Whether this process may use the cards' device nodes; where not, what is missing, for a person.

sysfs shows a container every card of its host, and answers whoever asks. To compute on a card takes its
device nodes, which a container has only if they were passed, and a user only by their group. Nothing here
opens a node: a driver may hang.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from soak.core.records import Device
from soak.telemetry.pci import gpus_on_bus

ROOT = Path("/")
KFD = "dev/kfd"  # AMD's one node for computing, of all cards
NVIDIA = ("dev/nvidiactl", "dev/nvidia-uvm")
PASS_AMD = '`--device /dev/kfd --device /dev/dri --group-add "$(stat -c %g /dev/kfd)"`'
PASS_NVIDIA = "`--gpus all`"
_MARKS = (".dockerenv", "run/.containerenv")


def closed(
    devices: Sequence[Device], root: Path = ROOT, environ: Mapping[str, str] = os.environ
) -> Mapping[str, str]:
    """Of these cards those that this process cannot compute on: by `gpu`, why, and what to do."""
    why = {device.gpu: _why_closed(device, root, is_container(root, environ)) for device in devices}
    return {gpu: reason for gpu, reason in why.items() if reason}


def none_found(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> str:
    """Why telemetry found no card, as far as the nodes tell, and what to do; "" where they tell nothing."""
    nodes = [name for name in (KFD, *NVIDIA) if (root / name).exists()]
    for name in nodes:
        if reason := _refused(root / name, root):
            return f"{reason}."
    if nodes or not is_container(root, environ):
        return ""
    amd, nvidia = (bool(gpus_on_bus(root, vendor)) for vendor in ("amd", "nvidia"))
    lines = []
    if amd or not nvidia:
        lines.append(f"{PASS_AMD} for AMD's")
    if nvidia or not amd:
        lines.append(f"{PASS_NVIDIA} for NVIDIA's")
    return f"No GPU was passed to this container: add {' or '.join(lines)} to `docker run`."


def is_container(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> bool:
    """As runtimes say it: Docker by a file, Podman by a file or `container`, which our image sets as well."""
    return bool(environ.get("container")) or any((root / mark).exists() for mark in _MARKS)


def _why_closed(device: Device, root: Path, in_container: bool) -> str:
    if device.vendor == "amd":
        return _missing_amd(device.gpu, root, in_container) or _first_refused(
            (root / KFD, *_render_nodes(root, device.gpu)), root
        )
    if device.vendor == "nvidia":
        return _missing_nvidia(root, in_container) or _first_refused([root / name for name in NVIDIA], root)
    return ""


def _missing_amd(gpu: str, root: Path, in_container: bool) -> str:
    if not (root / KFD).exists():
        if in_container:
            return f"/dev/kfd was not passed to this container: add {PASS_AMD} to `docker run`"
        return "there is no /dev/kfd: this kernel's amdgpu driver has no compute part (KFD)"
    for node in _render_nodes(root, gpu):
        if in_container and not node.exists():
            name = f"/{node.relative_to(root)}"
            return (
                f"{name} was not passed to this container: add `--device {name}` to `docker run`,"
                " or choose among the cards that were passed with --device"
            )
    return ""


def _missing_nvidia(root: Path, in_container: bool) -> str:
    """Outside of a container the driver makes its nodes when they are first asked for."""
    for name in NVIDIA:
        if in_container and not (root / name).exists():
            return f"/{name} was not passed to this container: add {PASS_NVIDIA} to `docker run`"
    return ""


def _render_nodes(root: Path, gpu: str) -> tuple[Path, ...]:
    """A card's render node, as sysfs names it; none where sysfs does not tell."""
    folders = sorted((root / "sys/bus/pci/devices" / gpu / "drm").glob("renderD*"))
    return tuple(root / "dev/dri" / folder.name for folder in folders)


def _first_refused(nodes: Sequence[Path], root: Path) -> str:
    return next(filter(None, (_refused(node, root) for node in nodes)), "")


def _refused(node: Path, root: Path) -> str:
    """That a node is there and this user may not read and write it; "" where that is not so."""
    try:
        found = node.stat()
    except OSError:
        return ""
    if os.access(node, os.R_OK | os.W_OK, effective_ids=True):
        return ""
    gid, closed_to = found.st_gid, f"/{node.relative_to(root)} is closed to uid {os.geteuid()}"
    if found.st_mode & 0o060 != 0o060:
        return f"{closed_to} and to its group (mode {found.st_mode & 0o777:o}): open it to a group"
    if gid in (os.getegid(), *os.getgroups()):
        return f"{closed_to}, although not to its group {gid}: see what else forbids it, such as SELinux"
    return f"{closed_to}: it belongs to group {gid}, {_join(gid, root)}"


def _join(gid: int, root: Path) -> str:
    try:
        overflow = int((root / "proc/sys/fs/overflowgid").read_text())
    except (OSError, ValueError):
        overflow = 65534
    if gid == overflow:  # the host's group has no number in this user namespace
        return "one of the host's: with rootless Podman add `--group-add keep-groups`"
    return f"add `--group-add {gid}` to `docker run`, or the user to that group"
