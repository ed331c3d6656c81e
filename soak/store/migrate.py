"""The schema's version: read, compared with what this program knows, and raised to it. Never lowered."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import inspect, text
from sqlalchemy.engine import Connection

from soak.core.errors import CannotRun
from soak.store.sqlite import foreign

SCRIPT_LOCATION = "soak_migrations:."
LOCK_TIMEOUT_S = 60.0
ADVISORY_LOCK = 0x736F616B  # "soak", of PostgreSQL
_LEFTOVER = re.compile(r"_alembic_tmp_\w+")  # of a batch that a crash cut short


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """`current`: the database's revision, None before the first; `head`: the newest known here."""

    current: str | None
    head: str

    @property
    def is_current(self) -> bool:
        return self.current == self.head


def read_version(connection: Connection, where: str) -> SchemaVersion:
    """CannotRun for another program's database and for one from a newer soak."""
    script = ScriptDirectory.from_config(_config())
    head = script.get_current_head()
    assert head is not None, "the migrations are not installed"
    current = MigrationContext.configure(connection).get_current_revision()
    tables = set(inspect(connection).get_table_names()) - {"alembic_version"}
    if current is None:
        if tables:
            raise CannotRun(foreign(where, tables))
        return SchemaVersion(None, head)
    try:
        script.get_revision(current)
    except CommandError as error:
        if "sample" not in tables:
            raise CannotRun(foreign(where, tables)) from error
        raise CannotRun(
            f"The database {where} is from a newer soak (schema {current}, this program knows {head});"
            " upgrade soak or name another with --database."
        ) from error
    return SchemaVersion(current, head)


def check_current(connection: Connection, where: str) -> SchemaVersion:
    """CannotRun for anything but a database of exactly this program's version."""
    version = read_version(connection, where)
    if version.current is None:
        raise CannotRun(f"The database {where} is empty; start a run first, or name another with --database.")
    if not version.is_current:
        raise CannotRun(
            f"The database {where} is from an older soak (schema {version.current}, this program needs"
            f" {version.head}); run `soak db upgrade`."
        )
    return version


def upgrade(connection: Connection) -> None:
    """Raises the schema to the newest version inside the connection's transaction: all of it or nothing."""
    for table in inspect(connection).get_table_names():
        if _LEFTOVER.fullmatch(table):
            connection.execute(text(f'DROP TABLE "{table}"'))
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def take_advisory_lock(connection: Connection) -> None:
    """Waits until no other starter migrates this PostgreSQL database; let go with the transaction."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})


@contextmanager
def file_lock(path: Path, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Holds `<path>.migrating`, so that of several starters one copies and migrates."""
    lock = path.with_name(path.name + ".migrating")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        until = time.monotonic() + timeout_s
        while not _locked(descriptor):
            if time.monotonic() > until:
                raise CannotRun(
                    f"Another process has been migrating {path} for {timeout_s:.0f} s; stop it or wait."
                )
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _config() -> Config:
    """Alembic's configuration, built here: an ini file's `fileConfig` would silence the program's logging."""
    config = Config()
    config.set_main_option("script_location", SCRIPT_LOCATION)
    config.set_main_option("path_separator", "os")
    return config
