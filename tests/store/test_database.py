"""Opening, reading and refusing a database."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any

import pytest

from soak.core.errors import CannotRun, ConfigError
from soak.store.db import Database, sqlite_url
from soak.store.sqlite import network_file_system
from soak.store.writer import Writer

Child = Callable[..., "Popen[str]"]


def keep(database: Database, clock: Any, *records: Any) -> None:
    writer = Writer(database, records[0].run_id, clock, threaded=False)
    writer.write(*records)
    assert writer.flush(0)


def pragma(database: Database, name: str) -> Any:
    with database.read() as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar()


# --- opening


def test_a_file_is_opened_so_that_it_keeps_what_was_committed(url: str) -> None:
    with Database.open(url) as database:
        assert database.journal_mode == "wal"
        assert database.notes == ()
        asked = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "journal_size_limit")
        assert [pragma(database, name) for name in asked] == ["wal", 2, 1, 10_000, 64 << 20]


def test_a_simulations_file_need_not_survive_power_loss(url: str) -> None:
    with Database.open(url, durable=False) as database:
        assert pragma(database, "synchronous") == 0


def test_the_answer_of_the_journal_pragma_is_looked_at(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SQLite's way to reach files without shared memory answers `delete` where `wal` is asked."""
    caplog.set_level(logging.WARNING)
    with Database.open(sqlite_url(tmp_path / "soak.db") + "?vfs=unix-dotfile") as database:
        database.upgrade()
        assert database.journal_mode == "delete"
        assert "answered journal mode delete where wal was asked" in caplog.text
        assert database.runs() == []


def mountinfo(tmp_path: Path, *mounts: tuple[str, str]) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(
        "".join(
            f"{n} 1 0:{n} / {at} rw,relatime shared:{n} - {kind} what rw\n"
            for n, (at, kind) in enumerate(mounts)
        )
    )
    return path


def test_on_a_network_file_system_the_journal_is_no_wal(
    tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    mounts = mountinfo(tmp_path, ("/", "ext4"), (str(tmp_path), "nfs4"))
    with Database.open(url, mountinfo=mounts) as database:
        assert database.journal_mode == "delete"
        assert f"{tmp_path} is on nfs4: the journal is delete instead of wal" in caplog.text
        database.upgrade()
        assert database.runs() == []


def test_a_file_that_comes_to_a_network_file_system_leaves_wal(tmp_path: Path, url: str) -> None:
    Database.open(url).close()
    mounts = mountinfo(tmp_path, (str(tmp_path), "9p"))
    with Database.open(url, mountinfo=mounts) as database:
        assert pragma(database, "journal_mode") == "delete"


@pytest.mark.parametrize(
    ("mounts", "found"),
    [
        ([("/", "ext4")], None),
        ([("/", "ext4"), ("/data", "cifs")], "cifs"),
        ([("/", "nfs"), ("/data", "ext4")], None),
        ([("/", "ext4"), ("/dat", "nfs")], None),
        ([("/", "ext4"), ("/data", "nfs"), ("/data", "xfs")], None),
        ([("/", "9p"), ("/data/soak", "virtiofs")], "virtiofs"),
        ([("/", "overlay"), ("/data", "fuse.sshfs")], "fuse.sshfs"),
        ([("/", "overlay"), ("/data", "fuse.fuse-overlayfs")], None),
        ([("/", "ext4"), (r"/data/soak\040room", "nfs")], None),
        ([], None),
    ],
)
def test_the_file_system_is_that_of_the_innermost_mount(
    tmp_path: Path, mounts: list[tuple[str, str]], found: str | None
) -> None:
    assert network_file_system(Path("/data/soak/run"), mountinfo(tmp_path, *mounts)) == found


def test_blanks_in_a_mount_point_are_read(tmp_path: Path) -> None:
    mounts = mountinfo(tmp_path, ("/", "ext4"), (r"/data/soak\040room", "nfs"))
    assert network_file_system(Path("/data/soak room/a"), mounts) == "nfs"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("soak.db", "is no URL"),
        ("mysql://host/soak", "kind 'mysql' cannot be used"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
    ],
)
def test_another_kind_of_url_is_bad_usage(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said}.*give sqlite:////path/to/soak.db or postgresql://"):
        Database.open(url)


