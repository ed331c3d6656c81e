"""`soak watch`: a daemon elsewhere, here a server that says what a daemon would."""

from __future__ import annotations

import io
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from soak.cli import view, watch
from soak.core.errors import CannotRun, ConfigError
from soak.report.watched import snapshot_of

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
def raw() -> Iterator[Callable[..., str]]:
    """Starts a server that sends these bytes and then, if there are such, these again and again, one every
    few milliseconds; it hangs up once nothing follows, unless it is to hold. The address of its report."""
    over = threading.Event()
    servers: list[socket.socket] = []

    def answer(connection: socket.socket, first: bytes, dripped: bytes, hold: bool) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(first)
            while dripped and not over.wait(0.02):
                connection.sendall(dripped)
            if hold:
                over.wait()

    def serve(server: socket.socket, *how: Any) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0], *how), daemon=True).start()

    def start(first: bytes, dripped: bytes = b"", *, hold: bool = False) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)
        threading.Thread(target=serve, args=(server, first, dripped, hold), daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}/run.json"

    yield start
    over.set()
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
        server.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.01)
    monkeypatch.setattr(watch, "AWAY_MOST_S", 0.1)


@pytest.fixture(scope="module")
def _finished() -> dict[str, str]:
    """The report of the failed run, once it was made."""
    return {}


@pytest.fixture
def reported(machine: Any, _finished: dict[str, str]) -> dict[str, Any]:
    """The report of a finished run that failed."""
    if "report" not in _finished:
        _finished["report"] = _report_of_a_failed_run(machine)
    document: dict[str, Any] = json.loads(_finished["report"])
    return document


def _report_of_a_failed_run(machine: Any) -> str:
    failed = machine.run("simulate", "--scenario", "bit-flip", "--duration", "2h", "--seed", "5")
    assert failed.returncode == 1, failed.stderr
    database = f"sqlite:///{machine.data_dir}/simulated.db"
    report = machine.run("report", "--run-id", "latest", "--format", "json", "--database", database)
    return str(report.stdout)


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


@pytest.mark.usefixtures("impatient")
def test_a_daemon_that_is_lost_leaves_what_was_known(
    daemon: Callable[..., str], reported: dict[str, Any], capsys: Any
) -> None:
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


NOT_ADDRESSES = (
    *("ftp://host", "http://", "http://host:port", "http://[::1", "host:0", "http://.x", "a..b", "x" * 70),
    *(
        "http://host/\u00e9",
        "http://host?x=1",
        "host?",
        "http://host#top",
        "http://host /",
        "http://host\n",
        " host",
    ),
)


def test_what_is_no_address_is_exit_2(machine: Any) -> None:
    done = machine.run("watch", "http://host/\u00e9")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("url", NOT_ADDRESSES)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a daemon") as refused:
        watch._run_json(url)
    assert repr(url) in str(refused.value)


@pytest.mark.parametrize("url", ["user:secret@host", "http://user:secret@host:9868", "http://user@host"])
def test_a_user_in_the_address_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(ConfigError, match="no password") as refused:
        watch._run_json(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("host", "http://host/run.json"),
        ("https://host.example.:9868/soak/", "https://host.example.:9868/soak/run.json"),
        (f"{'x' * 63}:9868", f"http://{'x' * 63}:9868/run.json"),
        ("[fe80::1%eth0]:9868/run.json", "http://[fe80::1%eth0]:9868/run.json"),
    ],
)
def test_an_address_of_a_daemon(url: str, where: str) -> None:
    assert watch._run_json(url) == where


HEAD = b"HTTP/1.1 503 Service Unavailable\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("answer", [CHUNKED + b"zz\r\n", HEAD + b"Content-Length: 9\r\n\r\nnot"])
def test_a_daemon_that_breaks_off_its_refusal_is_away(
    raw: Callable[..., str], answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "TIMEOUT_S", 0.1)
    with pytest.raises(watch._Away):
        watch._fetch(raw(answer, hold=True))


