"""`soak watch`: the live view of a daemon elsewhere."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Timer
from typing import Any
from urllib import request
from urllib.error import HTTPError
from urllib.parse import urlsplit

import click

from soak.cli.arguments import Explained
from soak.cli.options import common, given
from soak.cli.say import say, say_error
from soak.cli.view import Show, set_up_logging, watching
from soak.config import parse_common
from soak.core.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, CannotRun, ConfigError
from soak.report.document import Document
from soak.report.watched import document_from_json, snapshot_of
from soak.report.wording import clean

EVERY_S = 2.0  # the daemon makes its report no more often
TIMES_COST = 10  # and a report that takes long to fetch is fetched less often
TIMEOUT_S = 10.0  # of each wait for the next byte
FETCH_MOST_S = 30.0  # of a whole report, however many bytes keep coming
BODY_MOST = 1 << 28  # bytes
AWAY_MOST_S = 60.0  # that a daemon may be silent before it is given up
log = logging.getLogger("soak")
UNDER_WAY = ("starting", "running", "silent")
ENDED = ("completed", "interrupted", "failed", "closed")
# What a report may hold that this program does not know: words, numbers beyond reason, endless nesting.
UNREADABLE = (ValueError, ArithmeticError, RecursionError)


class _Told(Exception):
    """Its text may be a stranger's, and goes to a terminal."""

    def __init__(self, text: str) -> None:
        super().__init__(clean(text))


class _Away(_Told):
    """The daemon does not answer; the text says how."""


class _NotYet(_Told):
    """It answers and has no run yet; the text is its own."""


@click.command()
@click.argument("url", metavar="URL", cls=Explained, help="Of a daemon's page, like http://host:9868.")
@common
def watch(url: str, **flags: Any) -> int:
    """Show a run on another machine as it goes on; ends with the run, with its exit code.

    4: the daemon cannot be reached. 3 also where it is lost on the way, 1 where the run had failed by then;
    the run may go on.
    """
    settings = parse_common(given(flags), os.environ, stores=False)
    set_up_logging(settings.log_level, settings.log_format)
    where = _run_json(url)
    try:
        with watching() as show:
            last = _follow(where, show)
    except KeyboardInterrupt:
        say_error("Not watching any more; the run goes on.")
        return EXIT_INCONCLUSIVE
    if last.run.state not in UNDER_WAY:
        say(clean(f"{last.run.run_id} {last.run.state}: {last.verdict.title}", None))
    return last.verdict.exit_code


