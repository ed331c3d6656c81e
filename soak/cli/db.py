"""`soak db`: migrations by hand, copies, retention."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from soak.cli.arguments import Explained
from soak.cli.options import common, given
from soak.cli.say import is_terminal, say, say_error
from soak.clock import SystemClock
from soak.config import Common, parse_common
from soak.config.readers import Refused
from soak.config.readers import database as read_database
from soak.core.errors import EXIT_INCONCLUSIVE, EXIT_PASS, ConfigError
from soak.report.wording import utc, when_short
from soak.store.copy import copy_runs, copy_target
from soak.store.db import Database, sqlite_path, sqlite_url
from soak.store.folder import prepare_folder
from soak.store.host import host_id, this_process
from soak.store.keys import RunSummary
from soak.store.lease import Lease
from soak.store.prune import Keep, held, last_at_work_utc_ms, old_runs, remove, vacuum
from soak.store.sqlite import network_file_system

_WHERE = "sqlite:///, postgresql:// or a SQLite file."


@click.group()
def db() -> None:
    """The database: its version, copies of it, and what is kept in it."""


@db.command()
@common
def upgrade(**flags: Any) -> None:
    """Raise the schema to the version of this program."""
    settings = parse_common(given(flags), os.environ)
    with Database.open(settings.database) as database:
        copy = database.upgrade()
        say(f"{database.where}: {_words(database)}")
        if copy is not None:
            say(f"a copy of it as it was: {copy}")


@db.command()
@common
def current(**flags: Any) -> None:
    """Show the schema's version and the one that this program needs."""
    settings = parse_common(given(flags), os.environ)
    with Database.open(settings.database, readonly=True) as database:
        say(f"{database.where}: {_words(database)}")


@db.command("copy")
@click.argument("source", metavar="SRC", cls=Explained, help=f"The database to read: {_WHERE}")
@click.argument("target", metavar="DST", cls=Explained, help=f"Where its runs go: {_WHERE}")
@common
def copy_(source: str, target: str, **flags: Any) -> int:
    """Copy every run of one database into another, all rows or none.

    Refused where the other one holds a run of the same id. Leases are not copied.
    """
    parse_common(given(flags), os.environ, stores=False)
    from_url, to_url = _url("SRC", source), _url("DST", target)
    path, to_path = sqlite_path(from_url), sqlite_path(to_url)
    if path is not None and to_path is not None and path.resolve() == to_path.resolve():
        raise ConfigError(f"SRC and DST are the same file {path}; copy into another database.")
    with Database.open(from_url, readonly=True) as origin:
        origin.check_current()  # before the other one is made
        return _copy(origin, to_url)


def _copy(origin: Database, url: str) -> int:
    with copy_target(url) as copy:
        copied = copy_runs(origin, copy)
    n_rows = sum(copied.rows.values())
    say(f"{_runs(len(copied.run_ids))}, {n_rows} rows, from {origin.where} to {copy.where}")
    return EXIT_PASS


@db.command()
@click.option("--keep", required=True, metavar="TEXT", help="20: the newest 20 runs; 30d: those of 30 days.")
@click.option("--yes", is_flag=True, help="Remove the others without asking.")
@common
def prune(keep: str, yes: bool, **flags: Any) -> int:
    """Remove old runs with all their rows, after saying which.

    A run counts by the end of its last attempt. One that a daemon holds is never removed.
    """
    try:
        wanted = Keep.parse(keep)
    except ValueError as error:
        raise ConfigError(
            f"--keep {keep!r} is no number of runs or days; write it like 20 or 30d."
        ) from error
    settings = parse_common(given(flags), os.environ)
    with Database.open(settings.database, readonly=True) as reader:
        reader.check_current()
        old = old_runs(reader.runs(), wanted, SystemClock().utc_ms())
    if not old:
        say("Nothing is older than what is kept.")
        return EXIT_PASS
    with Database.open(settings.database) as database:
        return _prune(database, _lease(database, settings), old, yes)


def _prune(database: Database, lease: Lease, old: Sequence[RunSummary], yes: bool) -> int:
    doomed = []
    for run in old:
        with held(lease, run.info.run_id) as is_ours:
            doomed += [run.info.run_id] if is_ours else []
        says = "goes" if is_ours else "stays: a daemon holds it"
        at_work = when_short(utc(last_at_work_utc_ms(run)))
        say(f"{run.info.run_id}  last at work {at_work} UTC, {says}")
    if not doomed:
        return EXIT_PASS
    if not yes and not is_terminal(sys.stdin):
        raise ConfigError(f"--yes is needed to remove {_runs(len(doomed))} from {database.where} unasked.")
    if not yes and not click.confirm(f"Remove {_runs(len(doomed))} from {database.where}?"):
        say("Nothing was removed.")
        return EXIT_INCONCLUSIVE
    removed, n_rows = remove(database, lease, doomed)
    say(f"{_runs(len(removed))}, {n_rows} rows removed from {database.where}")
    kept_room = vacuum(database)
    if kept_room:
        say_error(
            f"The file keeps its size ({kept_room}); "
            "prune again when there is space and nothing else uses it."
        )
    return EXIT_PASS


def _lease(database: Database, settings: Common) -> Lease:
    folder = prepare_folder(settings.data_dir)
    shared = network_file_system(folder) is not None
    holder = this_process(host_id(folder))
    return Lease(database, holder, SystemClock(), folder=folder, folder_is_shared=shared)


def _url(what: str, text: str) -> str:
    """A URL as it is, a path as that of a SQLite file."""
    if not text:
        raise ConfigError(f"{what} is empty; legal: {_WHERE}")
    if "://" not in text:
        return sqlite_url(Path(text).absolute())
    try:
        return read_database(text)
    except Refused as refused:
        raise ConfigError(f"{what}: {refused}.") from refused


def _runs(n: int) -> str:
    return f"{n} run{'s' if n != 1 else ''}"


def _words(database: Database) -> str:
    version = database.current()
    if version.is_current:
        return f"version {version.current}, current"
    return f"version {version.current or 'none'}, this program needs {version.head}: run `soak db upgrade`"