# --- refusing


def refused(url: str, **options: Any) -> str:
    """The sentence that a start ends with."""
    with pytest.raises(CannotRun) as caught, Database.open(url, **options) as database:
        database.upgrade()
    said = str(caught.value)
    assert said.endswith(".")
    assert "\n" not in said
    return said


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    said = refused(sqlite_url(tmp_path / "data" / "soak.db"))
    assert said == f"The data folder {tmp_path}/data is no folder; choose another with --data-dir."


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    assert refused(sqlite_url(tmp_path)) == f"The database {tmp_path} is a folder; name a file in it."


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "soak.db"
    path.write_bytes(b"Dear diary, " * 1000)
    said = f"The database {path} is no SQLite database; name another with --database."
    assert refused(sqlite_url(path)) == said
    with pytest.raises(CannotRun, match="is no SQLite database"):
        Database.open(sqlite_url(path), readonly=True)
    assert path.read_bytes() == b"Dear diary, " * 1000


def test_another_programs_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "soak.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipe (name TEXT)")
        connection.commit()
    before = path.read_bytes()
    assert refused(sqlite_url(path)) == (
        f"The database {path} belongs to another program (tables recipe); name another with --database."
    )
    assert path.read_bytes() == before


def test_another_programs_database_with_alembic_too(tmp_path: Path) -> None:
    path = tmp_path / "soak.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipe (name TEXT)")
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('abc')")
        connection.commit()
    assert "belongs to another program (tables recipe)" in refused(sqlite_url(path))


def test_a_newer_database(database: Database, url: str) -> None:
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    said = (
        f"The database {database.path} is from a newer soak (schema 9999, this program knows 0001);"
        " upgrade soak or name another with --database."
    )
    assert refused(url) == said
    with Database.open(url, readonly=True) as reader, pytest.raises(CannotRun, match="from a newer soak"):
        reader.check_current()


def test_a_damaged_database_is_found(database: Database, url: str, clock: Any, make: SimpleNamespace) -> None:
    keep(database, clock, make.info(), *[make.slot(index) for index in range(300)])
    assert database.quick_check() == ()
    database.close()
    assert database.path is not None
    with database.path.open("r+b") as file:
        for page in range(20, 40):
            file.seek(page * 4096)
            file.write(os.urandom(4096))
    with Database.open(url, readonly=True) as reader:
        assert reader.quick_check() != ()


def test_a_lock_that_is_not_let_go_of(
    database: Database, url: str, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("soak.store.sqlite.BUSY_TIMEOUT_S", 0.2)
    locker = child("lock", database.path, 60)
    assert locker.stdout is not None
    assert locker.stdout.readline() == "locked\n"
    assert "has been locked by another program for 0 s; stop that program" in refused(url)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (0o555, "refused The data folder {0} is not writable for uid {1}; choose another with --data-dir"),
        (0o777, "opened"),
    ],
)
def test_a_folder_without_the_right_to_write(tmp_path: Path, child: Child, mode: int, said: str) -> None:
    folder = open_to_all(tmp_path) / "data"
    folder.mkdir()
    folder.chmod(mode)
    out, err = child("open_writable", sqlite_url(folder / "soak.db")).communicate(timeout=60)
    assert out.startswith(said.format(folder, os.getuid() or 65534)), err


def test_a_file_without_the_right_to_write(database: Database, tmp_path: Path, child: Child) -> None:
    assert database.path is not None
    database.close()
    open_to_all(tmp_path).chmod(0o777)
    database.path.chmod(0o444)
    out, err = child("open_writable", sqlite_url(database.path)).communicate(timeout=60)
    assert f"refused The database {database.path} is not writable for uid" in out, err


def open_to_all(folder: Path) -> Path:
    """pytest's folders are for their owner alone; a child without root's rights has to get there."""
    for each in (folder, *folder.parents):
        if each.stat().st_uid == os.getuid() and not each.stat().st_mode & stat.S_IXOTH:
            each.chmod(0o755)
    return folder


# --- readers


def test_a_reader_never_makes_a_database(url: str, tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match=r"There is no database .*; start a run first"):
        Database.open(url, readonly=True)
    assert list(tmp_path.iterdir()) == []


