"""What holds for every test; and a real PostgreSQL server for those that can use one."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

# An example of a property has no time limit of its own, on a busy machine.
# In CI the same examples every time: what is new is found by hand and in `make long`.
settings.register_profile("soak", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("soak")


def _program(name: str) -> str | None:
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(installed[-1]) if installed else None)


def _unprivileged() -> str | None:
    """Whom the server runs as: PostgreSQL refuses root."""
    if os.getuid() != 0:
        return None
    known = {user.pw_name for user in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in known)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The URL of a server on loopback, up to the database's name. Skips, counted, where there is none."""
    initdb, postgres = _program("initdb"), _program("postgres")
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    if initdb is None or postgres is None:
        pytest.skip("no PostgreSQL server is installed (Debian: postgresql)")
    user = _unprivileged()
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # a database has hundreds of files
    with tempfile.TemporaryDirectory(prefix="soak-pg-", dir=in_memory) as folder:
        if user is not None:
            shutil.chown(folder, user)
        data = str(Path(folder, "data"))
        subprocess.run(
            [initdb, "-D", data, "-U", "soak", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True,
            capture_output=True,
            user=user,
            cwd=folder,
        )
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        server = subprocess.Popen(
            [postgres, "-D", data, "-p", str(port), "-k", folder, "-h", "127.0.0.1", "-F"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            cwd=folder,
        )
        url = f"postgresql://soak@127.0.0.1:{port}/"
        try:
            _wait_until_it_answers(url, psycopg)
            yield url
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: what it holds is not wanted any more
            server.wait(30)


def _wait_until_it_answers(url: str, psycopg: ModuleType) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(url + "postgres").close()
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """The URL of a fresh, empty database."""
    import psycopg

    name = f"soak_{uuid.uuid4().hex}"
    with psycopg.connect(postgresql_server + "postgres", autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"'.encode())
    return postgresql_server + name


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Makes a file system of a size like 4m; mounting one takes a privilege."""
    mounted: list[Path] = []

    def make(size: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("no file system may be mounted here")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)
