"""`soak db copy` and `soak db prune`, as a person calls them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from soak.core.records import Device, RunInfo
from soak.store.db import Database, sqlite_url
from soak.store.writer import Writer


class StillClock:
    def boot_ms(self) -> int:
        return 0

    def utc_ms(self) -> int:
        return 0


def filled(path: Path, *run_ids: str) -> str:
    """A database with runs, the last one the newest."""
    url = sqlite_url(path)
    with Database.open(url) as database:
        database.upgrade()
        for age, run_id in enumerate(run_ids):
            writer = Writer(database, run_id, StillClock(), threaded=False)
            cards = (Device("cpu", "cpu"),)
            writer.write(RunInfo(run_id, age, "host", "cpu", "asked for", 7, "torch", False, cards, {}))
            writer.close(5_000)
    return url


def runs_of(url: str) -> list[str]:
    with Database.open(url, readonly=True) as database:
        return [run.info.run_id for run in database.runs()]


def test_copy(machine: Any, tmp_path: Path) -> None:
    filled(tmp_path / "a.db", "one", "two")
    done = machine.run("db", "copy", str(tmp_path / "a.db"), sqlite_url(tmp_path / "b.db"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 runs, 4 rows, from ")
    assert runs_of(sqlite_url(tmp_path / "b.db")) == ["two", "one"]
    again = machine.run("db", "copy", str(tmp_path / "a.db"), str(tmp_path / "b.db"))
    assert again.returncode == 2
    assert "holds one, two already" in again.stderr
    absent = machine.run("db", "copy", str(tmp_path / "none.db"), str(tmp_path / "b.db"))
    assert absent.returncode == 4
    assert not (tmp_path / "none.db").exists()


def test_a_copy_that_fails_leaves_no_file(machine: Any, tmp_path: Path) -> None:
    source = tmp_path / "a.db"
    filled(source, "a long id" * 20_000)
    target = tmp_path / "full" / "x.db"
    limited = ["bash", "-c", 'ulimit -f 120; exec "$@"', "bash"]  # KiB of a file
    command = machine.command("db", "copy", str(source), str(target))
    done = subprocess.run([*limited, *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4, done.stderr
    assert f"soak: The database {target} cannot be used" in done.stderr
    assert list(target.parent.iterdir()) == []


def test_a_copy_into_itself_is_refused_and_leaves_nothing_beside_it(machine: Any, tmp_path: Path) -> None:
    filled(tmp_path / "a.db", "one")
    before = set(tmp_path.iterdir())
    done = machine.run("db", "copy", str(tmp_path / "a.db"), str(tmp_path / "." / "a.db"))
    assert done.returncode == 2
    assert "are the same file" in done.stderr
    assert set(tmp_path.iterdir()) == before


def test_a_port_that_is_none_is_bad_usage(machine: Any, tmp_path: Path) -> None:
    filled(tmp_path / "a.db", "one")
    done = machine.run("db", "copy", str(tmp_path / "a.db"), "postgresql://127.0.0.1:notaport/x")
    assert done.returncode == 2
    assert done.stderr == (
        "soak: DST: 'postgresql://127.0.0.1:notaport/x' has no whole number from 1 to 65535 as its port; "
        "write it like postgresql://user@host:5432/name.\n"
    )


def test_prune_says_what_goes_and_asks(machine: Any, tmp_path: Path) -> None:
    url = filled(tmp_path / "a.db", "one", "two", "three")
    asked = machine.run("db", "prune", "--keep", "1", "--database", url)
    assert asked.returncode == 2  # nobody is there to answer
    assert "--yes" in asked.stderr
    assert [line.split()[0] for line in asked.stdout.splitlines()] == ["two", "one"]
    assert runs_of(url) == ["three", "two", "one"]
    done = machine.run("db", "prune", "--keep", "1", "--yes", "--database", url)
    assert done.returncode == 0, done.stderr
    assert "2 runs, 4 rows removed" in done.stdout
    assert runs_of(url) == ["three"]
    nothing = machine.run("db", "prune", "--keep", "1", "--yes", "--database", url)
    assert nothing.returncode == 0
    assert "Nothing is older" in nothing.stdout


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 3, ["two", "one"]), ("y", 0, ["two"])])
def test_on_a_terminal_prune_asks(
    machine: Any, tmp_path: Path, answer: str, code: int, left: list[str]
) -> None:
    url = filled(tmp_path / "a.db", "one", "two")
    ours, theirs = os.openpty()
    command = machine.command("db", "prune", "--keep", "1", "--database", url)
    child = subprocess.Popen(
        command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    os.write(ours, f"{answer}\n".encode())
    said, _ = child.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert child.returncode == code, said
    assert "Remove 1 run from" in said
    assert runs_of(url) == left


@pytest.mark.parametrize("args", [(), ("--keep", "all"), ("--keep", "-3")], ids=str)
def test_bad_usage_of_prune_is_exit_2(machine: Any, args: tuple[str, ...]) -> None:
    done = machine.run("db", "prune", *args)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
