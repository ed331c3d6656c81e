"""What a person sees of a run in progress: a live view on a terminal, log lines otherwise."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.live import Live
from rich.segment import SegmentLines

from soak.cli.say import is_terminal
from soak.core.snapshot import Snapshot
from soak.report.live import live_view, log_line
from soak.report.wording import clean

log = logging.getLogger("soak")
Show = Callable[[Snapshot], None]


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        line = {"time": stamp, "level": record.levelname.lower(), "logger": record.name}
        return json.dumps(line | {"message": record.getMessage()}, ensure_ascii=False)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        return f"{stamp} {record.levelname} {record.getMessage()}"


def set_up_logging(level: str, fmt: str) -> None:
    """Log lines go to stderr, times in UTC; APScheduler's own are left out below warnings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if fmt == "json" else _TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("apscheduler", "alembic", "sqlalchemy"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@contextmanager
def watching() -> Iterator[Show]:
    """What to call with a snapshot about once a second."""
    if not is_terminal(sys.stdout):
        yield _LogLines()
        return
    console = Console(file=cast(IO[str], _Screen(sys.stdout)))
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(snapshot: Snapshot) -> None:
            # Drawn first: what cannot be drawn would be drawn again at the end.
            lines = console.render_lines(live_view(snapshot), pad=False)
            live.update(SegmentLines(lines, new_lines=True), refresh=True)

        yield show


class _Screen:
    """A terminal that may go away while the run goes on: what cannot be shown is not shown."""

    def __init__(self, terminal: IO[str]) -> None:
        self._terminal = terminal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._terminal.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._terminal.flush()


class _LogLines:
    """At most one line a rotation at level info, and one an incident."""

    def __init__(self) -> None:
        self._rotation: int | None = None
        self._message = ""
        self._seq = -1

    def __call__(self, snapshot: Snapshot) -> None:
        if snapshot.message and snapshot.message != self._message:
            log.info("%s", clean(snapshot.message, None))
            self._message = snapshot.message
        if snapshot.state != "running":
            return
        self._incidents(snapshot)
        rotation = snapshot.shape.index if snapshot.shape is not None else None
        if rotation != self._rotation:
            self._rotation = rotation
            log.info(log_line(snapshot))

    def _incidents(self, snapshot: Snapshot) -> None:
        for incident in snapshot.incidents:
            if incident.seq > self._seq:
                self._seq = incident.seq
                where = f" {incident.gpu}" if incident.gpu else ""
                log.warning("%s", clean(f"{incident.kind}{where}: {incident.detail}", None))
