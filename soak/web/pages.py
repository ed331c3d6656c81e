"""Which path gets what, from what the run published last. Nothing here waits."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from soak.core.snapshot import Snapshot
from soak.web import health
from soak.web.document import Documents, Source
from soak.web.page import page
from soak.web.reply import HTML, Reply, text

log = logging.getLogger(__name__)

Metrics = Callable[[Snapshot | None, int, str], tuple[str, bytes]]
"""Snapshot, its age in milliseconds, Accept header: Content-Type and body."""

# The page brings its own style and nothing else, and nobody may frame it.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


PATHS = ("/", "/healthz", "/metrics", "/readyz", "/run.json")


@dataclass(frozen=True, slots=True)
class Published:
    """What the run said last; replaced as a whole."""

    snapshot: Snapshot
    document: Source
    at_s: float  # time.monotonic


class Pages:
    """Answers requests. `published` is set by the run's thread, everything else is the loop's."""

    def __init__(self, metrics: Metrics) -> None:
        self.published: Published | None = None
        self._metrics = metrics
        self._documents = Documents()
        self._page: tuple[Snapshot | None, str, Reply] | None = None  # and what it was made from
        self.report_asked_s = -math.inf  # time.monotonic
        self.report_is_known = False  # since the run's end

    def answer(self, path: str, accept: str) -> Reply | asyncio.Future[Reply]:
        """The reply to a GET of this path; what goes wrong in making it is logged and answered with 500."""
        try:
            return self._answer(path, accept)
        except Exception:  # the loop over requests: the next one must be served
            log.exception("%s cannot be answered", path)
            return text(500, f"{path} cannot be made; the log of the daemon says why")

    def _answer(self, path: str, accept: str) -> Reply | asyncio.Future[Reply]:
        published = self.published
        snapshot = None if published is None else published.snapshot
        age_ms = 0 if published is None else int((time.monotonic() - published.at_s) * 1000)
        match path:
            case "/metrics":
                kind, body = self._metrics(snapshot, age_ms, accept)
                return Reply(200, kind, body, {"Vary": "Accept"})
            case "/healthz":
                trouble = health.trouble(snapshot, age_ms)
                return text(503, trouble) if trouble else text(200, "ok")
            case "/readyz":
                if health.is_ready(snapshot):
                    return text(200, "ok")
                return text(503, (snapshot.message if snapshot else "") or "the run's clock has not started")
            case "/run.json":
                version = (snapshot.state, snapshot.attempt.number) if snapshot is not None else None
                report = self._documents.get(None if published is None else published.document, version)
                self._note_asked(report, snapshot is not None and health.is_over(snapshot))
                return report
            case "/":
                return self._live(snapshot, health.trouble(snapshot, age_ms))
        return text(404, f"there is no such page; there are {', '.join(PATHS)}")

    def _note_asked(self, report: Reply | asyncio.Future[Reply], is_last: bool) -> None:
        self.report_asked_s = time.monotonic()
        if isinstance(report, Reply):
            self.report_is_known = is_last
        elif is_last:
            report.add_done_callback(lambda _: setattr(self, "report_is_known", True))

    def _live(self, snapshot: Snapshot | None, trouble: str) -> Reply:
        """Made once a snapshot, however many look at it."""
        if self._page is None or self._page[0] is not snapshot or self._page[1] != trouble:
            body = page(snapshot, trouble).encode("utf-8", "replace")
            self._page = snapshot, trouble, Reply(200, HTML, body, PAGE_HEADERS)
        return self._page[2]
