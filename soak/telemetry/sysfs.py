"""Reading small files of /sys and /proc: a value, or why there is none.

Nothing here waits on purpose, but a read may never return (a driver that hangs): callers run in a thread that
is watched from another.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from soak.core.records import Quantity, Reading
from soak.telemetry.plausible import counted, is_name, judged, shown

PAGE = 4096  # no attribute of sysfs is longer
_NOTHING = re.compile(
    r"\[?\s*(n/?\.?a\.?|none|null|unknown( error)?|not (available|supported|applicable|specified|readable)|"
    r"insufficient permissions|.*(has been deprecated|inaccessible))\s*\]?",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)

# A driver that resets or suspends its card answers these for a moment, whoever asks.
RESET_SUSPECTED = frozenset({errno.EPERM, errno.EBUSY})
_NOT_OFFERED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.ENOSYS})


def entries(folder: Path, pattern: str = "*") -> list[Path]:
    """What a folder has by this name, sorted; nothing where it is not there, or goes meanwhile."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def is_folder(path: Path) -> bool:
    """Whether a folder is there and may be looked at."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_there(path: Path) -> bool:
    """Whether something is there and may be looked at."""
    try:
        return path.exists()
    except OSError:
        return False


def read_bytes(path: Path, limit: int = PAGE) -> bytes:
    """At most `limit` bytes from the start of a file. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(fd, limit)
        while data and len(data) < limit:
            more = os.read(fd, limit - len(data))
            if not more:
                break
            data += more
        return data
    finally:
        os.close(fd)


def read_text(path: Path, limit: int = PAGE) -> str:
    """A file's text without the padding (NUL, blanks) around it. Raises OSError."""
    return read_bytes(path, limit).decode("utf-8", "replace").strip("\0 \t\r\n")


def text_or_none(path: Path, limit: int = PAGE) -> str | None:
    """A file's text for identity and labels, where no reason is needed; None if empty or unreadable."""
    try:
        return read_text(path, limit) or None
    except OSError:
        return None


def name_in(path: Path) -> str | None:
    """A name to show; None where the file holds none, or bytes that are none (a worn EEPROM gives such)."""
    text = text_or_none(path, 128)
    return text if text is not None and is_name(text) and not says_nothing(text) else None


def says_nothing(text: str) -> bool:
    """Whether a driver writes in words that it has no answer: `N/A`, `[Not Supported]` and the like."""
    return _NOTHING.fullmatch(text.strip()) is not None


def number_of(text: str) -> int | None:
    """A decimal integer and nothing else: `42`, not `42 W`, `N/A`, ``."""
    return int(text) if _NUMBER.fullmatch(text) else None


def number_or_none(path: Path) -> int | None:
    """A file's integer where no reason is needed."""
    return number_of(text_or_none(path) or "")


def read_quantity(path: Path, quantity: Quantity, scale: float = 1.0) -> Reading:
    """A file's integer times `scale`, in the unit of `quantity`."""
    text = text_or_reading(path)
    if isinstance(text, Reading):
        return text
    number = number_of(text)
    if number is None:
        return Reading.unreadable(f"{path.name} says {shown(text)}")
    return judged(quantity, number * scale, text)


def read_count(path: Path) -> Reading:
    """A file's error counter."""
    text = text_or_reading(path)
    if isinstance(text, Reading):
        return text
    number = number_of(text)
    return Reading.unreadable(f"{path.name} says {shown(text)}") if number is None else counted(number, text)


def text_or_reading(path: Path) -> str | Reading:
    """A file's text, or the absence that its failure means.

    EPERM and EBUSY are asked once more at once: during a reset or a suspend they pass.
    """
    try:
        return read_text(path)
    except OSError as error:
        if error.errno not in RESET_SUSPECTED:
            return absence(path, error)
    try:
        return read_text(path)
    except OSError as error:
        return absence(path, error)


def errno_name(error: OSError) -> str:
    """`EBUSY` and the like."""
    return errno.errorcode.get(error.errno or 0, str(error.errno))


def absence(path: Path, error: OSError) -> Reading:
    """What a failed read means: not offered, or offered and unreadable."""
    name = errno_name(error)
    if error.errno in _NOT_OFFERED:
        return Reading.unsupported(f"no {path.name} ({name})")
    if error.errno in RESET_SUSPECTED:
        return Reading.unreadable(f"{path.name}: {name}: reset or suspend suspected")
    return Reading.unreadable(f"{path.name}: {name}")
