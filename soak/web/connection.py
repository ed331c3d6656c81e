"""One HTTP connection. h11 parses; this file decides how long a client may take, and how much it may send.

    idle ── first byte ──> reading ── head complete ──> answering ──> sending ──> idle
      └───── too long: closed ──┘                            └─ refused, or asked to close: leaving

Every state but idle has a deadline that activity does not renew, so a client that sends a byte a second holds
nothing for long. Bodies are never read: nothing here takes any.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Callable
from email.utils import formatdate
from enum import Enum, auto
from typing import cast

import h11

from soak.web.crowd import Crowd
from soak.web.reply import Reply, text

HEAD_MAX = 8 * 1024  # bytes of a request's head
PIECE = 64 * 1024  # bytes of a body that are handed to the socket at a time
HEAD_S = 10.0  # for a head to arrive
IDLE_S = 90.0  # between requests: a scrape a minute keeps its connection
ANSWER_S = 30.0  # for an answer to be made
SEND_S = 30.0  # for the client to take it
LEAVE_S = 1.0  # a refused client may still be sending; closing at once would take the answer from it

Answer = Callable[[str, str], "Reply | asyncio.Future[Reply]"]
"""Path and Accept header to a reply."""


class _State(Enum):
    IDLE = auto()
    READING = auto()
    ANSWERING = auto()
    SENDING = auto()
    LEAVING = auto()


class Connection(asyncio.Protocol):
    """Serves one client, one request at a time."""

    def __init__(self, crowd: Crowd, answer: Answer) -> None:
        self._crowd, self._answer = crowd, answer
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_MAX)
        self._state = _State.IDLE
        self._deadline: asyncio.TimerHandle | None = None
        self._rest = memoryview(b"")  # of the body, not yet handed to the socket
        self._is_full = False  # the socket takes no more for now
        self._is_head = False  # the client asked for the headers alone
        self._closes = False  # after this reply

    @property
    def is_busy(self) -> bool:
        """An answer is on its way."""
        return self._state in (_State.ANSWERING, _State.SENDING)

    def drop(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    # -- what the loop calls -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # the body waits here, not in copies
        self._crowd.admit(self)
        self._within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._within(None)
        self._state = _State.LEAVING
        self._rest = memoryview(b"")
        self._crowd.leave(self)

    def data_received(self, data: bytes) -> None:
        if self._state is _State.LEAVING:
            return
        self._http.receive_data(data)
        self._read()

    def eof_received(self) -> bool:
        return self.is_busy  # a client may close its side and wait for the answer

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._send()

    # -- requests ----------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Takes one request out of what came in, if there is a whole one."""
        if self._state is _State.IDLE and self._http.trailing_data[0]:
            self._state = _State.READING
            self._within(HEAD_S)
        if self._state is not _State.READING:
            return
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._is_head = False
            self._refuse(error.error_status_hint, "this is no HTTP request that can be understood")
            return
        if isinstance(event, h11.Request):
            self._take(event)

    def _take(self, request: h11.Request) -> None:
        self._is_head = request.method == b"HEAD"
        headers = {name: value.decode("latin-1") for name, value in request.headers}
        if request.method not in (b"GET", b"HEAD"):
            method = request.method.decode("latin-1")
            self._refuse(405, f"{method} is not served; this surface is read-only", {"Allow": "GET, HEAD"})
            return
        if len(request.target) + sum(len(n) + len(v) for n, v in request.headers) > HEAD_MAX:
            self._refuse(431, "the request's head is too long")  # h11 bounds only what comes in parts
            return
        if b"transfer-encoding" in headers or headers.get(b"content-length", "0") != "0":
            self._refuse(413, "a request with a body is not served")
            return
        end = self._http.next_event()  # of a request without a body
        assert isinstance(end, h11.EndOfMessage), end
        self._state = _State.ANSWERING
        self._within(ANSWER_S)
        self._transport.pause_reading()  # the next request waits in the kernel
        reply = self._answer(_path(request.target), headers.get(b"accept", ""))
        if isinstance(reply, Reply):
            self._begin(reply)
        else:
            reply.add_done_callback(self._answered)

    def _answered(self, made: asyncio.Future[Reply]) -> None:
        if self._state is _State.ANSWERING and not made.cancelled():
            self._begin(made.result())

    def _refuse(self, status: int, words: str, headers: dict[str, str] | None = None) -> None:
        self._closes = True
        self._state = _State.ANSWERING
        self._begin(text(status, words, headers))

    # -- replies -----------------------------------------------------------------------------------------

    def _begin(self, reply: Reply) -> None:
        self._state = _State.SENDING
        self._within(SEND_S)
        headers = {
            "Content-Type": reply.kind,
            "Content-Length": str(len(reply.body)),
            "Date": formatdate(usegmt=True),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **reply.headers,
        }
        if self._closes:
            headers["Connection"] = "close"
        reason = http.HTTPStatus(reply.status).phrase.encode()
        head = h11.Response(status_code=reply.status, reason=reason, headers=list(headers.items()))
        self._rest = memoryview(b"" if self._is_head else reply.body)
        self._transport.write((self._http.send(head) or b"") + self._piece())
        self._send()

    def _send(self) -> None:
        """Hands the socket what it takes; the reply is done when it has taken all."""
        while self._state is _State.SENDING and not self._is_full:
            if not self._rest:
                self._done()
                return
            self._transport.write(self._piece())

    def _piece(self) -> bytes:
        """The next bytes of the body; nothing where there are none."""
        piece, self._rest = bytes(self._rest[:PIECE]), self._rest[PIECE:]
        return (self._http.send(h11.Data(data=piece)) or b"") if piece else b""

    def _done(self) -> None:
        self._http.send(h11.EndOfMessage())
        self._crowd.served(self)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._state = _State.IDLE
            self._within(IDLE_S)
            self._transport.resume_reading()
            self._loop.call_soon(self._read)  # another request may be here already; others come first
            return
        self._state = _State.LEAVING
        self._within(LEAVE_S)
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _within(self, seconds: float | None) -> None:
        """Sets the deadline of the present state."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self._loop.call_later(seconds, self.drop)


def _path(target: bytes) -> str:
    """Without its query; of the absolute form too, which proxies send."""
    path = target.decode("latin-1").partition("?")[0]
    _, scheme, rest = path.partition("://")
    return f"/{rest.partition('/')[2]}" if scheme else path
