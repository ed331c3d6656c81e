"""The database of runs: opened, raised to this version, read. Rows are written by `soak.store.writer`."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, func, make_url, select, text
from sqlalchemy.exc import ArgumentError, DatabaseError, SQLAlchemyError

from soak.core.errors import CannotRun, ConfigError
from soak.core.records import RunInfo, RunRecord
from soak.store import mapping, migrate, sqlite
from soak.store.keys import Record, RunSummary, assemble

_POSTGRES_TIMEOUTS = "-c lock_timeout=10s -c statement_timeout=60s -c idle_in_transaction_session_timeout=60s"

log = logging.getLogger(__name__)


class StoreAway(Exception):
    """The database is not where it was opened: its file was removed or replaced."""


def sqlite_url(path: Path) -> str:
    """The URL of a SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string()


class Database:
    """A database of runs, SQLite or PostgreSQL. `open` it; `close` it, or use it as a context."""

    def __init__(self, engine: Engine, where: str, *, file: sqlite.SqliteFile | None, readonly: bool) -> None:
        self.engine = engine
        self.where = where  # for people: the path, or the URL without its password
        self.path = file.path if file else None
        self.journal_mode = file.journal_mode if file else None
        self.notes = file.notes if file else ()
        self.readonly = readonly
        self._identity = _identity(self.path)
        self._reads: dict[str, Any] = {sqlite.READS: True}
        if file is None:
            self._reads = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

    @classmethod
    def open(
        cls,
        url: str,
        *,
        readonly: bool = False,
        durable: bool = True,
        mountinfo: Path = sqlite.MOUNTINFO,
    ) -> Database:
        """Opens `sqlite:///path` (made where missing, unless `readonly`) or `postgresql://…`.

        `durable=False` is for a simulation's own file: a commit need not survive power loss. The schema is
        not looked at: `upgrade` or `check_current` comes next. ConfigError for a URL of another kind,
        CannotRun where folder, file or server do not allow it.
        """
        parsed = _parse(url)
        if parsed.get_backend_name() == "postgresql":
            database = _open_postgres(parsed, readonly)
        else:
            vfs = parsed.query.get("vfs")
            file = sqlite.open_sqlite(
                Path(parsed.database or ""),
                readonly=readonly,
                durable=durable,
                vfs=vfs if isinstance(vfs, str) else None,
                mountinfo=mountinfo,
            )
            database = cls(file.engine, str(file.path), file=file, readonly=readonly)
        for note in database.notes:
            log.warning(note)
        return database

    def close(self) -> None:
        """Lets go of every connection."""
        self.engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that may write, committed at the end. StoreAway where the file is no longer there."""
        assert not self.readonly, "the database was opened for reading"
        if self._identity != _identity(self.path):
            raise StoreAway(f"{self.where} was removed or replaced")
        with self.engine.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that only reads and sees one state of the whole database."""
        with self.engine.connect().execution_options(**self._reads) as connection, connection.begin():
            yield connection

    def current(self) -> migrate.SchemaVersion:
        """The schema's version and the one that this program needs. CannotRun for foreign and newer ones."""
        with refusing(self), self.read() as connection:
            return migrate.read_version(connection, self.where)

    def check_current(self) -> None:
        """CannotRun for anything but a database of exactly this version; changes nothing."""
        with refusing(self), self.read() as connection:
            migrate.check_current(connection, self.where)

    def upgrade(self) -> Path | None:
        """Raises the schema to this version; of several starters at once, one does.

        An older SQLite file is copied beside itself first; the copy's path comes back. CannotRun for
        foreign and newer databases, which stay as they are.
        """
        with refusing(self):
            if self.path is None:
                with self.write() as connection:
                    migrate.take_advisory_lock(connection)
                    if not migrate.read_version(connection, self.where).is_current:
                        migrate.upgrade(connection)
                return None
            with migrate.file_lock(self.path):
                return self._upgrade_file(self.path)

    def _upgrade_file(self, path: Path) -> Path | None:
        version = self.current()
        if version.is_current:
            return None
        copy = None
        if version.current is not None:
            copy = path.with_name(f"{path.name}.before-{version.head}")
            sqlite.copy_file(path, copy)
        with self.write() as connection:
            migrate.upgrade(connection)
        return copy

    def truncate_log(self) -> str:
        """Brings a SQLite log's rows into the file and gives its room back; "" where that was done, else why
        not."""
        if self.path is None:
            return ""
        try:
            connection = self.engine.raw_connection()
            try:
                cursor = connection.cursor()
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                ((is_busy, *_),) = cursor.fetchall()
            finally:
                connection.close()
        except (SQLAlchemyError, sqlite3.Error) as error:
            return explain(error)
        return "another program is at work in it" if is_busy else ""

    def quick_check(self) -> tuple[str, ...]:
        """What SQLite's own check of the file's structure found; empty where all is well, or no SQLite."""
        if self.path is None:
            return ()
        with refusing(self):
            try:
                with self.read() as connection:
                    found = connection.execute(text("PRAGMA quick_check")).scalars().all()
            except DatabaseError as error:  # damaged too far for the check itself
                if sqlite.primary_code(error.orig) != sqlite3.SQLITE_CORRUPT:
                    raise
                return (explain(error),)
        return () if found == ["ok"] else tuple(str(line) for line in found)

    def runs(self) -> list[RunSummary]:
        """Every run, newest first."""
        attempts, findings = mapping.ATTEMPT.table.c, mapping.FINDING.table.c
        with refusing(self), self.read() as connection:
            summaries = []
            for info in mapping.RUN.read(connection, devices=()):
                of_run = mapping.ATTEMPT.read(connection, attempts.run_id == info.run_id)
                summaries.append(
                    RunSummary(
                        info=replace(info, devices=mapping.read_devices(connection, info.run_id)),
                        n_attempts=len(of_run),
                        attempt=of_run[-1] if of_run else None,
                        findings=tuple(mapping.FINDING.read(connection, findings.run_id == info.run_id)),
                    )
                )
        return sorted(summaries, key=lambda s: (s.info.created_utc_ms, s.info.run_id), reverse=True)

    def resolve(self, wanted: str) -> str:
        """The id of the run that `wanted` means: a whole id, a unique beginning of one, or `latest`.

        ConfigError lists the runs that there are, or that it could mean.
        """
        with refusing(self), self.read() as connection:
            run = mapping.RUN.table.c
            newest_first = run.created_utc_ms.desc(), run.run_id.desc()
            known: list[str] = list(connection.scalars(select(run.run_id).order_by(*newest_first)))
        if wanted == "latest" and known:
            return known[0]
        if wanted in known:
            return wanted
        meant = [run_id for run_id in known if wanted and run_id.startswith(wanted)]
        if len(meant) == 1:
            return meant[0]
        if meant:
            raise ConfigError(f"Run id {wanted!r} could be {_listed(meant)}; give more of it.")
        there = f"known are {_listed(known)}" if known else f"there is no run in {self.where}"
        raise ConfigError(f"There is no run {wanted!r}: {there}.")

    def load(self, run_id: str) -> RunRecord:
        """The whole run, of one instant; `rows` is counted by the database, not by what was read."""
        with refusing(self), self.read() as connection:
            records: list[Record] = []
            for rows in mapping.MAPS:
                if rows in (mapping.RUN, mapping.DEVICE):
                    continue
                records += rows.read(connection, rows.table.c.run_id == run_id)
            devices = mapping.read_devices(connection, run_id)
            records += _info(connection, run_id, devices=devices)
            return assemble(records, count_rows(connection, run_id))


