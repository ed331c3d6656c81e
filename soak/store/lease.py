"""Leases: one daemon a run, one daemon a card. In the database, and by a lock of the machine for each card.

A lease is a row with its holder and the time of its last renewal. One whose holder has ended for certain is
taken at once, any other after 60 s without renewal; the process id tells, and where that means nothing, in
another container, the sign of life in the data folder. The lock (flock on `card-<gpu>.lock` in a folder that
every user of the machine shares, `/dev/shm/soak`) refuses the same card to a daemon with another database;
the kernel lets go of it when its holder ends, however that happens.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, delete, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from soak.core.errors import CannotRun
from soak.core.ports import Clock
from soak.store import presence
from soak.store.db import Database, StoreAway, explain, refusing
from soak.store.host import PROC, Holder, is_gone
from soak.store.models import LeaseRow

STALE_MS = 60_000
LOCK_FOLDER = Path("/dev/shm/soak")

log = logging.getLogger(__name__)


class Lease:
    """A run and its cards, held by one process: `acquire`, `renew` each 15 s (the writer does), `release`.

    `folder`: the data folder, for signs of life (see `presence`); without it only process ids tell who ended.
    """

    def __init__(
        self,
        database: Database,
        holder: Holder,
        clock: Clock,
        *,
        folder: Path | None = None,
        folder_is_shared: bool = False,
        lock_folder: Path = LOCK_FOLDER,
        proc: Path = PROC,
    ) -> None:
        self._database = database
        self._holder = holder
        self._clock = clock
        self._folder = folder
        self._folder_is_shared = folder_is_shared
        self._lock_folder = lock_folder
        self._proc = proc
        self._names: tuple[str, ...] = ()
        self._locks: list[int] = []  # open files
        self._sign_of_life: int | None = None  # an open file

    def acquire(
        self,
        run_id: str,
        gpus: Sequence[str],
        *,
        wait_ms: int = 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Takes the run and every card, all or none, within `wait_ms`.

        CannotRun names what is held, by whom, and what to do. A wait of a little more than 60 s gets over
        a holder that ended where this process cannot see it (another machine).
        """
        assert not self._names, "the lease is held already"
        until_ms = self._clock.boot_ms() + wait_ms
        names = (f"run:{run_id}", *(f"card:{self._holder.host_id}/{gpu}" for gpu in gpus))
        while True:
            try:
                self._lock_cards(gpus)
                self._show_life()  # before the first row that names this process
                self._take(names)
            except CannotRun:
                self._hide_life()
                self._unlock_cards()
                if self._clock.boot_ms() >= until_ms:
                    raise
                sleep(1.0)
            else:
                self._names = names
                return

    def renew(self) -> tuple[str, ...]:
        """Says that this process is still there. Returns the names that another has taken meanwhile."""
        with self._writing() as connection:
            lost = tuple(name for name in self._names if self._taken_by_other(connection, name))
            self._stamp(connection, [name for name in self._names if name not in lost])
        self._names = tuple(name for name in self._names if name not in lost)
        return lost

    def release(self) -> None:
        """Lets go of everything that is held; where the database is away, its rows grow stale instead."""
        names, self._names = self._names, ()
        try:
            with self._writing() as connection:
                held = [name for name in names if not self._taken_by_other(connection, name)]
                connection.execute(delete(LeaseRow).where(LeaseRow.name.in_(held)))
        except (SQLAlchemyError, StoreAway) as error:
            log.warning("%s could not be let go (%s)", ", ".join(names), explain(error))
            self._end_life()
        else:
            self._hide_life()
        finally:
            self._unlock_cards()

    # --- rows

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction beside which no other one touches the leases (SQLite's writers are alone anyway)."""
        with self._database.write() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("LOCK TABLE lease IN EXCLUSIVE MODE"))
            yield connection

    def _take(self, names: Sequence[str]) -> None:
        ended: set[Holder] = set()
        with refusing(self._database), self._writing() as connection:
            for name in names:
                held = self._read(connection, name)
                if held is None or _holder(held) == self._holder:
                    continue
                if self._has_ended(_holder(held)):
                    ended.add(_holder(held))
                elif self._age_ms(held) <= STALE_MS:
                    raise CannotRun(self._refusal(name, held))
            self._stamp(connection, names)
        if self._folder is not None:
            for holder in ended:
                presence.clear(self._folder, holder)

    def _read(self, connection: Connection, name: str) -> LeaseRow | None:
        row = connection.execute(select(LeaseRow.__table__).where(LeaseRow.name == name)).one_or_none()
        return None if row is None else LeaseRow(**row._mapping)

    def _has_ended(self, holder: Holder) -> bool:
        """For certain."""
        if is_gone(holder, self._holder, folder_is_shared=self._folder_is_shared, proc=self._proc):
            return True
        return self._is_alive(holder) is False

    def _is_alive(self, holder: Holder) -> bool | None:
        """By its sign of life, which means something on this machine, in this data folder; None elsewhere."""
        me = self._holder
        here = holder.host_id == me.host_id and holder.boot_id == me.boot_id != ""
        return presence.is_alive(self._folder, holder) if here and self._folder is not None else None

    def _age_ms(self, held: LeaseRow) -> int:
        """Since the last renewal: by the boot's clock within one boot, which no step moves; else by the
        wall clock, where a stamp from the future is no fresher than one as far in the past."""
        if held.boot_id and held.boot_id == self._holder.boot_id:
            return self._clock.boot_ms() - held.renewed_boot_ms
        return abs(self._clock.utc_ms() - held.renewed_utc_ms)

    def _taken_by_other(self, connection: Connection, name: str) -> bool:
        held = self._read(connection, name)
        return held is not None and _holder(held) != self._holder

    def _stamp(self, connection: Connection, names: Sequence[str]) -> None:
        if not names:
            return
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        statement = insert(LeaseRow)
        columns = [c.name for c in LeaseRow.__table__.columns if c.name != "name"]
        row = {
            "host_id": self._holder.host_id,
            "boot_id": self._holder.boot_id,
            "pid_namespace": self._holder.pid_namespace,
            "pid": self._holder.pid,
            "pid_start": self._holder.pid_start,
            "renewed_boot_ms": self._clock.boot_ms(),
            "renewed_utc_ms": self._clock.utc_ms(),
        }
        new = {column: statement.excluded[column] for column in columns}
        connection.execute(
            statement.on_conflict_do_update(index_elements=["name"], set_=new),
            [{"name": name, **row} for name in names],
        )

    def _refusal(self, name: str, held: LeaseRow) -> str:
        kind, _, rest = name.partition(":")
        what = f"Run {rest}" if kind == "run" else f"Card {rest.partition('/')[2]}"
        holder, ago_s = _holder(held), max(self._age_ms(held), 0) // 1000
        elsewhere = (
            holder.boot_id == self._holder.boot_id and holder.pid_namespace != self._holder.pid_namespace
        )
        container = " (in another pid namespace, such as a container)" if elsewhere else ""
        wait = "" if self._is_alive(holder) else f", wait {STALE_MS // 1000} s if it is dead,"
        instead = "start another run" if kind == "run" else "choose other cards with --device"
        return (
            f"{what} is held by {holder}{container}, which renewed its hold {ago_s} s ago;"
            f" stop that daemon{wait} or {instead}."
        )

    # --- the sign of life

    def _show_life(self) -> None:
        if self._folder is None:
            return
        try:
            self._sign_of_life = presence.enter(self._folder, self._holder)
        except OSError as error:
            log.warning(
                "%s takes no locks (%s): after a crash another container waits %d s for this one's leases",
                self._folder,
                error.strerror,
                STALE_MS // 1000,
            )

    def _hide_life(self) -> None:
        """No lease names this process any more."""
        if self._folder is not None and self._sign_of_life is not None:
            presence.clear(self._folder, self._holder)
        self._end_life()

    def _end_life(self) -> None:
        """To others this process has ended."""
        if self._sign_of_life is not None:
            os.close(self._sign_of_life)
        self._sign_of_life = None

    # --- locks of the machine

    def _lock_cards(self, gpus: Sequence[str]) -> None:
        for gpu in gpus:
            path = _lock_path(self._lock_folder, gpu)
            try:
                self._locks.append(_locked(path))
            except BlockingIOError as error:
                raise CannotRun(
                    f"Card {gpu} is held by another soak on this machine ({_words(path)}); stop that daemon"
                    " or choose other cards with --device."
                ) from error
            except OSError as error:
                log.warning(
                    "%s cannot be locked (%s): a soak of card %s with another database would not be noticed",
                    path,
                    error.strerror,
                    gpu,
                )

    def _unlock_cards(self) -> None:
        for descriptor in self._locks:
            os.close(descriptor)
        self._locks.clear()


