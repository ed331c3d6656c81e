"""Clients that come in numbers, or slowly, keep neither the scraper nor the run."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from soak.web import Surface
from soak.web import connection as connections
from soak.web.crowd import Crowd
from soak.web.surface import CONNECTIONS_MAX
from tests.web.scenes import at_hour


@dataclass(eq=False)
class Guest:
    name: str
    is_busy: bool = False
    is_dropped: bool = False

    def drop(self) -> None:
        self.is_dropped = True


def test_the_oldest_that_was_never_served_goes_first_then_the_one_served_longest_ago() -> None:
    crowd = Crowd(3)
    a, b, c, d, e, f, g = (Guest(name) for name in "abcdefg")
    for guest in (a, b, c):
        crowd.admit(guest)
    crowd.served(a)
    crowd.admit(d)
    assert [x.name for x in (a, b, c, d) if x.is_dropped] == ["b"]
    crowd.served(c)
    crowd.served(a)
    crowd.served(d)
    crowd.admit(e)
    assert [x.name for x in (a, c, d, e) if x.is_dropped] == ["c"]
    crowd.admit(f)
    crowd.served(e)  # dropped meanwhile: it stays out
    assert e.is_dropped
    assert len(crowd) == 3
    for guest in (a, b, c, d, e, f, g):
        crowd.leave(guest)
    assert len(crowd) == 0
    assert crowd.members == ()


@contextmanager
def crowd_of(port: int, n_idle: int, n_slow: int) -> Iterator[None]:
    """Clients in processes of their own, which may open fewer than a thousand files each."""
    script, processes = str(Path(__file__).with_name("crowd_clients.py")), []
    try:
        while n_idle or n_slow:
            idle = min(n_idle, 500)
            command = [sys.executable, script, str(port), str(idle), str(n_slow)]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            n_idle, n_slow = n_idle - idle, 0
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        for process in processes:
            process.communicate(timeout=20)


@dataclass(frozen=True)
class Times:
    """Milliseconds, sorted: of scrapes, and of a bare exchange of as many bytes right after each.

    The second is what the machine itself takes of a thread's time just now: other programs share it.
    """

    scrapes: list[float]
    bare: list[float]

    def __str__(self) -> str:
        n = len(self.scrapes)
        return (
            f"scrapes: p50 {self.scrapes[n // 2]:.2f} ms, p99 {p99(self.scrapes):.2f} ms, "
            f"max {self.scrapes[-1]:.2f} ms; bare exchange: p50 {self.bare[n // 2]:.2f} ms, "
            f"p99 {p99(self.bare):.2f} ms, max {self.bare[-1]:.2f} ms"
        )

    @property
    def p99_own_ms(self) -> float:
        """The scrapes' p99 beyond that of the bare exchange."""
        return p99(self.scrapes) - p99(self.bare)


