"""Migrations: they say what the models say, ship in the wheel, and run once however many start at once."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any

import pytest
import soak_migrations
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from soak.core.errors import CannotRun
from soak.store import migrate
from soak.store.db import Database
from soak.store.keys import RUN_TABLES
from soak.store.mapping import MAPS
from soak.store.models import Base
from soak.store.writer import Writer

Child = Callable[..., "Popen[str]"]
ROOT = Path(__file__).parents[2]
SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    with op.batch_alter_table("finding") as table:
        table.add_column(sa.Column("note", sa.Text(), nullable=True))
        table.alter_column("unit", type_=sa.String(20))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest, url: str) -> str:
    return url if request.param == "sqlite" else request.getfixturevalue("postgresql_url")


@pytest.fixture
def newer_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Turns this program into one that knows a second revision."""
    location = tmp_path / "newer" / "soak_migrations"

    def become() -> None:
        shutil.copytree(Path(soak_migrations.__file__).parent, location)
        (location / "versions" / "v0002_second.py").write_text(SECOND)
        monkeypatch.setattr(migrate, "SCRIPT_LOCATION", str(location))

    return become


def test_the_migrations_make_the_tables_of_the_models(any_url: str) -> None:
    with Database.open(any_url) as database:
        database.upgrade()
        options = {"compare_type": True, "compare_server_default": True}
        with database.read() as connection:
            context = MigrationContext.configure(connection, opts=options)
            assert compare_metadata(context, Base.metadata) == []


def test_the_tables_counted_are_the_tables_there_are() -> None:
    assert tuple(rows.table.name for rows in MAPS) == RUN_TABLES
    assert set(Base.metadata.tables) == {*RUN_TABLES, "lease"}


def test_upgrading_twice_changes_nothing(any_url: str) -> None:
    with Database.open(any_url) as database:
        assert database.current() == migrate.SchemaVersion(None, "0001")
        assert database.upgrade() is None
        assert database.current().is_current
        assert database.upgrade() is None
        database.check_current()


def test_a_migration_leaves_logging_as_it_was(url: str) -> None:
    before = logging.getLogger().handlers[:], logging.getLogger("soak").disabled, logging.getLogger().level
    with Database.open(url) as database:
        database.upgrade()
    assert (
        logging.getLogger().handlers[:],
        logging.getLogger("soak").disabled,
        logging.getLogger().level,
    ) == before


def test_many_starters_at_once(any_url: str, child: Child) -> None:
    starters = [child("upgrade", any_url) for _ in range(3)]
    for starter in starters:
        assert starter.stdin is not None
        starter.stdin.write("go\n")
        starter.stdin.flush()
    for starter in starters:
        out, err = starter.communicate(timeout=60)
        assert (out, starter.returncode) == ("0001\n", 0), err


def test_an_older_file_is_copied_and_raised(
    database: Database, clock: Any, make: SimpleNamespace, newer_soak: Callable[[], None]
) -> None:
    writer = Writer(database, make.RUN_ID, clock, threaded=False)
    writer.write(make.info(), make.attempt(), make.finding("ecc", value=1.5))
    assert writer.flush(0)
    with database.write() as connection:  # what a crash in the middle of a batch leaves
        connection.exec_driver_sql("CREATE TABLE _alembic_tmp_finding (x INTEGER)")
    newer_soak()
    with pytest.raises(
        CannotRun, match=r"older soak \(schema 0001, this program needs 0002\); run `soak db upgrade`"
    ):
        database.check_current()
    copy = database.upgrade()
    assert copy is not None
    assert database.path is not None
    assert copy == database.path.with_name("soak.db.before-0002")
    assert database.current() == migrate.SchemaVersion("0002", "0002")
    assert database.load(make.RUN_ID).findings == (make.finding("ecc", value=1.5),)
    with database.read() as connection:
        assert connection.exec_driver_sql("SELECT note FROM finding").scalars().all() == [None]
        leftovers = "SELECT count(*) FROM sqlite_master WHERE name LIKE '%alembic_tmp%'"
        assert connection.exec_driver_sql(leftovers).scalar() == 0
    with closing(sqlite3.connect(copy)) as old:
        assert old.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        assert old.execute("SELECT count(*) FROM finding").fetchone() == (1,)


def test_an_older_program_refuses_what_a_newer_one_raised(
    database: Database, newer_soak: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        newer_soak()
        database.upgrade()
        later.undo()
    monkeypatch.setattr(migrate, "SCRIPT_LOCATION", "soak_migrations:.")
    with pytest.raises(CannotRun, match=r"newer soak \(schema 0002, this program knows 0001\); upgrade soak"):
        database.upgrade()


def test_a_migration_that_fails_changes_nothing(
    database: Database, tmp_path: Path, newer_soak: Callable[[], None]
) -> None:
    newer_soak()
    script = tmp_path / "newer" / "soak_migrations" / "versions" / "v0002_second.py"
    script.write_text(SECOND + "    op.execute('INSERT INTO nowhere VALUES (1)')\n")
    with pytest.raises(CannotRun, match="no such table: nowhere"):
        database.upgrade()
    assert database.current().current == "0001"
    with database.read() as connection:
        columns = connection.exec_driver_sql("SELECT name FROM pragma_table_info('finding')").scalars().all()
    assert "note" not in columns


def test_a_migration_that_hangs_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "soak.db"
    with migrate.file_lock(path), pytest.raises(CannotRun, match=r"has been migrating .* for 0 s"):  # noqa: SIM117 - one lock, twice
        with migrate.file_lock(path, timeout_s=0.1):
            pass


def test_the_wheel_holds_the_migrations(tmp_path: Path) -> None:
    """Built without the network, looked into, and its migrations run from nowhere near the repository."""
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "tests", "docs", "deploy", "build", "dist")
    shutil.copytree(ROOT, source, ignore=ignored)
    build = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    installed = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert (installed / "soak_migrations" / "versions" / "v0001_first.py").is_file()
    program = (
        "import soak, sys\n"
        "from soak.store.db import Database\n"
        "database = Database.open(sys.argv[1])\n"
        "database.upgrade()\n"
        "print(soak.__file__, database.current().current)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, f"sqlite:///{tmp_path}/soak.db"],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
    )
    assert ran.stdout == f"{installed}/soak/__init__.py 0001\n"
