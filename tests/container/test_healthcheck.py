"""The image's HEALTHCHECK as a process of its own, against the real HTTP surface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from soak.exporter import Exporter
from soak.web import Surface

SCRIPT = Path(__file__).parents[2] / "deploy/container/healthcheck.py"


def check(listen: str | None) -> subprocess.CompletedProcess[str]:
    """As the Dockerfile runs it."""
    environ = {"PATH": os.environ["PATH"]} | ({} if listen is None else {"SOAK_LISTEN": listen})
    command = [sys.executable, "-I", "-S", "-W", "error", str(SCRIPT)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=20)


@pytest.fixture
def surface() -> Iterator[Surface]:
    surface = Surface(("127.0.0.1", 0), Exporter().render)
    surface.start()
    yield surface
    surface.stop(500)


def test_it_says_what_healthz_says(surface: Surface) -> None:
    """No run has been published yet."""
    answered = check(surface.url.removeprefix("http://").strip("/"))
    assert (answered.returncode, answered.stderr) == (1, "")
    assert "the run has not been heard of yet" in answered.stdout


@pytest.mark.parametrize("host", ["0.0.0.0", ""])
def test_every_address_is_asked_on_the_loopback(surface: Surface, host: str) -> None:
    port = surface.url.strip("/").rpartition(":")[2]
    assert "has not been heard of" in check(f"{host}:{port}").stdout


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n", 0),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\nno step finished for 40 s\n", 1),
        (b"HTTP/1.1 204", 1),
        (b"", 1),
    ],
)
def test_only_200_is_well(answer: bytes, code: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(SCRIPT)], env={"SOAK_LISTEN": listen}, stdout=subprocess.PIPE
        )
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1024).startswith(b"GET /healthz HTTP/1.1\r\n")
            connection.sendall(answer)
        told, _ = process.communicate(timeout=20)
    assert process.returncode == code
    assert told.strip() == answer.partition(b"\r\n\r\n")[2].strip()


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "127.0.0.1:x", "nonsense"])
def test_nobody_there_is_not_well_and_no_traceback(listen: str) -> None:
    answered = check(listen)
    assert (answered.returncode, answered.stderr) == (1, "")
    assert answered.stdout.startswith("no answer: ")
