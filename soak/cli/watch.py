"""`soak watch`: the live view of a daemon elsewhere."""

from __future__ import annotations

import logging
import os
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

import click

from soak.cli.arguments import Explained
from soak.cli.options import common, given
from soak.cli.say import say, say_error
from soak.cli.view import Show, set_up_logging, watching
from soak.config import parse_common
from soak.core.errors import EXIT_INCONCLUSIVE, CannotRun, ConfigError
from soak.report.document import Document
from soak.report.watched import NotAReport, document_from_json, snapshot_of

EVERY_S = 2.0  # the daemon makes its report no more often
TIMES_COST = 10  # and a report that takes long to fetch is fetched less often
TIMEOUT_S = 10.0
BODY_MOST = 1 << 28  # bytes
AWAY_MOST_S = 60.0  # that a daemon may be silent before it is given up
log = logging.getLogger("soak")
UNDER_WAY = ("starting", "running", "silent")


class _Away(Exception):
    """The daemon does not answer; the text says how."""


class _NotYet(Exception):
    """It answers and has no run yet; the text is its own."""


@click.command()
@click.argument("url", metavar="URL", cls=Explained, help="Of a daemon's page, like http://host:9868.")
@common
def watch(url: str, **flags: Any) -> int:
    """Show a run on another machine as it goes on; ends with the run, with its exit code.

    4: the daemon cannot be reached. 3 also where it is lost on the way; the run may go on.
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
        say(f"{last.run.run_id} {last.run.state}: {last.verdict.title}")
    return last.verdict.exit_code


def _run_json(url: str) -> str:
    """Where the report is. ConfigError for what is no address of a daemon."""
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable:
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
            last = _fetch(where)
            heard_s = time.monotonic()
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
                    f"{last.run.run_id}` on its machine says how the run ended."
                )
                return last
        if last is not None:
            show(snapshot_of(last))
            if last.run.state not in UNDER_WAY:
                return last
        time.sleep(max(EVERY_S, TIMES_COST * (heard_s - asked_s)))


def _fetch(where: str) -> Document:
    """The report as of now. Raises _Away, _NotYet."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a daemon is no site on the web
    try:
        with opener.open(where, timeout=TIMEOUT_S) as reply:
            body = reply.read(BODY_MOST + 1)
    except urllib.error.HTTPError as error:
        said = error.read(200).decode("utf-8", "replace").strip()
        if error.code == 503:
            raise _NotYet(said) from error
        raise _Away(f"it answers {error.code}") from error
    except (OSError, HTTPException) as error:
        raise _Away(str(getattr(error, "reason", None) or error) or type(error).__name__) from error
    if len(body) > BODY_MOST:
        raise _Away(f"its report has more than {BODY_MOST >> 20} MiB")
    try:
        return document_from_json(body)
    except NotAReport as error:
        raise _Away(f"what it answers is no report: {error}") from error
