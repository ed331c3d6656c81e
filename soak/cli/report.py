"""`soak report` and `soak runs`: what the store holds, judged anew."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from soak.cli.options import common, given
from soak.cli.say import is_terminal, say
from soak.config import parse_common, protocol_from_config
from soak.core.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, CannotRun
from soak.core.records import RunRecord, Verdict
from soak.core.verdict import Judgement, judge
from soak.report.as_text import as_text
from soak.report.assemble import assemble
from soak.report.render import FORMATS, check_format, render
from soak.report.runs import runs_json, runs_text
from soak.store.db import Database

EXIT_CODES = {Verdict.PASS: EXIT_PASS, Verdict.FAIL: EXIT_FAIL, Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE}


@click.command()
@click.option(
    "--run-id", required=True, metavar="ID", help="A run's id, a unique part of its beginning, or latest."
)
@click.option("--format", "fmt", default="text", metavar="FORMAT", help=f"{', '.join(FORMATS)}.")
@click.option("--output", metavar="FILE", help="Write to a file instead of the terminal.")
@common
def report(run_id: str, fmt: str, output: str | None, **flags: Any) -> int:
    """Print a run's certificate; the exit code is its verdict's."""
    check_format(fmt)
    settings = parse_common(given(flags), os.environ)
    with Database.open(settings.database, readonly=True) as database:
        database.check_current()
        record = database.load(database.resolve(run_id))
    judgement = judge(record, protocol_from_config(record.info.config))
    text = rendered(record, judgement, fmt, colour=output is None and is_terminal(sys.stdout))
    if output is None:
        say(text.rstrip("\n"))
    else:
        write_text(Path(output), text)
    return EXIT_CODES[judgement.verdict]


def rendered(record: RunRecord, judgement: Judgement, fmt: str, *, colour: bool = False) -> str:
    """A run in one of the formats, as of now."""
    now_s = time.time()
    offset_min = (time.localtime(now_s).tm_gmtoff or 0) // 60
    document = assemble(
        record, judgement, protocol_from_config(record.info.config), int(now_s * 1000), offset_min
    )
    return as_text(document, colour=colour) if fmt == "text" else render(document, fmt)


def write_text(path: Path, text: str) -> None:
    """CannotRun where the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CannotRun(
            f"The report cannot be written to {path} ({error.strerror}); choose another."
        ) from error


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@common
def runs(as_json: bool, **flags: Any) -> int:
    """List the runs in the database, newest first."""
    settings = parse_common(given(flags), os.environ)
    with Database.open(settings.database, readonly=True) as database:
        database.check_current()
        found = []
        for summary in database.runs():
            record = database.load(summary.info.run_id)
            found.append((record, judge(record, protocol_from_config(record.info.config))))
    listed = runs_json if as_json else runs_text
    say(listed(found, time.time_ns() // 1_000_000).rstrip("\n"))
    return EXIT_PASS
