"""Text to value: what a person may write for an option. Each reader takes text, or what TOML made of it.

A reader raises `Refused` with the rest of a sentence that begins with where the value was written:
"--duration: '48' is not a duration; write it like 48h, 90m, 30s or 1h30m".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

Reader: TypeAlias = Callable[[object], Any]

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS

_DURATION = re.compile(r"(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_SEQ_LEN = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LABEL = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")

_LABELS_TAKEN = frozenset(
    {"run_id", "profile", "seed", "kernel", "simulated", "gpu", "job", "instance", "le"}
)
_LABELS_MAX = 16
_LABEL_VALUE_MAX = 200
# User and password, host, port: what SQLAlchemy takes for them, and a port that can be one.
_SERVER = re.compile(
    r"(?>(?:[^:/]*(?::[^@]*)?@)?)(?:\[[^/?]+\]|[^/:?]+)?(?::([0-9]{1,5}))?(?:[/?].*)?", re.DOTALL
)
_DATABASES = ("sqlite", "postgresql", "postgresql+psycopg")


class Refused(Exception):
    """A value that cannot be meant; the text says which and what would be legal."""


def duration(least_ms: int, most_ms: int) -> Reader:
    """A reader of `48h`, `90m`, `30s`, `1h30m`, to whole milliseconds in [least_ms, most_ms]."""

    def read(value: object) -> int:
        found = _DURATION.fullmatch(value) if isinstance(value, str) and value else None
        if found is None:
            raise Refused(f"{value!r} is not a duration; write it like 48h, 90m, 30s or 1h30m")
        hours, minutes, seconds = (int(part or 0) for part in found.groups())
        duration_ms = hours * HOUR_MS + minutes * MINUTE_MS + seconds * SECOND_MS
        if not least_ms <= duration_ms <= most_ms:
            legal = f"{format_duration(least_ms)} to {format_duration(most_ms)}"
            raise Refused(f"{value!r} is out of range; legal: {legal}")
        return duration_ms

    return read


def format_duration(duration_ms: int) -> str:
    """The way a person would write it, exactly: 5400000 is `1h30m`. `duration_ms` is whole seconds."""
    assert duration_ms >= 0
    assert duration_ms % SECOND_MS == 0
    hours, rest_ms = divmod(duration_ms, HOUR_MS)
    minutes, rest_ms = divmod(rest_ms, MINUTE_MS)
    parts = ((hours, "h"), (minutes, "m"), (rest_ms // SECOND_MS, "s"))
    return "".join(f"{n}{unit}" for n, unit in parts if n) or "0s"


def integer(least: int, most: int) -> Reader:
    def read(value: object) -> int:
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Refused(f"{value!r} is not a whole number; legal: {least} to {most}")
        if not least <= value <= most:
            raise Refused(f"{value} is out of range; legal: {least} to {most}")
        return value

    return read


def choice(*legal: str) -> Reader:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in legal:
            raise Refused(f"{value!r} is unknown; legal: {', '.join(legal)}")
        return value

    return read


def number_of(*legal: int) -> Reader:
    """One of a few whole numbers."""

    def read(value: object) -> int:
        if isinstance(value, bool) or str(value) not in map(str, legal):
            raise Refused(f"{value!r} is not supported; legal: {', '.join(map(str, legal))}")
        return int(str(value))

    return read


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("1", "true", "yes", "on"):
        return True
    if isinstance(value, str) and value.lower() in ("0", "false", "no", "off"):
        return False
    raise Refused(f"{value!r} is neither yes nor no; legal: true, false")


def seq_len(value: object) -> tuple[int, int]:
    """`512:4096`, lowest and highest; `1024` alone is both."""
    legal = "write LOWEST:HIGHEST like 512:4096, whole numbers from 1 to 131072"
    found = _SEQ_LEN.fullmatch(str(value)) if isinstance(value, str | int) else None
    if found is None or isinstance(value, bool):
        raise Refused(f"{value!r} is not a range of sequence lengths; {legal}")
    lowest, highest = int(found[1]), int(found[2] or found[1])
    if lowest < 1 or highest > 131072:
        raise Refused(f"{value!r} is out of range; {legal}")
    if lowest > highest:
        raise Refused(f"{value!r} has its lowest above its highest; write {highest}:{lowest}")
    return lowest, highest


def name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise Refused(
            f"{value!r} is not a name; legal: up to 64 letters, digits, dots, dashes and underscores"
        )
    return value


def run_id(value: object) -> str:
    if value == "latest":
        raise Refused("'latest' cannot name a run, since reports understand it as the newest; choose another")
    return name(value)


def path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise Refused(f"{value!r} is not a path")
    if str(value).startswith("~"):
        raise Refused(f"{str(value)!r} begins with ~, which only a shell understands; write the folder out")
    return Path(value)


def profile(value: object) -> str:
    """The name of a shipped profile, or a path; which of them is there is seen when it is loaded."""
    return str(path(value))


def database(value: object) -> str:
    """A database URL. Only its form is checked here; whether it opens is the store's business."""
    legal = "write sqlite:////folder/soak.db or postgresql://user@host/name"
    try:
        scheme = urlsplit(value).scheme if isinstance(value, str) else ""
    except ValueError:
        scheme = ""
    if not isinstance(value, str) or scheme not in _DATABASES or "://" not in value:
        raise Refused(f"{value!r} is not a database URL; {legal}")
    if scheme == "sqlite" and value.split("://", 1)[1] in ("", "/", "/:memory:"):
        raise Refused(f"{value!r} is kept in memory and would lose the run; {legal}")
    if scheme != "sqlite":
        server = _SERVER.fullmatch(value.split("://", 1)[1])
        if server is None or int(server[1] or 1) not in range(1, 65536):
            shown = without_password(value)
            raise Refused(
                f"{shown!r} has no whole number from 1 to 65535 as its port; "
                "write it like postgresql://user@host:5432/name"
            )
    return value


