"""A surface on loopback."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest

from soak.exporter import Exporter
from soak.web import Surface


@dataclass(frozen=True)
class Got:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


Fetch = Callable[..., Got]


@pytest.fixture
def surface() -> Iterator[Surface]:
    """A surface on a port of loopback that was free; nothing is published yet."""
    served = Surface(("127.0.0.1", 0), Exporter().render)
    served.start()
    yield served
    served.stop(2_000)


@pytest.fixture
def fetch(surface: Surface) -> Fetch:
    """One request on a connection of its own."""

    def fetch(path: str, method: str = "GET", **headers: str) -> Got:
        client = http.client.HTTPConnection("127.0.0.1", surface.port, timeout=10)
        try:
            client.request(method, path, headers=headers)
            answer = client.getresponse()
            return Got(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            client.close()

    return fetch
