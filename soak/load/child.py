"""One worker process as its parent sees it: pipes that never block, a reader, signals to its whole group."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import IO, TypeAlias

import msgspec

from soak.load import wire

MESSAGES_WAITING = (
    4096  # half an hour of beats; then beats that later ones replace are dropped, nothing else is
)
WORDS_KEPT = 50  # lines of stderr

Spawn: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], "subprocess.Popen[bytes]"]


def spawn(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C on the terminal is for the parent alone."""
    return subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


class Child:
    """`take` gives what it said, `ended` how it ended.

    The kernel ends a worker together with the thread that started it: start workers in a thread that stays.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._said: deque[wire.Said] = deque()
        self._words: deque[str] = deque(maxlen=WORDS_KEPT)
        self._lock = threading.Lock()
        self.babble = ""  # a line that is none of the protocol
        os.set_blocking(process.stdin.fileno(), False)
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout,), daemon=True),
            threading.Thread(target=self._overhear, args=(process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        return self._words[-1] if self._words else ""

    def order(self, order: wire.Order) -> bool:
        """Whether it was handed over; a worker that is gone, or reads nothing, gets no orders."""
        assert self._process.stdin is not None
        try:
            return os.write(self._process.stdin.fileno(), line := wire.encode(order)) == len(line)
        except (OSError, ValueError):
            return False

    def take(self) -> list[wire.Said]:
        with self._lock:
            said = list(self._said)
            self._said.clear()
        return said

    def ended(self) -> int | None:
        """The wait status as of subprocess, once it has ended and everything it said is here; else None."""
        status = self._process.poll()
        if status is not None:
            self._readers[0].join(0.05)  # a grandchild may hold the pipe: then the next call sees
        return status

    def signal(self, number: signal.Signals) -> None:
        """To the worker and all that it started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def close(self) -> None:
        """Of a worker that has ended: its pipes."""
        for reader in self._readers:
            reader.join(1.0)
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _read(self, pipe: IO[bytes]) -> None:
        while line := pipe.readline(wire.MAX_LINE_BYTES):
            try:
                said = wire.decode_said(line)
            except msgspec.DecodeError as error:
                self.babble = self.babble or f"{error}: {line[:100]!r}"
                continue
            with self._lock:
                if len(self._said) >= MESSAGES_WAITING:
                    self._drop_a_beat()
                self._said.append(said)

    def _drop_a_beat(self) -> None:
        """The oldest that a later one of the same rotation makes superfluous: a beat's counts are sums."""
        for place, (said, later) in enumerate(pairwise(self._said)):
            if (
                isinstance(said, wire.ProgressSaid)
                and isinstance(later, wire.ProgressSaid)
                and said.event.rotation == later.event.rotation
            ):
                del self._said[place]
                return

    def _overhear(self, pipe: IO[bytes]) -> None:
        while line := pipe.readline(wire.MAX_LINE_BYTES):
            self._words.append(line.decode(errors="replace").rstrip())
