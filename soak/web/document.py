"""/run.json: the report of the run in progress, made off the loop, seldom, and by one thread at most.

Making it reads the database and judges every row: seconds for a long run of many cards. So it is kept for a
while, the longer the longer it took, and whoever asks meanwhile gets what is there or waits for the same one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable

from soak.web.reply import JSON, Reply, text

log = logging.getLogger(__name__)

Source = Callable[[], str] | str | None

KEPT_S = 2.0  # at least
KEPT_TIMES = 20  # its cost: making documents takes 5 % of a core at most


class Documents:
    """Use from the loop's thread only; `source` runs on a thread of its own."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[Reply]] = []
        self._made: Reply | None = None
        self._made_of: Hashable = None
        self._good_until_s = 0.0

    def get(self, source: Source, version: Hashable) -> Reply | asyncio.Future[Reply]:
        """The document. One that was made of another `version` of the run is made anew.

        A source that cannot say what the run is gives 503 with the reason.
        """
        if source is None:
            return text(503, "nothing of this run is recorded yet")
        if isinstance(source, str):
            return Reply(200, JSON, source.encode())
        if self._made is not None and self._made_of == version and time.monotonic() < self._good_until_s:
            return self._made
        loop = asyncio.get_running_loop()
        if not self._waiting:
            args = (loop, source, version)
            # A daemon thread: a database that hangs must not keep the process from ending.
            threading.Thread(target=self._make, args=args, name="soak-http-document", daemon=True).start()
        waiting: asyncio.Future[Reply] = loop.create_future()
        self._waiting.append(waiting)
        return waiting

    def _make(self, loop: asyncio.AbstractEventLoop, source: Callable[[], str], version: Hashable) -> None:
        began_s = time.monotonic()
        try:
            reply = Reply(200, JSON, source().encode())
        except Exception as error:  # noqa: BLE001 - the thread's own loop end; the client gets the reason
            log.warning("the run's document cannot be made: %r", error)
            reply = text(503, f"the run's document cannot be made: {error}")
        took_s = time.monotonic() - began_s
        try:
            loop.call_soon_threadsafe(self._hand_out, reply, version, took_s)
        except RuntimeError:
            return  # the surface was stopped meanwhile

    def _hand_out(self, reply: Reply, version: Hashable, took_s: float) -> None:
        self._made, self._made_of = reply, version
        self._good_until_s = time.monotonic() + max(KEPT_S, KEPT_TIMES * took_s)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(reply)
