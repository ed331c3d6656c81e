"""A SQLite file, opened so that it keeps what was committed: pragmas, journal, locks, and plain refusals."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from soak.core.errors import CannotRun
from soak.store.folder import prepare_folder

BUSY_TIMEOUT_S = 10.0
JOURNAL_SIZE_LIMIT_BYTES = 64 << 20
READS = "soak_reads"  # execution option of a connection that only reads
MOUNTINFO = Path("/proc/self/mountinfo")
# File systems of several machines: the shared memory that WAL needs is not shared between them.
_NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|virtiofs|ceph|lustre|glusterfs|beegfs|gpfs|afs|"
    r"fuse\.(sshfs|glusterfs|ceph|s3fs|rclone|grpcfuse)|fakeowner"
)


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """An opened file: its engine, the journal mode that it answered with, what should be said about it."""

    engine: Engine
    path: Path
    journal_mode: str
    notes: tuple[str, ...] = ()


def open_sqlite(
    path: Path,
    *,
    readonly: bool,
    durable: bool = True,
    vfs: str | None = None,
    mountinfo: Path = MOUNTINFO,
) -> SqliteFile:
    """Opens the file, made where it is missing (never by a reader).

    `durable`: a commit survives power loss (synchronous FULL); False only for a simulation's own file.
    `vfs`: SQLite's own name of a way to reach files. CannotRun says what is wrong with folder or file.
    """
    path = path.expanduser().absolute()
    if path.is_dir():
        raise CannotRun(f"The database {path} is a folder; name a file in it.")
    if readonly:
        return _open_reader(path, vfs)
    prepare_folder(path.parent)
    _refuse_foreign(path, vfs)
    network = network_file_system(path.parent, mountinfo)
    wanted = "delete" if network else "wal"
    connect = _connector(path, f"mode=rwc{_vfs(vfs)}", durable)
    with refusing(path), closing(connect()) as connection:
        answer = _set_journal(connection, wanted)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("PRAGMA user_version=0")  # what cannot be written is found here at the latest
        connection.execute("ROLLBACK")
    notes = []
    if network:
        notes.append(f"{path.parent} is on {network}: the journal is {answer} instead of wal")
    elif answer != wanted:
        notes.append(
            f"{path} answered journal mode {answer} where {wanted} was asked: readers may have to wait"
        )
    return SqliteFile(_engine(connect, "BEGIN IMMEDIATE"), path, answer, tuple(notes))


def _open_reader(path: Path, vfs: str | None) -> SqliteFile:
    """mode=ro; a file in a folder where not even a reader's lock can be placed is read as it lies."""
    if not path.exists():
        raise CannotRun(f"There is no database {path}; start a run first, or name another with --database.")
    options = f"mode=ro{_vfs(vfs)}"
    try:
        with closing(_connector(path, options)()) as connection:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if primary_code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or _has_log(path):
            raise CannotRun(sentence(path, error)) from error
        options += "&immutable=1"  # no log beside it and nobody can write one: what is there is all
        mode = "immutable"
    with refusing(path), closing(_connector(path, options)()) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return SqliteFile(_engine(_connector(path, options), "BEGIN"), path, mode)


def _has_log(path: Path) -> bool:
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


def _vfs(vfs: str | None) -> str:
    return f"&vfs={quote(vfs)}" if vfs else ""


def _connector(path: Path, options: str, durable: bool = True) -> Callable[[], sqlite3.Connection]:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(str(path))}?{options}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,  # transactions begin where SQLAlchemy says, by the event below
            check_same_thread=False,
        )
        for pragma in (
            "foreign_keys=ON",
            f"synchronous={'FULL' if durable else 'OFF'}",
            f"journal_size_limit={JOURNAL_SIZE_LIMIT_BYTES}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        return connection

    return connect


def _engine(connect: Callable[[], sqlite3.Connection], begin: str) -> Engine:
    """An engine whose transactions begin with `begin`: a writer takes its lock at once or not at all."""
    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        reads = connection.get_execution_options().get(READS, False)
        connection.exec_driver_sql("BEGIN" if reads else begin)

    return engine


def _set_journal(connection: sqlite3.Connection, wanted: str) -> str:
    """The journal mode that the file answers with.

    Two openers that change it at once get SQLITE_BUSY without the busy timeout being waited for: hence ours.
    """
    until = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return str(connection.execute(f"PRAGMA journal_mode={wanted}").fetchone()[0])
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.05)


def _refuse_foreign(path: Path, vfs: str | None) -> None:
    """CannotRun for a file that is no database, or another program's; before anything in it is changed."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with refusing(path), closing(_connector(path, f"mode=rw{_vfs(vfs)}")()) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    if tables and "alembic_version" not in tables:
        raise CannotRun(foreign(str(path), tables))


def foreign(where: str, tables: set[str]) -> str:
    """What is said of another program's database."""
    some = ", ".join(sorted(tables)[:3])
    return f"The database {where} belongs to another program (tables {some}); name another with --database."


def network_file_system(folder: Path, mountinfo: Path = MOUNTINFO) -> str | None:
    """The type of the network file system that the folder is on; None on a local or an unknown one."""
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    folder = folder.resolve()
    found: tuple[int, str] = (-1, "")
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(_unescaped(before.split()[4]))
        if folder.is_relative_to(point) and len(point.parts) >= found[0]:  # a later mount hides an earlier
            found = (len(point.parts), after.split()[0])
    return found[1] if _NETWORK_FILE_SYSTEMS.fullmatch(found[1]) else None


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def copy_file(source: Path, target: Path) -> None:
    """A consistent copy, the log included, while others write. The target appears when it is whole."""
    draft = target.with_name(target.name + ".part")
    draft.unlink(missing_ok=True)
    with (
        refusing(target),
        closing(_connector(source, "mode=ro")()) as origin,
        closing(_connector(draft, "mode=rwc")()) as copy,
    ):
        origin.backup(copy)
    draft.replace(target)


def primary_code(error: BaseException | None) -> int:
    """SQLite's primary result code; 0 where there is none."""
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def sentence(path: Path, error: sqlite3.Error) -> str:
    """What SQLite's refusal means for a person."""
    where = f"The database {path}"
    return {
        sqlite3.SQLITE_NOTADB: f"{where} is no SQLite database; name another with --database.",
        sqlite3.SQLITE_CORRUPT: f"{where} is damaged ({error}); restore a copy or name another.",
        sqlite3.SQLITE_READONLY: f"{where} is not writable for uid {os.getuid()}; change its owner or mode.",
        sqlite3.SQLITE_PERM: f"{where} is not writable for uid {os.getuid()}; change its owner or mode.",
        sqlite3.SQLITE_CANTOPEN: f"{where} or the log beside it cannot be opened by uid {os.getuid()};"
        " open it once where its folder is writable (soak db current).",
        sqlite3.SQLITE_BUSY: f"{where} has been locked by another program for {BUSY_TIMEOUT_S:.0f} s;"
        " stop that program and try again.",
        sqlite3.SQLITE_FULL: f"{where} cannot grow: the disk is full; free space and try again.",
    }.get(primary_code(error), f"{where} cannot be used ({error}).")


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turns SQLite's errors at opening into CannotRun."""
    try:
        yield
    except sqlite3.Error as error:
        raise CannotRun(sentence(path, error)) from error
