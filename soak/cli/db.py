"""`soak db`: migrations by hand."""

from __future__ import annotations

import os
from typing import Any

import click

from soak.cli.options import common, given
from soak.cli.say import say
from soak.config import parse_common
from soak.store.db import Database


@click.group()
def db() -> None:
    """The database: upgrade and current version. `soak run` upgrades by itself, `soak report` never."""


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


def _words(database: Database) -> str:
    version = database.current()
    if version.is_current:
        return f"version {version.current}, current"
    return f"version {version.current or 'none'}, this program needs {version.head}: run `soak db upgrade`"