def test_a_reader_never_migrates(url: str) -> None:
    Database.open(url).close()
    with (
        Database.open(url, readonly=True) as reader,
        pytest.raises(CannotRun, match="is empty; start a run first"),
    ):
        reader.check_current()


def test_readers_and_a_writer_do_not_wait_for_each_other(
    database: Database, url: str, clock: Any, make: SimpleNamespace
) -> None:
    writer = Writer(database, make.RUN_ID, clock, threaded=False)
    writer.write(make.info(), make.attempt(), make.slot(0))
    assert writer.flush(0)
    with Database.open(url, readonly=True) as reader:
        with reader.read() as connection:  # an open transaction, as of a slow report
            count = "SELECT count(*) FROM sample"
            assert connection.exec_driver_sql(count).scalar() == 1
            for index in range(1, 20):
                writer.write(make.slot(index))
                assert writer.flush(0)
            assert connection.exec_driver_sql(count).scalar() == 1, "a report is of one instant"
        assert len(reader.load(make.RUN_ID).slots) == 20


@pytest.mark.parametrize("left", [False, True], ids=["closed cleanly", "beside a writer"])
def test_a_report_from_a_folder_that_is_not_writable(
    tmp_path: Path, child: Child, clock: Any, make: SimpleNamespace, left: bool
) -> None:
    folder = open_to_all(tmp_path) / "data"
    database = Database.open(sqlite_url(folder / "soak.db"))
    database.upgrade()
    keep(database, clock, make.info(), make.attempt())
    if not left:
        database.close()
    folder.chmod(0o555)
    out, err = child("report", sqlite_url(folder / "soak.db")).communicate(timeout=60)
    database.close()
    assert out.split()[1:] == [make.RUN_ID], (out, err)
    assert out.split()[0] == ("wal" if left else "immutable")


def test_runs_are_listed_newest_first(database: Database, clock: Any, make: SimpleNamespace) -> None:
    assert database.runs() == []
    keep(database, clock, make.info("b", created_utc_ms=2), make.attempt(1), make.attempt(2, elapsed_ms=7))
    keep(database, clock, make.info("a", created_utc_ms=3), make.attempt(1), make.finding("ecc"))
    keep(database, clock, make.info("c", created_utc_ms=1))
    listed = [(s.info, s.n_attempts, s.attempt, s.findings) for s in database.runs()]
    assert listed == [
        (make.info("a", created_utc_ms=3), 1, make.attempt(1), (make.finding("ecc"),)),
        (make.info("b", created_utc_ms=2), 2, make.attempt(2, elapsed_ms=7), ()),
        (make.info("c", created_utc_ms=1), 0, None, ()),
    ]


def test_a_run_is_meant_by_its_id_a_beginning_of_it_or_latest(
    database: Database, clock: Any, make: SimpleNamespace
) -> None:
    for run_id, created in (("20260101-ab", 1), ("20260102-ab", 3), ("20260102-cd", 2), ("20260102", 0)):
        keep(database, clock, make.info(run_id, created_utc_ms=created))
    assert database.resolve("latest") == "20260102-ab"
    assert database.resolve("20260101") == "20260101-ab"
    assert database.resolve("20260102") == "20260102", "a whole id is meant as it is"
    with pytest.raises(
        ConfigError, match="Run id '20260102-' could be 20260102-ab, 20260102-cd; give more of it"
    ):
        database.resolve("20260102-")
    known = "There is no run '%': known are 20260102-ab, 20260102-cd, 20260101-ab, 20260102."
    with pytest.raises(ConfigError) as caught:
        database.resolve("%")
    assert str(caught.value) == known
    with pytest.raises(ConfigError):
        database.resolve("")


def test_a_long_list_of_runs_is_cut(database: Database, clock: Any, make: SimpleNamespace) -> None:
    for n in range(12):
        keep(database, clock, make.info(f"run-{n:02}", created_utc_ms=n))
    with pytest.raises(ConfigError, match=r"run-11, .*, run-02 and 2 more; give more of it"):
        database.resolve("run")


def test_there_is_no_latest_of_nothing(database: Database) -> None:
    with pytest.raises(ConfigError, match=f"There is no run 'latest': there is no run in {database.path}"):
        database.resolve("latest")


