"""What the container allows the load, and whether the kernel killed in it for memory (cgroup v1 and v2)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def allowed_cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy: its affinity, and no more than the processor quota rounded
    up."""
    affinity = len(os.sched_getaffinity(0))
    quotas = [quota for folder in _levels("cpu", root) if (quota := _quota(folder)) is not None]
    return max(1, min([affinity, *(math.ceil(quota) for quota in quotas)]))


def oom_kills(root: Path = Path("/")) -> int | None:
    """Processes of this cgroup that were killed for memory, by any cause; of the whole machine where the
    cgroup does not tell; None where nothing tells."""
    for folder in _levels("memory", root):
        for name in ("memory.events", "memory.oom_control"):
            if (count := _keyed(folder / name, "oom_kill")) is not None:
                return count
        break  # an ancestor counts the kills of others too
    return _keyed(root / "proc/vmstat", "oom_kill")


def _levels(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's cgroup and its ancestors, innermost first. Inside a container the path
    may be the host's: then the mount point is the cgroup."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mounts = {"": ("", "unified"), controller: (controller, "cpu,cpuacct")}
        if controllers != "" and controller not in controllers.split(","):
            continue
        for name in mounts["" if controllers == "" else controller]:
            mount = root / "sys/fs/cgroup" / name
            if not mount.is_dir() or (controllers == "" and not (mount / "cgroup.controllers").exists()):
                continue
            folder = mount / path.lstrip("/")
            yield from (
                level for level in (folder, *folder.parents) if level.is_dir() and level.is_relative_to(mount)
            )
            break


def _quota(folder: Path) -> float | None:
    fields = _text(folder / "cpu.max").split() or [
        _text(folder / "cpu.cfs_quota_us").strip(),
        _text(folder / "cpu.cfs_period_us").strip(),
    ]
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or "0" in fields:
        return None  # "max", -1 or no such file: no limit
    return int(fields[0]) / int(fields[1])


def _keyed(path: Path, key: str) -> int | None:
    for line in _text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.strip().isdigit():
            return int(value)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
