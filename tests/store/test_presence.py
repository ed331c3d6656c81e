"""Who lives, seen from another container: a real process holds a real lock; only its namespace is made up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from soak.clock import SystemClock
from soak.core.errors import CannotRun
from soak.store import presence
from soak.store.db import Database, sqlite_url
from soak.store.host import Holder, this_process
from soak.store.lease import STALE_MS, Lease

RUN, CARD, HOST = "rack7", "0000:33:00.0", "a" * 32

HOLD = """
import sys
from dataclasses import replace
from pathlib import Path
from soak.clock import SystemClock
from soak.store.db import Database, sqlite_url
from soak.store.host import this_process
from soak.store.lease import Lease
data, host, run, card = Path(sys.argv[1]), *sys.argv[2:]
me = this_process(host)
with Database.open(sqlite_url(data / "soak.db")) as database:
    there = replace(me, pid_namespace=me.pid_namespace + 1)
    Lease(database, there, SystemClock(), folder=data, lock_folder=data / "their-shm").acquire(run, [card])
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path, database: Database) -> Iterator[subprocess.Popen[str]]:
    """A daemon in "another container" that holds the run and the card."""
    assert database.current().is_current
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", HOLD, str(tmp_path), HOST, RUN, CARD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Callable[..., Lease]]:
    """Leases of this process over the same file; /dev/shm is each container's own."""
    opened: list[tuple[Database, Lease]] = []

    def make(folder: Path | None = tmp_path, me: Holder | None = None) -> Lease:
        database = Database.open(sqlite_url(tmp_path / "soak.db"))
        shm = tmp_path / f"shm-{len(opened)}"
        made = Lease(database, me or this_process(HOST), SystemClock(), folder=folder, lock_folder=shm)
        opened.append((database, made))
        return made

    yield make
    for database, made in opened:
        made.release()
        database.close()


def test_a_living_holder_in_another_container_is_not_waited_for(
    holder: subprocess.Popen[str], lease: Callable[..., Lease]
) -> None:
    with pytest.raises(CannotRun, match="pid namespace, such as a container") as refusal:
        lease().acquire(RUN, [CARD])
    assert "if it is dead" not in str(refusal.value), "it is alive for certain"
    assert holder.poll() is None


def test_a_killed_holder_in_another_container_gives_way_at_once(
    holder: subprocess.Popen[str], lease: Callable[..., Lease], tmp_path: Path
) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert len(_signs(tmp_path)) == 1, "the killed one could not remove its own"
    mine = lease()
    mine.acquire(RUN, [CARD])
    assert mine.renew() == ()
    assert [_is_mine(path) for path in _signs(tmp_path)] == [True]


def test_a_stopped_holder_still_lives(holder: subprocess.Popen[str], lease: Callable[..., Lease]) -> None:
    holder.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(CannotRun):
            lease().acquire(RUN, [CARD])
    finally:
        holder.send_signal(signal.SIGCONT)


def test_without_a_sign_of_life_the_dead_are_waited_for(
    holder: subprocess.Popen[str], lease: Callable[..., Lease], tmp_path: Path
) -> None:
    holder.kill()
    holder.wait()
    (sign,) = _signs(tmp_path)
    sign.unlink()
    with pytest.raises(CannotRun, match=f"wait {STALE_MS // 1000} s if it is dead"):
        lease().acquire(RUN, [CARD])


def test_a_sign_means_nothing_for_another_machine(
    holder: subprocess.Popen[str], lease: Callable[..., Lease]
) -> None:
    """The data folder is on a file server, and the lock is that of another kernel."""
    holder.kill()
    holder.wait()
    with pytest.raises(CannotRun):
        lease(me=this_process("b" * 32)).acquire(RUN, [CARD])


def test_release_leaves_no_sign(lease: Callable[..., Lease], database: Database, tmp_path: Path) -> None:
    assert database.current().is_current
    mine = lease()
    mine.acquire(RUN, [CARD])
    assert len(_signs(tmp_path)) == 1
    mine.release()
    assert _signs(tmp_path) == []


def test_two_who_ask_at_once_do_not_take_each_other_for_the_holder(tmp_path: Path) -> None:
    dead = Holder(HOST, "b", 1, 1, 1)
    os.close(presence.enter(tmp_path, dead))
    ask = (
        "import sys; from pathlib import Path\n"
        "from soak.store import presence; from soak.store.host import Holder\n"
        f"dead = Holder({HOST!r}, 'b', 1, 1, 1)\n"
        "print({presence.is_alive(Path(sys.argv[1]), dead) for _ in range(20_000)})"
    )
    askers = [
        subprocess.Popen([sys.executable, "-c", ask, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [asker.communicate(timeout=60)[0] for asker in askers] == ["{False}\n"] * 2


def test_unknown_stays_unknown(tmp_path: Path) -> None:
    assert presence.is_alive(tmp_path, Holder(HOST, "b", 1, 1, 1)) is None


def _signs(folder: Path) -> list[Path]:
    return sorted(folder.glob(".alive-*"))


def _is_mine(path: Path) -> bool:
    me = this_process(HOST)
    return path.name == f".alive-{me.pid_namespace}-{me.pid}-{me.pid_start}.lock"
