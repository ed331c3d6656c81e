"""Who a daemon is: the host by a file in its data folder, the boot, the process; and whether one is gone."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soak.core.errors import CannotRun

HOST_ID_FILE = "host-id"
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Holder:
    """One process of one boot of one host. "" and 0 stand for what this system does not tell."""

    host_id: str
    boot_id: str
    pid_namespace: int  # inode of the namespace in which `pid` counts
    pid: int
    pid_start: int  # clock ticks since boot, /proc/<pid>/stat field 22

    def __str__(self) -> str:
        return f"process {self.pid} of host {self.host_id[:8]}"


def host_id(folder: Path, make_id: Callable[[], str] = lambda: uuid.uuid4().hex) -> str:
    """The id in the folder's `host-id` file, made there once; of two that make it at once, one wins.

    CannotRun where the file holds something else or cannot be made.
    """
    path = folder / HOST_ID_FILE
    try:
        if not path.exists():
            _make_once(path, make_id())
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII"
        raise CannotRun(f"The host id in {path} cannot be read or made ({reason}).") from error
    if not re.fullmatch(r"[0-9a-zA-Z-]{8,64}", text):
        raise CannotRun(f"{path} holds no host id ({text[:20]!r}); remove it, a new one is then made.")
    return text


def _make_once(path: Path, text: str) -> None:
    """Writes a whole file under another name and links it: nobody ever reads half of it."""
    draft = path.with_name(f".{path.name}-{os.getpid()}-{text}")
    try:
        with draft.open("x", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass  # the other one's counts
        except OSError:
            draft.replace(path)  # a file system without hard links
    finally:
        draft.unlink(missing_ok=True)


def boot_id(proc: Path = PROC) -> str:
    """The kernel's id of this boot; "" where it does not tell, which equals no other."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def this_process(host: str, proc: Path = PROC) -> Holder:
    """The calling process as a holder of leases."""
    pid = os.getpid()
    stat = _stat(pid, proc)
    try:
        namespace = (proc / "self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return Holder(host, boot_id(proc), namespace, pid, stat[1] if stat else 0)


def is_gone(holder: Holder, me: Holder, *, folder_is_shared: bool = False, proc: Path = PROC) -> bool:
    """Whether `holder` has ended for certain, as seen by `me`; False where that cannot be known.

    `folder_is_shared`: the data folder is on a network file system, so that its host id may be another
    machine's, and another boot proves nothing.
    """
    if holder.host_id != me.host_id or not holder.boot_id or not me.boot_id:
        return False
    if holder.boot_id != me.boot_id:
        return not folder_is_shared
    if not holder.pid_namespace or holder.pid_namespace != me.pid_namespace:
        return False
    stat = _stat(holder.pid, proc)
    if stat is None:
        return not _answers(holder.pid)
    state, start = stat
    return state in "ZX" or start != holder.pid_start


def _stat(pid: int, proc: Path) -> tuple[str, int] | None:
    """State letter and start time of a process; None where /proc does not show it."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold blanks and brackets
    return fields[0], int(fields[19])


def _answers(pid: int) -> bool:
    """Whether the process exists although /proc hides it (mounted with hidepid)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