def count_rows(connection: Connection, run_id: str) -> dict[str, int]:
    """Rows of the run, per table: what `Closing.rows` says at the end and `RunRecord.rows` at reading."""
    counts = {}
    for rows in mapping.MAPS:
        query = select(func.count()).select_from(rows.table).where(rows.table.c.run_id == run_id)
        counts[rows.table.name] = connection.scalar(query) or 0
    return counts


def _info(connection: Connection, run_id: str, **extra: Any) -> list[RunInfo]:
    found = mapping.RUN.read(connection, mapping.RUN.table.c.run_id == run_id, **extra)
    if not found:
        raise ConfigError(f"There is no run {run_id!r}; `soak runs` lists those there are.")
    return found


def _listed(ids: list[str], limit: int = 10) -> str:
    more = f" and {len(ids) - limit} more" if len(ids) > limit else ""
    return ", ".join(ids[:limit]) + more


def sqlite_path(url: str) -> Path | None:
    """The file that the URL names; None where it names a server."""
    parsed = _parse(url)
    is_file = parsed.get_backend_name() == "sqlite"
    return Path(parsed.database or "").expanduser().absolute() if is_file else None


def _identity(path: Path | None) -> tuple[int, int] | None:
    """Which file lies at the path; SQLite itself would go on writing into a removed one."""
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino) if stat else None


def _parse(url: str) -> URL:
    """ConfigError unless the URL names a SQLite file or a PostgreSQL database."""
    advice = "give sqlite:////path/to/soak.db or postgresql://user@host/name"
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError(f"The database {url!r} is no URL; {advice}.") from error
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise ConfigError(f"A database of kind {parsed.get_backend_name()!r} cannot be used; {advice}.")
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigError(
            f"The database {url!r} names no file, and a run has to outlive its process; {advice}."
        )
    return parsed


def _open_postgres(url: URL, readonly: bool) -> Database:
    where = url.render_as_string(hide_password=True)
    options = f"{_POSTGRES_TIMEOUTS} {url.query.get('options', '')}".strip()
    query = {key: value for key, value in url.query.items() if key != "options"}
    try:
        engine = create_engine(
            url.set(drivername="postgresql+psycopg", query=query),
            connect_args={
                "connect_timeout": 5,
                "options": options,
                "keepalives_idle": 10,
                "tcp_user_timeout": 15_000,
            },
        )
    except ImportError as error:
        raise CannotRun(
            f"{where} needs psycopg, which is not installed; run `pip install 'gpu-soak[postgresql]'`."
        ) from error
    database = Database(engine, where, file=None, readonly=readonly)
    with refusing(database), database.read():
        pass
    return database


@contextmanager
def refusing(database: Database) -> Iterator[None]:
    """For what a person asked for: turns the database's errors into CannotRun."""
    try:
        yield
    except (SQLAlchemyError, StoreAway, OSError) as error:
        raise CannotRun(f"The database {database.where} cannot be used ({explain(error)}).") from error


def explain(error: Exception) -> str:
    """The database's own words, one line of them."""
    said = str(getattr(error, "orig", None) or error).strip()
    return said.splitlines()[0] if said else type(error).__name__