_PASSWORD = re.compile(r"^(\w[\w+]*://[^:/@]*):[^@]*@(?:[^/?#]*@)?")
_IN_QUERY = re.compile(r"([?&]password=)[^&#]*")


def without_password(url: str) -> str:
    """The database URL as it may be shown and stored: its parts as SQLAlchemy takes them, to which `/`, `?`
    and `#` in a password mean nothing."""
    return _IN_QUERY.sub(r"\1***", _PASSWORD.sub(r"\1:***@", url))


def host_port(value: object) -> tuple[str, int]:
    found = _HOST_PORT.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[2]) > 65535:
        raise Refused(f"{value!r} is not HOST:PORT; write it like 127.0.0.1:9868 or [::1]:9868")
    return found[1].strip("[]"), int(found[2])


def waivers(value: object) -> tuple[str, ...]:
    """Criteria that need not be reached. Only `ecc`: anything else would be a PASS without proof."""
    wanted = texts(value)
    for each in wanted:
        if each != "ecc":
            raise Refused(f"{each!r} cannot be waived; legal: ecc")
    return tuple(dict.fromkeys(wanted))


def labels(value: object) -> Mapping[str, str]:
    """`key=value`, several of them by commas or by repetition; in TOML a table will do."""
    pairs = [f"{k}={v}" for k, v in value.items()] if isinstance(value, Mapping) else texts(value)
    read: dict[str, str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not _LABEL.fullmatch(key):
            raise Refused(
                f"{pair!r} is not a label; write key=value, the key of letters, digits and underscores"
            )
        if key in _LABELS_TAKEN or key in read:
            why = "is given twice" if key in read else "is soak's own"
            raise Refused(f"the label {key!r} {why}; choose another key")
        if len(text) > _LABEL_VALUE_MAX or not text.isprintable():
            raise Refused(
                f"the label {key!r} has a value that is too long or not printable; "
                f"at most {_LABEL_VALUE_MAX} characters"
            )
        read[key] = text
    if len(read) > _LABELS_MAX:
        raise Refused(f"{len(read)} labels are too many; at most {_LABELS_MAX}")
    return read


def texts(value: object) -> list[str]:
    """A list from a comma list, or from a list of such; blanks around a comma do not count."""
    given = list(value) if isinstance(value, list | tuple) else [value]
    parts: list[str] = []
    for each in given:
        if not isinstance(each, str):
            raise Refused(f"{value!r} is not a text or a list of texts")
        parts += [part.strip() for part in each.split(",")]
    if not all(parts):
        raise Refused(f"{value!r} has an empty part")
    return parts