def _run_json(url: str) -> str:
    """Where the report is. ConfigError for what is no address of a daemon."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        (parts.hostname or "").encode("idna")  # refuses a name with an empty or endless part
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if usable and "@" in parts.netloc:
        raise ConfigError("A daemon takes no user and no password; write its address like http://host:9868.")
    if not usable or not all("!" <= c <= "~" and c not in "?#" for c in whole):
        raise ConfigError(f"{url!r} is no address of a daemon; write it like http://host:9868.")
    return whole if whole.endswith("/run.json") else f"{whole.rstrip('/')}/run.json"


def _follow(where: str, show: Show) -> Document:
    """Until the run has ended, or its daemon is lost: the last report. CannotRun where there was none."""
    last: Document | None = None
    said = ""
    heard_s = time.monotonic()
    while True:
        asked_s = time.monotonic()
        try:
            report = _fetch(where)
            fetched_s = time.monotonic()
            _show(report, show)
            if report.run.state not in UNDER_WAY:
                return report
            last, heard_s = report, fetched_s
        except _NotYet as not_yet:
            if str(not_yet) != said:
                said = str(not_yet)
                log.info("%s: %s", where, said)
            heard_s = time.monotonic()
        except _Away as away:
            if last is None:
                raise CannotRun(f"There is no daemon at {where} ({away}); check the address.") from away
            if time.monotonic() - heard_s > AWAY_MOST_S:
                say_error(
                    f"{where} has not answered for {AWAY_MOST_S:.0f} s ({away}); `soak report --run-id "
                    f"{clean(last.run.run_id)}` on its machine says how the run ended."
                )
                return last
        time.sleep(max(EVERY_S, TIMES_COST * (heard_s - asked_s)))


def _show(report: Document, show: Show) -> None:
    """Raises _Away where the report holds what this program does not know."""
    try:
        if report.verdict.exit_code not in (EXIT_PASS, EXIT_FAIL, EXIT_INCONCLUSIVE):
            raise ValueError(f"its exit code is {report.verdict.exit_code}")
        if report.run.state not in UNDER_WAY + ENDED:
            raise ValueError(f"{report.run.state!r} is no state of a run")
        show(snapshot_of(report))
    except UNREADABLE as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> _Away:
    return _Away(f"what it answers is no report that this program can read: {error}")


def _fetch(where: str) -> Document:
    """The report as of now. Raises _Away, _NotYet."""
    timed = _Timed()
    try:
        status, body = _answer(timed, where)
    except (OSError, HTTPException, ValueError) as error:  # ValueError: it redirects to what is no address
        why = timed.late or str(getattr(error, "reason", None) or error) or type(error).__name__
        raise _Away(why) from error
    finally:
        timed.close()
    if timed.late:
        raise _Away(timed.late)
    if status == 503:
        raise _NotYet(body.decode("utf-8", "replace").strip())
    if status != 200:
        raise _Away(f"it answers {status}")
    if len(body) > BODY_MOST:
        raise _Away(f"its report has more than {BODY_MOST >> 20} MiB")
    try:
        return document_from_json(body)
    except UNREADABLE as error:
        raise _unreadable(error) from error


def _answer(timed: _Timed, where: str) -> tuple[int, bytes]:
    opener = request.OpenerDirector()  # without proxies: a daemon is no site on the web
    for handler in (timed, request.HTTPErrorProcessor(), request.HTTPRedirectHandler()):
        opener.add_handler(handler)
    opener.add_handler(request.HTTPDefaultErrorHandler())
    opener.add_handler(request.UnknownHandler())
    try:
        with opener.open(where, timeout=TIMEOUT_S) as reply:
            return 200, reply.read(BODY_MOST + 1)
    except HTTPError as error:
        with error:
            return error.code, error.read(200)


class _Plain(HTTPConnection):
    """Hands its socket over before anything goes through it, the greeting of TLS included."""

    opened: Callable[[socket.socket], None]

    def connect(self) -> None:
        super().connect()
        self.opened(self.sock)


class _Tls(HTTPSConnection, _Plain):
    pass


class _Timed(request.HTTPHandler, request.HTTPSHandler):
    """One fetch, ended after FETCH_MOST_S: a socket's own timeout begins anew with every byte."""

    def __init__(self) -> None:
        super().__init__()
        self.late = ""  # what there is to say once the time is up
        self._sockets: list[socket.socket] = []
        self._timer = Timer(FETCH_MOST_S, self._shut)
        self._timer.daemon = True
        self._timer.start()

    def close(self) -> None:
        self._timer.cancel()
        self._timer.join()
        for kept in self._sockets:
            kept.close()

    def http_open(self, req: request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, _Plain), req)

    def https_open(self, req: request.Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, _Tls), req)

    def _connection(self, kind: type[_Plain], *args: Any, **options: Any) -> _Plain:
        connection = kind(*args, **options)
        connection.opened = self._keep
        return connection

    def _keep(self, opened: socket.socket) -> None:
        self._sockets.append(opened.dup())  # TLS takes the socket itself away
        if self.late:
            self._shut()

    def _shut(self) -> None:
        self.late = f"it has not answered in full within {FETCH_MOST_S:g} s"
        for kept in self._sockets:
            with suppress(OSError):
                kept.shutdown(socket.SHUT_RDWR)