def holder_of_card(gpu: str, lock_folder: Path = LOCK_FOLDER) -> str:
    """What the soak of this machine that holds a card wrote of itself; "" where none holds it.

    Takes the lock for an instant, shared, where it is free.
    """
    path = _lock_path(lock_folder, gpu)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return ""  # nobody has ever held it, or not here
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _words(path)
    except OSError:
        return ""
    else:
        return ""
    finally:
        os.close(descriptor)


def _lock_path(lock_folder: Path, gpu: str) -> Path:
    return lock_folder / f"card-{gpu.replace('/', '_')}.lock"


def _holder(held: LeaseRow) -> Holder:
    return Holder(held.host_id, held.boot_id, held.pid_namespace, held.pid, held.pid_start)


def _locked(path: Path) -> int:
    """An open file that holds the lock. BlockingIOError: another holds it; OSError: the place is not usable.

    Folder and file are for every user, so no link is followed and no existing file is created over (the
    kernel refuses O_CREAT on another user's file in such a folder).
    """
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(stat.S_ISVTX | 0o777)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        os.fchmod(descriptor, 0o666)
    except FileExistsError:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()}, uid {os.getuid()}\n".encode())
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _words(path: Path) -> str:
    """What the holder of a lock wrote of itself."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()[:80] or "it left no name"
    except OSError:
        return "it left no name"