def test_an_unknown_run_cannot_be_loaded(database: Database) -> None:
    with pytest.raises(ConfigError, match="There is no run 'x'"):
        database.load("x")


def test_rows_of_one_run_are_not_counted_for_another(
    database: Database, clock: Any, make: SimpleNamespace
) -> None:
    keep(database, clock, make.info("a"), make.attempt(), make.slot(0), make.slot(1), make.incident())
    keep(database, clock, make.info("b"), make.attempt(), make.slot(0))
    counted = {"run": 1, "attempt": 1, "device": 2, "sample": 2, "incident": 1}
    nothing = dict.fromkeys(("rotation", "gradient_check", "integrity_check", "finding"), 0)
    assert database.load("a").rows == counted | nothing
    assert len(database.load("b").slots) == 1


def test_a_row_without_its_run_is_refused_by_the_database(database: Database) -> None:
    insert = "INSERT INTO incident VALUES ('none', 1, 1, 0, 0, 'x', NULL, '', '{}')"
    with pytest.raises(Exception, match="FOREIGN KEY"), database.write() as connection:
        connection.exec_driver_sql(insert)


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("sample", {"run_id", "attempt", "gpu", "slot"}),
        ("rotation", {"run_id", "attempt", "gpu", "rotation"}),
        ("integrity_check", {"run_id", "attempt", "gpu", "rotation"}),
        ("gradient_check", {"run_id", "attempt", "gpu", "number"}),
        ("incident", {"run_id", "attempt", "seq"}),
        ("finding", {"run_id", "gpu", "criterion"}),
        ("device", {"run_id", "gpu"}),
        ("attempt", {"run_id", "attempt"}),
        ("lease", {"name"}),
    ],
)
def test_a_row_is_there_once(database: Database, table: str, key: set[str]) -> None:
    with database.read() as connection:
        columns = connection.exec_driver_sql(f"PRAGMA table_info({table})").mappings().all()
    assert {column["name"] for column in columns if column["pk"]} == key


def test_a_removed_run_takes_its_rows_with_it(database: Database, clock: Any, make: SimpleNamespace) -> None:
    keep(database, clock, make.info(), make.attempt(), make.slot(0), make.finding(), make.incident())
    with database.write() as connection:
        connection.exec_driver_sql("DELETE FROM run")
        for table in ("attempt", "device", "sample", "finding", "incident"):
            assert connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar() == 0


# --- PostgreSQL


def test_a_server_that_is_not_there() -> None:
    said = refused("postgresql://soak:secret@127.0.0.1:1/soak")
    assert said.startswith("The database postgresql://soak:***@127.0.0.1:1/soak cannot be used (")
    assert "secret" not in said


def test_a_server_that_does_not_know_the_database(postgresql_server: str) -> None:
    assert 'database "nowhere" does not exist' in refused(postgresql_server + "nowhere")


def test_another_programs_tables_on_a_server(postgresql_url: str) -> None:
    import psycopg

    with psycopg.connect(postgresql_url) as connection:
        connection.execute("CREATE TABLE recipe (name TEXT)")
    assert "belongs to another program (tables recipe)" in refused(postgresql_url)


def test_a_reader_of_a_server_cannot_write(postgresql_url: str, clock: Any, make: SimpleNamespace) -> None:
    with Database.open(postgresql_url) as database, Database.open(postgresql_url, readonly=True) as reader:
        database.upgrade()
        keep(database, clock, make.info(), make.attempt())
        assert database.quick_check() == ()
        assert [s.info for s in reader.runs()] == [make.info()]
        with pytest.raises(Exception, match="read-only transaction"), reader.read() as connection:
            connection.exec_driver_sql("DELETE FROM run")


def test_a_schema_of_ones_own_on_a_server(postgresql_url: str, clock: Any, make: SimpleNamespace) -> None:
    import psycopg

    with psycopg.connect(postgresql_url) as connection:
        connection.execute("CREATE TABLE recipe (name TEXT)")
        connection.execute("CREATE SCHEMA soak_runs")
    with Database.open(postgresql_url + "?options=-csearch_path%3Dsoak_runs") as database:
        database.upgrade()
        keep(database, clock, make.info())
        assert len(database.runs()) == 1
