"""Bad input: one sentence, the right exit code, nothing started, nothing lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

RUN = ("run", "--device", "cpu")

USAGE = [
    ("run", "--device", "toaster"),
    (*RUN, "--profile", "gaming"),
    (*RUN, "--duration", "0"),
    (*RUN, "--duration", "0s"),
    (*RUN, "--duration", "-5m"),
    (*RUN, "--duration", "48"),
    (*RUN, "--duration", "abc"),
    (*RUN, "--seq-len", "4096:512"),
    (*RUN, "--seq-len", "0:10"),
    (*RUN, "--seq-len", "ten"),
    (*RUN, "--seed", "x"),
    (*RUN, "--on-interrupt", "panic"),
    (*RUN, "--no-such-option"),
    (*RUN, "--database", "mysql://x/y"),
    (*RUN, "--run-id", "../../etc"),
    ("simulate", "--scenario", "flood"),
    ("simulate", "--scenario", "healthy", "--gpus", "0"),
    ("simulate", "--scenario", "healthy", "--duration", "48"),
    ("report", "--run-id", "nobody", "--format", "pdf"),
    ("report",),
    ("dance",),
]


def one_sentence(stderr: str) -> bool:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return len(lines) == 1 and lines[0].startswith("soak: ") and "Traceback" not in stderr


@pytest.mark.parametrize("args", USAGE, ids=" ".join)
def test_bad_usage_is_exit_2_and_starts_nothing(machine: Any, args: tuple[str, ...]) -> None:
    done = machine.run(*args)
    assert done.returncode == 2, done.stderr
    assert one_sentence(done.stderr), done.stderr
    assert not machine.data_dir.exists()


def test_a_value_as_long_as_a_book_does_not_bury_the_sentence(machine: Any) -> None:
    done = machine.run(*RUN, "--run-id", "x" * 5000)
    assert done.returncode == 2
    assert one_sentence(done.stderr)
    assert "--run-id" in done.stderr
    assert "legal: up to 64" in done.stderr
    assert len(done.stderr) < 500


def test_no_gpu_is_exit_4_and_a_sentence(machine: Any) -> None:
    done = machine.run("run")
    if Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists():
        pytest.skip("there is a GPU here")
    assert done.returncode == 4
    assert "--device cpu" in done.stderr
    absent = machine.run("run", "--device", "0000:33:00.0")
    assert absent.returncode == 4


def test_a_data_folder_that_is_a_file_is_exit_4(machine: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = machine.run(*RUN, "--data-dir", str(tmp_path / "file" / "below"))
    assert done.returncode == 4
    assert str(tmp_path / "file") in done.stderr


def test_a_file_that_is_no_database_is_exit_4_and_stays_as_it_was(machine: Any) -> None:
    machine.data_dir.mkdir()
    path = machine.data_dir / "soak.db"
    path.write_bytes(b"this is a letter to my aunt, not a database" * 100)
    before = path.read_bytes()
    for args in ((*RUN,), ("report", "--run-id", "latest"), ("runs",), ("db", "upgrade")):
        done = machine.run(*args)
        assert done.returncode == 4, done.stderr
        assert str(path) in done.stderr
    assert path.read_bytes() == before


def test_a_database_from_a_newer_version_is_exit_4_and_stays_as_it_was(machine: Any) -> None:
    machine.data_dir.mkdir()
    assert machine.run("db", "upgrade").returncode == 0
    with closing(sqlite3.connect(machine.data_dir / "soak.db")) as connection, connection:
        connection.execute("update alembic_version set version_num = '9999'")
    done = machine.run(*RUN)
    assert done.returncode == 4
    assert "9999" in done.stderr
    with closing(sqlite3.connect(machine.data_dir / "soak.db")) as connection:
        assert connection.execute("select version_num from alembic_version").fetchall() == [("9999",)]


def test_an_unknown_run_is_exit_2_and_lists_the_known_ones(machine: Any) -> None:
    machine.data_dir.mkdir()
    assert machine.run("db", "upgrade").returncode == 0
    done = machine.run("report", "--run-id", "nobody")
    assert done.returncode == 2
    assert "nobody" in done.stderr


@pytest.mark.parametrize(
    "text",
    ["[protocol]\nlenght = '2h'\n", "[criteria.ecc]\nmax = 3\n", "[criteria.coverage]\nmin = 7\n", "]["],
)
def test_a_profile_file_with_a_wrong_key_or_limit_is_exit_2(machine: Any, tmp_path: Path, text: str) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text(text)
    done = machine.run(*RUN, "--profile", str(profile))
    assert done.returncode == 2, done.stderr
    assert one_sentence(done.stderr), done.stderr
    assert str(profile) in done.stderr


def test_show_config_names_each_source(machine: Any) -> None:
    done = machine.run("run", *machine.small, "--show-config")
    assert done.returncode == 0
    assert "flag --seq-len" in done.stdout
    assert "profile cpu" in done.stdout
    assert not machine.data_dir.exists()
