"""The surface's life: opened before the run, told what the run looks like, stopped after it."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from typing import Any

from soak.core.snapshot import Snapshot
from soak.web.connection import Connection
from soak.web.crowd import Crowd
from soak.web.document import Source
from soak.web.listening import BACKLOG, listen_on
from soak.web.pages import Metrics, Pages, Published

log = logging.getLogger(__name__)

WATCHED_S = 5.0  # a watcher asks every 2 s
CONNECTIONS_MAX = 256  # file descriptors that clients may take from the daemon


class Surface:
    """Serves /metrics, /healthz, /readyz, /run.json and / on a thread of its own.

        surface = Surface(("127.0.0.1", 9868), Exporter().render)
        surface.start()              # CannotRun: port taken, no such address
        surface.publish(snapshot, document)   # as often as the run likes
        surface.stop(1_000)

    `metrics` renders /metrics. `publish` hands over a reference and returns: no lock, no work.
    """

    def __init__(self, listen: tuple[str, int], metrics: Metrics) -> None:
        self._listen = listen
        self._pages = Pages(metrics)
        self._sockets: list[socket.socket] = []
        self._port = listen[1]
        self._crowd = Crowd(CONNECTIONS_MAX)
        self._thread = threading.Thread(target=self._serve, name="soak-http", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._patience_s = 0.0

    def start(self) -> None:
        """Opens the address, then serves. Raises CannotRun, with nothing left open, where it cannot."""
        assert not self._sockets, "started twice"
        self._sockets = listen_on(*self._listen)
        self._port = self._sockets[0].getsockname()[1]
        self._thread.start()
        self._running.wait()

    @property
    def port(self) -> int:
        """The port that is listened on; where 0 was asked for, the one that the system chose."""
        return self._port

    @property
    def url(self) -> str:
        """Where a person finds the page."""
        host = self._listen[0]
        return f"http://[{host}]:{self._port}/" if ":" in host else f"http://{host}:{self._port}/"

    def publish(self, snapshot: Snapshot, document: Source = None) -> None:
        """From now on this is the run. `document`: the report's JSON, or what makes it when it is asked for,
        on another thread, at most every two seconds; None: nothing is recorded yet."""
        self._pages.published = Published(snapshot, document, time.monotonic())

    def is_watched(self) -> bool:
        """Whether somebody asked for the report a moment ago, as a watcher does, and not since the run's
        end."""
        pages = self._pages
        asked_ago_s = time.monotonic() - pages.report_asked_s
        return asked_ago_s < WATCHED_S and not pages.report_is_known

    def stop(self, deadline_ms: int) -> None:
        """Ends within the deadline, whatever clients do: replies under way get half of it."""
        if not self._thread.is_alive() or self._loop is None or self._stopping is None:
            return
        self._patience_s = deadline_ms / 2000
        try:
            self._loop.call_soon_threadsafe(self._stopping.set)
        except RuntimeError:
            return  # it has just ended by itself
        self._thread.join(deadline_ms / 1000)
        if self._thread.is_alive():
            log.warning("the HTTP surface did not end within %d ms and is left", deadline_ms)

    # -- the thread --------------------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        finally:
            self._running.set()  # also where it could not begin

    async def _until_stopped(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_note)
        self._loop, self._stopping = loop, asyncio.Event()
        servers = [
            await loop.create_server(
                lambda: Connection(self._crowd, self._pages.answer), sock=opened, backlog=BACKLOG
            )
            for opened in self._sockets
        ]
        self._running.set()
        await self._stopping.wait()
        for server in servers:
            server.close()
        end_s = loop.time() + self._patience_s
        while any(connection.is_busy for connection in self._crowd.members) and loop.time() < end_s:
            await asyncio.sleep(0.01)
        for connection in self._crowd.members:
            connection.drop()
        await asyncio.sleep(0)  # the transports close their sockets


def _note(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What went wrong in a callback costs its own connection, and a line in the log."""
    error = context.get("exception")
    log.warning("HTTP: %s%s", context.get("message", ""), f" ({error!r})" if error else "")