@pytest.mark.parametrize(
    ("first", "dripped"),
    [
        (b"HTTP/1.1 ", b"2"),
        (b"HTTP/1.1 200 OK\r\n", b"X"),
        (b"HTTP/1.1 200 OK\r\n\r\n{", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", b" "),
        (HEAD + b"Content-Length: 150\r\n\r\n", b" "),
    ],
)
def test_a_server_that_drips_is_away(
    raw: Callable[..., str], first: bytes, dripped: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FETCH_MOST_S", 0.3)
    began_s = time.monotonic()
    with pytest.raises(watch._Away, match=r"not answered in full within 0\.3 s"):
        watch._fetch(raw(first, dripped))
    assert time.monotonic() - began_s < 2.5


def test_a_greeting_of_tls_that_drips_is_away(
    raw: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FETCH_MOST_S", 0.3)
    greeting = b"\x16\x03\x03\x40\x00"  # a record of 16 KiB is to follow
    began_s = time.monotonic()
    with pytest.raises(watch._Away, match="not answered in full"):
        watch._fetch(raw(greeting, b"\x02").replace("http:", "https:"))
    assert time.monotonic() - began_s < 2.5


def test_a_redirect_to_what_is_no_address_is_away(raw: Callable[..., str]) -> None:
    for place in (b"http://.x/", b"http://[::1/", b"ftp://127.0.0.1/"):
        with pytest.raises(watch._Away):
            watch._fetch(raw(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + place + b"\r\n\r\n"))


def changed(reported: dict[str, Any], part: str, **values: Any) -> str:
    document = json.loads(as_running(reported))
    document[part] |= values
    return json.dumps(document)


UNKNOWN = (
    ("verdict", {"verdict": "paused"}, "'paused' is not a valid Verdict"),
    ("verdict", {"exit_code": 256}, "its exit code is 256"),
    ("run", {"state": "paused"}, "'paused' is no state"),
    ("run", {"elapsed_s": "NaN"}, "NaN"),
    ("run", {"elapsed_s": "Infinity"}, "infinity"),
    ("run", {"created_utc": "today"}, "today"),
    ("protocol", {"limits": {"throttle_max": "little"}}, "Expected `float`"),
)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("part", "values", "words"), UNKNOWN)
def test_what_is_not_known_is_no_readable_report(
    daemon: Callable[..., str],
    reported: dict[str, Any],
    capsys: Any,
    part: str,
    values: dict[str, Any],
    words: str,
) -> None:
    newer = (200, changed(reported, part, **values))
    with pytest.raises(CannotRun, match=f"There is no daemon at .* no report that .*{words}"):
        watch._follow(daemon(newer) + "/run.json", lambda _: None)
    last = watch._follow(daemon((200, as_running(reported)), newer) + "/run.json", lambda _: None)
    assert last.verdict.exit_code == 3
    told = capsys.readouterr().err
    assert words in told
    assert len(told.splitlines()) == 1


def test_endless_nesting_is_no_readable_report(daemon: Callable[..., str]) -> None:
    with pytest.raises(watch._Away, match="no report that this program can read"):
        watch._fetch(daemon((200, '{"a":' + "[" * 100_000)) + "/run.json")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_report_that_cannot_be_drawn_leaves_the_screen_usable(
    daemon: Callable[..., str], reported: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads(as_running(reported))
    for criterion in document["cards"][0]["criteria"]:
        criterion["value"] = "NaN" if criterion["criterion"] == "continuity" else criterion["value"]
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    report = watch._fetch(daemon((200, json.dumps(document))) + "/run.json")
    with view.watching() as show, suppress(watch._Away):
        watch._show(report, show)


def test_nothing_foreign_reaches_the_terminal(
    daemon: Callable[..., str], raw: Callable[..., str], reported: dict[str, Any], caplog: Any
) -> None:
    with pytest.raises(watch._NotYet, match=r"^\\x1b\[2J \\x9b wait$"):
        watch._fetch(daemon((503, "\x1b[2J\n\x9b wait")) + "/run.json")
    with pytest.raises(watch._Away, match=r"\\x1b\[2J"):
        watch._fetch(raw(b"\x1b[2J\r\n\r\n"))
    incident = reported["incidents"][0] | {"seq": 9999, "detail": "\x1b[2J\nsoak: PASS"}
    text = changed(reported | {"incidents": [incident]}, "run", state="running")
    report = watch._fetch(daemon((200, text)) + "/run.json")
    with caplog.at_level(logging.INFO, "soak"):
        view._LogLines()(snapshot_of(report))
    assert "\\x1b[2J soak: PASS" in caplog.text
    assert "\x1b" not in caplog.text


def test_the_last_line_is_clean(machine: Any, daemon: Callable[..., str], reported: dict[str, Any]) -> None:
    title = reported["verdict"] | {"title": "\x1b[2JPASS"}
    done = machine.run("watch", daemon((200, json.dumps(reported | {"verdict": title}))))
    assert done.returncode == 1
    assert done.stdout.rstrip().endswith("\\x1b[2JPASS")


@pytest.mark.parametrize("state", ["completed", "interrupted", "failed", "closed"])
def test_every_end_of_a_run_ends_it(daemon: Callable[..., str], reported: dict[str, Any], state: str) -> None:
    ended = changed(reported, "run", state=state)
    assert watch._follow(daemon((200, ended)) + "/run.json", lambda _: None).run.state == state
