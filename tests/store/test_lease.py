"""One daemon a run, one daemon a card: by the database, and on one machine by a lock beyond it."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from soak.core.errors import CannotRun
from soak.store.db import Database, sqlite_url
from soak.store.host import Holder, this_process
from soak.store.lease import Lease
from soak.store.writer import Writer

Child = Callable[..., "Popen[str]"]
HOST = "host-0001"
CARDS = ("0000:33:00.0", "0000:08:00.0")


@pytest.fixture(params=["sqlite", "postgresql"])
def shared(request: pytest.FixtureRequest, url: str) -> Iterator[Database]:
    """A database that several daemons share."""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgresql_url")
    with Database.open(url) as database:
        database.upgrade()
        yield database


@pytest.fixture
def lease(shared: Database, clock: Any, tmp_path: Path) -> Iterator[Callable[..., Lease]]:
    """Makes the lease of a daemon; each its own lock folder, unless it names one."""
    with ExitStack() as stack:

        def make(holder: Holder | None = None, locks: str | None = None, **options: Any) -> Lease:
            folder = tmp_path / (locks or f"locks-{os.urandom(4).hex()}")
            made = Lease(shared, holder or this_process(HOST), clock, lock_folder=folder, **options)
            stack.callback(made.release)
            return made

        yield make


def elsewhere(**changes: Any) -> Holder:
    """A daemon in another container: whether it lives cannot be seen from here."""
    return replace(this_process(HOST), pid_namespace=1, pid=1, **changes)


def names(database: Database) -> list[str]:
    with database.read() as connection:
        return list(connection.exec_driver_sql("SELECT name FROM lease ORDER BY name").scalars())


def test_a_lease_holds_the_run_and_each_card(shared: Database, lease: Callable[..., Lease]) -> None:
    held = lease()
    held.acquire("r1", CARDS)
    assert names(shared) == [f"card:{HOST}/{CARDS[1]}", f"card:{HOST}/{CARDS[0]}", "run:r1"]
    assert held.renew() == ()
    held.release()
    assert names(shared) == []


def test_a_second_daemon_is_refused_with_holder_card_and_advice(
    lease: Callable[..., Lease], clock: Any
) -> None:
    lease(elsewhere()).acquire("r1", CARDS)
    clock.now_ms += 12_000
    with pytest.raises(CannotRun) as caught:
        lease().acquire("r1", ())
    assert str(caught.value) == (
        "Run r1 is held by process 1 of host host-000 (in another pid namespace, such as a container), which"
        " renewed its hold 12 s ago; stop that daemon, wait 60 s if it is dead, or start another run."
    )
    with pytest.raises(
        CannotRun, match=r"Card 0000:08:00.0 is held by .* or choose other cards with --device\."
    ):
        lease().acquire("r2", CARDS[1:])


def test_what_is_refused_takes_nothing(shared: Database, lease: Callable[..., Lease]) -> None:
    lease(elsewhere()).acquire("r1", CARDS[:1])
    with pytest.raises(CannotRun):
        lease().acquire("r2", (CARDS[1], CARDS[0]))
    assert names(shared) == [f"card:{HOST}/{CARDS[0]}", "run:r1"]
    lease().acquire("r3", CARDS[1:])


def test_the_same_card_of_another_host_is_another_card(lease: Callable[..., Lease]) -> None:
    lease(Holder("host-0002", "other boot", 5, 6, 7)).acquire("r1", CARDS)
    lease().acquire("r2", CARDS)


def test_without_renewal_it_is_taken_after_60_seconds(lease: Callable[..., Lease], clock: Any) -> None:
    first, second = lease(elsewhere()), lease()
    first.acquire("r1", CARDS)
    clock.now_ms += 50_000
    assert first.renew() == ()
    clock.now_ms += 60_000
    with pytest.raises(CannotRun):
        second.acquire("r1", CARDS)
    clock.now_ms += 1
    second.acquire("r1", CARDS)
    assert set(first.renew()) == {"run:r1", *(f"card:{HOST}/{card}" for card in CARDS)}
    assert first.renew() == (), "what is lost is told once"
    assert second.renew() == ()


def test_a_lost_lease_is_not_released_for_its_new_holder(
    shared: Database, lease: Callable[..., Lease], clock: Any
) -> None:
    first, second = lease(elsewhere()), lease()
    first.acquire("r1", ())
    clock.now_ms += 60_001
    second.acquire("r1", ())
    first.release()
    assert names(shared) == ["run:r1"]


def test_a_step_of_the_wall_clock_frees_nothing_within_one_boot(
    lease: Callable[..., Lease], clock: Any
) -> None:
    lease(elsewhere()).acquire("r1", ())
    for step_ms in (26 * 3_600_000, -52 * 3_600_000):
        clock.utc_offset_ms += step_ms
        with pytest.raises(CannotRun, match="renewed its hold 0 s ago"):
            lease().acquire("r1", ())


@pytest.mark.parametrize(
    ("age_ms", "free"), [(59_000, False), (61_000, True), (-59_000, False), (-61_000, True)]
)
def test_of_another_machine_only_the_wall_clock_is_known(
    lease: Callable[..., Lease], clock: Any, age_ms: int, free: bool
) -> None:
    """A stamp from far in the future is as stale as one from the past."""
    lease(Holder("host-0002", "other boot", 5, 6, 7)).acquire("r1", ())
    clock.utc_offset_ms += age_ms
    if free:
        lease().acquire("r1", ())
    else:
        with pytest.raises(CannotRun):
            lease().acquire("r1", ())


def test_after_a_reboot_it_is_taken_at_once(lease: Callable[..., Lease]) -> None:
    lease(elsewhere(boot_id="the boot before")).acquire("r1", CARDS)
    with pytest.raises(CannotRun):
        lease(folder_is_shared=True).acquire("r1", CARDS)
    lease().acquire("r1", CARDS)


def test_waiting_gets_over_a_holder_that_is_dead_out_of_sight(
    lease: Callable[..., Lease], clock: Any
) -> None:
    lease(elsewhere()).acquire("r1", CARDS)
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock.now_ms += int(seconds * 1000)

    lease().acquire("r1", CARDS, wait_ms=75_000, sleep=sleep)
    assert len(naps) == 61


# --- processes


def go(process: Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def said(process: Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_many_takers_at_once_exactly_one_wins(shared: Database, tmp_path: Path, child: Child) -> None:
    url = str(shared.engine.url) if shared.path is None else sqlite_url(shared.path)
    takers = [child("hold", url, HOST, tmp_path / f"locks-{n}", "r1", *CARDS) for n in range(3)]
    for taker in takers:
        go(taker)
    answers = [said(taker) for taker in takers]
    assert sorted(answer.split()[0] for answer in answers) == ["held", "refused", "refused"]
    winner = takers[[answer == "held" for answer in answers].index(True)]
    assert all(f"is held by process {winner.pid} of host" in a for a in answers if a != "held")


def test_the_lease_of_a_killed_process_is_taken_at_once(
    shared: Database, lease: Callable[..., Lease], child: Child, tmp_path: Path
) -> None:
    url = str(shared.engine.url) if shared.path is None else sqlite_url(shared.path)
    holder = child("hold", url, HOST, tmp_path / "locks", "r1", *CARDS)
    go(holder)
    assert said(holder) == "held"
    with pytest.raises(CannotRun):
        lease(locks="locks").acquire("r1", CARDS)
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
    lease(locks="locks").acquire("r1", CARDS)


def test_a_daemon_with_another_database_is_refused_the_card(
    tmp_path: Path, child: Child, clock: Any, database: Database
) -> None:
    other_url, locks = sqlite_url(tmp_path / "other" / "soak.db"), tmp_path / "locks"
    with Database.open(other_url) as other:
        other.upgrade()
    holder = child("hold", other_url, "host-0002", locks, "r1", CARDS[0])
    go(holder)
    assert said(holder) == "held"
    mine = Lease(database, this_process(HOST), clock, lock_folder=locks)
    with pytest.raises(CannotRun) as caught:
        mine.acquire("r2", CARDS)
    assert str(caught.value) == (
        f"Card {CARDS[0]} is held by another soak on this machine (process {holder.pid}, uid {os.getuid()});"
        " stop that daemon or choose other cards with --device."
    )
    assert names(database) == []
    mine.acquire("r2", CARDS[1:])
    mine.release()
    go(holder)
    assert said(holder) == "released"
    mine.acquire("r2", CARDS)
    mine.release()


def test_the_place_of_the_locks_is_for_every_user(tmp_path: Path, database: Database, clock: Any) -> None:
    before = os.umask(0o077)
    try:
        mine = Lease(database, this_process(HOST), clock, lock_folder=tmp_path / "locks")
        mine.acquire("r1", CARDS[:1])
    finally:
        os.umask(before)
    lock = tmp_path / "locks" / f"card-{CARDS[0]}.lock"
    assert stat.S_IMODE(lock.parent.stat().st_mode) == 0o1777
    assert stat.S_IMODE(lock.stat().st_mode) == 0o666
    with lock.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    mine.release()


def test_a_link_in_the_place_of_a_lock_is_not_followed(
    tmp_path: Path, database: Database, clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "card-cpu.lock").symlink_to(victim)
    mine = Lease(database, this_process(HOST), clock, lock_folder=tmp_path / "locks")
    mine.acquire("r1", ["cpu"])
    mine.release()
    assert victim.read_text() == "precious"
    assert "a soak of card cpu with another database would not be noticed" in caplog.text


def test_the_writer_renews_and_tells_what_was_lost(
    shared: Database, lease: Callable[..., Lease], clock: Any
) -> None:
    first, second = lease(elsewhere()), lease()
    first.acquire("r1", ())
    writer = Writer(shared, "r1", clock, lease=first)
    try:
        clock.now_ms += 30_000
        wait_for(lambda: age_ms(shared, clock) == 0)
        clock.now_ms += 61_000
        second.acquire("r1", ())
        told: list[Any] = []
        clock.now_ms += 15_000
        wait_for(lambda: told.extend(writer.take()) or bool(told))
        assert [(h.kind, h.data["names"]) for h in told] == [("lease_lost", ["run:r1"])]
    finally:
        writer.close(1_000)


def age_ms(database: Database, clock: Any) -> int:
    with database.read() as connection:
        return clock.now_ms - connection.exec_driver_sql("SELECT renewed_boot_ms FROM lease").scalar_one()


def wait_for(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    import time

    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.02)
