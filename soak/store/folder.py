"""The data folder: made where it is missing, and proven writable before anything starts."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from soak.core.errors import CannotRun

_REASONS = {
    errno.EACCES: "is not writable for uid {uid}; choose another with --data-dir or change its owner",
    errno.EPERM: "is not writable for uid {uid}; choose another with --data-dir or change its owner",
    errno.EROFS: "is on a read-only file system; mount it writable or choose another with --data-dir",
    errno.ENOTDIR: "is no folder; choose another with --data-dir",
    errno.EEXIST: "is no folder; choose another with --data-dir",
    errno.ENOSPC: "is on a file system that is full; free space or choose another with --data-dir",
    errno.EDQUOT: "is on a file system whose quota is used up; free space or choose another with --data-dir",
}


def prepare_folder(folder: Path) -> Path:
    """The folder, absolute, existing, and writable (a file was made in it and removed).

    CannotRun names the folder, what is wrong with it, and the uid.
    """
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".soak-probe-"):
            pass
    except OSError as error:
        raise CannotRun(_sentence(folder, error)) from error
    return folder


def _sentence(folder: Path, error: OSError) -> str:
    reason = _REASONS.get(error.errno or 0)
    if reason is None:
        return f"The data folder {folder} cannot be used ({error.strerror}); choose another with --data-dir."
    return f"The data folder {folder} {reason.format(uid=os.getuid())}."
