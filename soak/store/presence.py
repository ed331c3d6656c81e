"""A sign of life in the data folder: a file that its daemon keeps locked for as long as it lives.

A process id says nothing across containers, and a lease that was not renewed for a while may still be held.
The kernel lets go of a lock (flock) when its process ends, however that happens; so another daemon that uses
the same folder on the same machine sees at once, from inside any container, whether a holder lives.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from soak.store.host import Holder


def enter(folder: Path, holder: Holder) -> int:
    """Shows that the calling process, which `holder` names, is alive. Returns an open file, which is the sign
    until it is closed. OSError where the folder cannot do that."""
    descriptor = os.open(_path(folder, holder), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_alive(folder: Path, holder: Holder) -> bool | None:
    """Whether a daemon of this machine and this folder lives; None where that cannot be known.

    A shared lock is asked for, so that two who ask at once are not taken for the holder by each other.
    """
    try:
        descriptor = os.open(_path(folder, holder), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None  # it never entered, or not here, or the file is not for this user
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None  # a file system without such locks
    else:
        return False
    finally:
        os.close(descriptor)


def clear(folder: Path, holder: Holder) -> None:
    """Removes the sign of a daemon that has ended, or is about to and holds no lease, where this user may."""
    try:
        _path(folder, holder).unlink(missing_ok=True)
    except OSError:
        return  # another user's; it goes on telling the truth


def _path(folder: Path, holder: Holder) -> Path:
    return folder / f".alive-{holder.pid_namespace}-{holder.pid}-{holder.pid_start}.lock"
