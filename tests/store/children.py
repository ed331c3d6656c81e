"""Jobs that the tests of the store give to processes of their own: `python children.py JOB ARGUMENT…`."""

from __future__ import annotations

import itertools
import os
import sqlite3
import sys
import tempfile
import time
from pathlib import Path

from soak.clock import SystemClock
from soak.core.errors import SoakError
from soak.core.records import Attempt, RunInfo, Slot
from soak.store.db import Database, sqlite_url
from soak.store.host import this_process
from soak.store.lease import Lease
from soak.store.writer import Writer

NOBODY = 65534


def say(*words: object) -> None:
    print(*words, flush=True)


def upgrade(url: str) -> None:
    """Opens and migrates at the moment that the test gives to all of them."""
    sys.stdin.readline()
    with Database.open(url) as database:
        database.upgrade()
        say(database.current().current)


def write(url: str, run_id: str) -> None:
    """Writes the open slot every 50 ms, as a run does, and says which figure it wrote when; for ever."""
    database = Database.open(url)
    clock = SystemClock()
    writer = Writer(database, run_id, clock)
    writer.write(RunInfo(run_id, 0, "h", "cpu", "", 1, "k", False, (), {}), Attempt(1, 0, "b", ()))
    for n in itertools.count():
        writer.write(Slot(1, "cpu", n // 20, 0, 0, 0, closed=n % 20 == 19, n_polls=n))
        say(n, clock.boot_ms())
        time.sleep(0.05)


def lock(path: str, seconds: str) -> None:
    """Holds the whole file for itself."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    say("locked")
    time.sleep(float(seconds))
    connection.execute("COMMIT")


def hold(url: str, host: str, lock_folder: str, run_id: str, *gpus: str) -> None:
    """Takes a lease at the moment that the test gives, and holds it until its input ends."""
    with Database.open(url) as database:
        lease = Lease(database, this_process(host), SystemClock(), lock_folder=Path(lock_folder))
        sys.stdin.readline()
        try:
            lease.acquire(run_id, gpus)
        except SoakError as error:
            say("refused", error)
            return
        say("held")
        sys.stdin.readline()
        lease.release()
        say("released")


def report(url: str) -> None:
    """Reads every run as `soak report` does, without root's rights."""
    _become_nobody()
    try:
        with Database.open(url, readonly=True) as database:
            database.check_current()
            say(database.journal_mode, *(summary.info.run_id for summary in database.runs()))
    except SoakError as error:
        say("refused", error)


def open_writable(url: str) -> None:
    """Opens and migrates as `soak run` does, without root's rights."""
    _become_nobody()
    try:
        with Database.open(url) as database:
            database.upgrade()
            say("opened")
    except SoakError as error:
        say("refused", error)


def _become_nobody() -> None:
    """Modes of files mean nothing to root. All is imported before, since root's files may be hidden."""
    with tempfile.TemporaryDirectory() as folder:
        with Database.open(sqlite_url(Path(folder, "soak.db"))) as database:
            database.upgrade()
            database.runs()
        if os.getuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
            os.setgid(NOBODY)
            os.setuid(NOBODY)


if __name__ == "__main__":
    JOBS = {job.__name__: job for job in (upgrade, write, lock, hold, report, open_writable)}
    JOBS[sys.argv[1]](*sys.argv[2:])
