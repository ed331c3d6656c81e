"""The limits that a container puts on processor time and memory, of cgroup v1 and v2.

A process's own cgroup comes from /proc/self/cgroup, where it is mounted from /proc/self/mountinfo; a limit
may sit on any ancestor, and the narrowest one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from soak.telemetry.sysfs import is_there, number_of, number_or_none, text_or_none

_LONG = 1 << 20  # mountinfo and memory.stat are longer than a page


@dataclass(frozen=True, slots=True)
class CpuQuota:
    """`cores` of processor time are allowed; `usage_ns()` is what the limited cgroup has used."""

    cores: float
    usage_path: Path
    version: int

    def usage_ns(self) -> int | None:
        """Processor time used since the cgroup began, nanoseconds; None if it cannot be read."""
        if self.version == 1:
            return number_or_none(self.usage_path)
        used_us = _keyed(self.usage_path).get("usage_usec")
        return None if used_us is None else used_us * 1000


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A cgroup with a memory limit of its own."""

    limit_bytes: int
    folder: Path
    version: int

    def available_bytes(self) -> int | None:
        """What may still be taken: the limit less what is used, page cache that can be dropped given back."""
        used_name, cache_name = (
            ("memory.current", "inactive_file")
            if self.version == 2
            else ("memory.usage_in_bytes", "total_inactive_file")
        )
        used = number_or_none(self.folder / used_name)
        if used is None:
            return None
        dropped = _keyed(self.folder / "memory.stat").get(cache_name, 0)
        return min(max(self.limit_bytes - max(used - dropped, 0), 0), self.limit_bytes)


def cpu_quota(root: Path) -> CpuQuota | None:
    """The narrowest limit on processor time, or None where there is none (or its use cannot be told)."""
    quotas = []
    for folder, version in levels(root, "cpu"):
        cores = _quota_v2(folder) if version == 2 else _quota_v1(folder)
        usage_path = folder / "cpu.stat" if version == 2 else _usage_v1(root, folder)
        if cores is None or usage_path is None:
            continue
        quota = CpuQuota(cores, usage_path, version)
        if quota.usage_ns() is not None:
            quotas.append(quota)
    return min(quotas, key=lambda quota: quota.cores, default=None)


def memory_limits(root: Path) -> tuple[MemoryLimit, ...]:
    """Every limit on memory from the own cgroup upwards."""
    limits = []
    for folder, version in levels(root, "memory"):
        limit = number_or_none(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"))
        if limit is not None and 0 < limit < 1 << 60:  # v1 writes "no limit" as 2^63 less a page
            limits.append(MemoryLimit(limit, folder, version))
    return tuple(limits)


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = (text_or_none(folder / "cpu.max") or "max").partition(" ")
    return _cores(number_of(quota), number_of(period))


def _quota_v1(folder: Path) -> float | None:
    return _cores(number_or_none(folder / "cpu.cfs_quota_us"), number_or_none(folder / "cpu.cfs_period_us"))


def _cores(quota_us: int | None, period_us: int | None) -> float | None:
    return quota_us / period_us if quota_us and period_us and quota_us > 0 and period_us > 0 else None


def _usage_v1(root: Path, folder: Path) -> Path | None:
    """`cpuacct` is most often mounted together with `cpu`; else the process's own cgroup there is asked, but
    never the root of that hierarchy: it counts what the quota does not cover, and would flatter."""
    candidates = [folder]
    if all(own != PurePosixPath("/") for version, own in _own_cgroups(root, "cpuacct") if version == 1):
        candidates += [level for level, version in levels(root, "cpuacct") if version == 1][:1]
    return next((f / "cpuacct.usage" for f in candidates if is_there(f / "cpuacct.usage")), None)


def levels(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """The folders of the own cgroup of `controller` and its ancestors, innermost first, with the version."""
    for version, own in _own_cgroups(root, controller):
        for mount_point, mounted in _mounts(root, controller if version == 1 else None):
            below = _relative(own, mounted)
            folder = mount_point.joinpath(*below)
            for _ in range(len(below) + 1):
                yield folder, version
                folder = folder.parent
            break  # the same hierarchy mounted twice says nothing new


def _own_cgroups(root: Path, controller: str) -> Iterator[tuple[int, PurePosixPath]]:
    for line in (text_or_none(root / "proc/self/cgroup", _LONG) or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and controllers == "":
            yield 2, PurePosixPath(path)
        elif controller in controllers.split(","):
            yield 1, PurePosixPath(path)


def _mounts(root: Path, controller: str | None) -> Iterator[tuple[Path, PurePosixPath]]:
    """Where a hierarchy is mounted, and which of its folders is shown there; v2 for controller None."""
    for line in (text_or_none(root / "proc/self/mountinfo", _LONG) or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, source = left.split(" "), right.split(" ")
        if len(fields) < 5 or len(source) < 3:
            continue
        matches = (
            source[0] == "cgroup2"
            if controller is None
            else source[0] == "cgroup" and controller in source[2].split(",")
        )
        if matches:
            yield root / fields[4].replace("\\040", " ").lstrip("/"), PurePosixPath(fields[3])


def _relative(own: PurePosixPath, mounted: PurePosixPath) -> tuple[str, ...]:
    """The way from the mount point to the own cgroup. Inside a container that shows its own cgroup as the
    root of the mount, while the host's path is still told, the mount point is the own cgroup."""
    if not own.is_relative_to(mounted) or ".." in own.parts:
        return ()
    return tuple(part for part in own.relative_to(mounted).parts if part != "/")


def _keyed(path: Path) -> dict[str, int]:
    """A file of `key number` lines."""
    pairs = (line.partition(" ") for line in (text_or_none(path, _LONG) or "").splitlines())
    return {key: number for key, _, text in pairs if (number := number_of(text.strip())) is not None}
