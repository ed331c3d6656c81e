"""`soak watch`: a daemon elsewhere, here a server that says what a daemon would."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from soak.cli import watch
from soak.core.errors import CannotRun

Answer = tuple[int, str]
GONE: Answer = (0, "")


@pytest.fixture
def daemon() -> Iterator[Callable[..., str]]:
    """Starts a server that gives one answer after the other, the last one again and again; its URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(*answers: Answer) -> str:
        waiting = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                if status == 0:
                    self.connection.close()
                    return
                self.send_response(status if self.path == "/run.json" else 404)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: Any) -> None:
                return

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def reported(machine: Any) -> dict[str, Any]:
    """The report of a finished run that failed."""
    failed = machine.run("simulate", "--scenario", "bit-flip", "--duration", "2h", "--seed", "5")
    assert failed.returncode == 1, failed.stderr
    database = f"sqlite:///{machine.data_dir}/simulated.db"
    report = machine.run("report", "--run-id", "latest", "--format", "json", "--database", database)
    document: dict[str, Any] = json.loads(report.stdout)
    return document


def as_running(reported: dict[str, Any]) -> str:
    run = reported["run"] | {"state": "running"}
    verdict = reported["verdict"] | {"verdict": "inconclusive", "title": "INCONCLUSIVE", "exit_code": 3}
    return json.dumps(reported | {"run": run, "verdict": verdict})


def test_it_ends_with_the_run_and_its_exit_code(
    machine: Any, daemon: Callable[..., str], reported: dict[str, Any]
) -> None:
    url = daemon(
        (503, "nothing of this run is recorded yet"), (200, as_running(reported)), (200, json.dumps(reported))
    )
    done = machine.run("watch", url)
    assert done.returncode == 1, done.stderr
    assert "nothing of this run is recorded yet" in done.stderr
    assert "INFO rotation" in done.stderr or "% " in done.stderr or "to go" in done.stderr
    assert reported["run"]["run_id"] in done.stdout
    assert "FAIL" in done.stdout


def test_a_daemon_that_is_lost_leaves_what_was_known(
    daemon: Callable[..., str], reported: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.01)
    monkeypatch.setattr(watch, "AWAY_MOST_S", 0.1)
    shown: list[Any] = []
    last = watch._follow(daemon((200, as_running(reported)), GONE) + "/run.json", shown.append)
    assert last.verdict.exit_code == 3
    assert shown
    assert "soak report --run-id" in capsys.readouterr().err


def test_what_is_no_daemon_is_exit_4(machine: Any, daemon: Callable[..., str]) -> None:
    done = machine.run("watch", "127.0.0.1:1")
    assert done.returncode == 4
    assert done.stderr.startswith("soak: There is no daemon at http://127.0.0.1:1/run.json")
    assert len(done.stderr.splitlines()) == 1
    for answer in ((200, "<html>"), (404, ""), GONE):
        with pytest.raises(CannotRun, match="There is no daemon at"):
            watch._follow(daemon(answer) + "/run.json", lambda _: None)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:port", "http://[::1"])
def test_what_is_no_address_is_exit_2(machine: Any, url: str) -> None:
    done = machine.run("watch", url)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