def p99(times_ms: list[float]) -> float:
    return times_ms[max(len(times_ms) * 99 // 100 - 1, 0)]


def timed(surface: Surface, n: int, every_s: float) -> Times:
    """Scrapes, each on a connection of its own, of a run of eight cards that publishes every second."""
    snapshot, published_s, size = at_hour("healthy", 20, n_gpus=8), 0.0, 0
    scrapes, bare = [], []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=exchange_bytes, args=(listener, n))
        other.start()
        for _ in range(n):
            if time.monotonic() - published_s >= 1:
                surface.publish(replace(snapshot))
                published_s = time.monotonic()
            began_s = time.perf_counter()
            size = scrape(surface.port)
            middle_s = time.perf_counter()
            ask_bytes(listener.getsockname()[1], size)
            bare.append((time.perf_counter() - middle_s) * 1000)
            scrapes.append((middle_s - began_s) * 1000)
            time.sleep(every_s)
        other.join(10)
    return Times(sorted(scrapes), sorted(bare))


def scrape(port: int) -> int:
    """The size of the answer."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    client.request("GET", "/metrics")
    answer = client.getresponse()
    assert answer.status == 200
    body = answer.read()
    client.close()
    assert body.endswith(b"\n")
    return len(body)


def exchange_bytes(listener: socket.socket, n: int) -> None:
    for _ in range(n):
        client, _ = listener.accept()
        with client:
            client.sendall(b"x" * int(client.recv(16)))


def ask_bytes(port: int, size: int) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as client:
        client.sendall(str(size).encode())
        while client.recv(65536):
            pass


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the count is all that is wanted


def quick_enough(surface: Surface, n: int, every_s: float, most_ms: float) -> Times:
    """The best of three rounds, or the first that will do: other programs only ever add time."""
    rounds: list[Times] = []
    while len(rounds) < 3:
        rounds.append(timed(surface, n, every_s))
        if rounds[-1].p99_own_ms < most_ms:
            break
    return min(rounds, key=lambda times: times.p99_own_ms)


def test_a_scrape_of_eight_cards_is_quick(surface: Surface) -> None:
    times = quick_enough(surface, 500, 0.002, 20)
    print(times)
    assert times.p99_own_ms < 20, times


def test_a_kept_connection_is_not_delayed(surface: Surface) -> None:
    """Head and body in two packets would wait for each other 40 ms, unless Nagle's algorithm is off."""
    surface.publish(at_hour("healthy", 20, n_gpus=8))
    client = http.client.HTTPConnection("127.0.0.1", surface.port, timeout=5)
    times_ms = []
    for _ in range(51):
        began_s = time.perf_counter()
        client.request("GET", "/metrics")
        client.getresponse().read()
        times_ms.append((time.perf_counter() - began_s) * 1000)
    client.close()
    assert sorted(times_ms)[25] < 20, sorted(times_ms)


def test_idle_and_slow_connections_do_not_keep_the_scraper_out(surface: Surface) -> None:
    """The short form of the slow test below."""
    before = open_files()
    with crowd_of(surface.port, CONNECTIONS_MAX + 50, 10):
        times = quick_enough(surface, 100, 0.02, 100)
        assert open_files() - before <= CONNECTIONS_MAX + 10
    assert times.p99_own_ms < 100, times


@pytest.mark.slow
def test_a_thousand_idle_and_fifty_slow_connections(surface: Surface) -> None:
    before = open_files()
    with crowd_of(surface.port, 1_000, 50):
        times = quick_enough(surface, 500, 0.05, 100)
        assert open_files() - before <= CONNECTIONS_MAX + 10
    print(times)
    assert times.p99_own_ms < 100, times


@pytest.mark.parametrize(
    ("limit", "sent", "answered"),
    [
        ("HEAD_S", b"", False),
        ("HEAD_S", b"GET /metrics HTTP/1.1\r\nHost:", False),
        ("IDLE_S", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", True),
    ],
)
def test_a_client_that_does_nothing_is_put_out(
    surface: Surface, monkeypatch: pytest.MonkeyPatch, limit: str, sent: bytes, answered: bool
) -> None:
    monkeypatch.setattr(connections, limit, 0.2)
    with socket.create_connection(("127.0.0.1", surface.port), 5) as client:
        client.sendall(sent)
        began_s = time.monotonic()
        answer = b""
        try:
            while part := client.recv(65536):
                answer += part
        except ConnectionResetError:
            pass
        assert 0.1 < time.monotonic() - began_s < 2
        assert bool(answer) is answered


def test_bytes_that_trickle_do_not_renew_the_deadline(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.4)
    with socket.create_connection(("127.0.0.1", surface.port), 5) as client:
        began_s = time.monotonic()
        with pytest.raises(ConnectionError):
            trickle(client)
        assert time.monotonic() - began_s < 3


def trickle(client: socket.socket) -> None:
    for _ in range(100):
        client.sendall(b"G")
        time.sleep(0.05)


def test_a_client_that_does_not_take_its_answer_is_put_out(
    surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SEND_S", 0.3)
    surface.publish(at_hour("healthy", 20), "x" * 30_000_000)
    with socket.create_connection(("127.0.0.1", surface.port), 5) as client:
        client.sendall(b"GET /run.json HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.8)
        taken = 0
        while part := client.recv(65536):
            taken += len(part)
        assert taken < 30_000_000


def test_slow_takers_of_a_large_document_share_its_bytes(surface: Surface) -> None:
    """Forty clients that stop after the first bytes hold one document, not forty copies of what remains."""
    surface.publish(at_hour("healthy", 20), lambda: "x" * 8_000_000)
    clients = [socket.create_connection(("127.0.0.1", surface.port), 10) for _ in range(40)]
    before_kb = resident_kb()
    for client in clients:
        client.sendall(b"GET /run.json HTTP/1.1\r\nHost: x\r\n\r\n")
    for client in clients:
        assert client.recv(15) == b"HTTP/1.1 200 OK"
    assert resident_kb() - before_kb < 100_000  # 320 MB were they copied
    for client in clients:
        client.close()


def resident_kb() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0])
