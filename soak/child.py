"""A child process that is asked: it sends JSON lines, and is killed when its time is up. Parent's side."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

M = TypeVar("M")
LINES_MAX = 10_000


class Child(Generic[M]):
    """Starts `python -m MODULE ARGUMENTS…` and gathers the messages of its stdout.

    Every wait has a deadline; `end` kills. A child that does not end even then is left.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        message: type[M] | object,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._decoder: msgspec.json.Decoder[M] = msgspec.json.Decoder(message, strict=False)
        self._changed = threading.Condition()
        self._messages: list[M] = []
        self._is_over = False
        self._stderr = b""
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],  # -P: a soak folder where we are is not soak
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        self._gatherers = [
            threading.Thread(target=gather, name=module, daemon=True)
            for gather in (self._gather, self._gather_errors)
        ]
        for thread in self._gatherers:
            thread.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def say(self, line: bytes) -> None:
        """A line on the child's stdin; one that has ended does not hear it, which `wait` finds out."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(line + b"\n")
            self._child.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def wait(self, holds: Callable[[Sequence[M]], object], deadline_s: float) -> tuple[list[M], bool]:
        """Every message so far, once `holds` of them, the child is over or the time is up; and whether it
        held."""
        end_s = time.monotonic() + deadline_s
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_over or holds(self._messages), max(end_s - time.monotonic(), 0)
            )
            return list(self._messages), bool(holds(self._messages))

    def end(self, grace_s: float = 1.0) -> None:
        """Kills it, with whatever it has started; waits `grace_s` for it to be gone."""
        if self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGKILL)  # a session of its own, compilers included
        try:
            self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            return
        for thread in self._gatherers:
            thread.join(grace_s)
        if not any(thread.is_alive() for thread in self._gatherers):
            for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    @property
    def status(self) -> int | None:
        """As of subprocess, once it is over and collected: below 0 the signal that ended it."""
        if not self._is_over:
            return None
        try:
            return self._child.wait(0.5)
        except subprocess.TimeoutExpired:
            return None

    def why_silent(self, deadline_s: float) -> str:
        """In words: it ended, or did not answer in time."""
        try:
            code = self._child.wait(0.5 if self._is_over else 0.0)
        except subprocess.TimeoutExpired:
            return f"no answer in {deadline_s:.0f} s"
        how = f"died by signal {-code}" if code < 0 else f"ended with exit code {code}"
        last = self._stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return how + "".join(f": {line[:200]}" for line in last)

    def _gather(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            try:
                message = self._decoder.decode(line)
            except msgspec.DecodeError:
                continue  # a library's own words
            with self._changed:
                if len(self._messages) < LINES_MAX:
                    self._messages.append(message)
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _gather_errors(self) -> None:
        assert self._child.stderr is not None
        for line in self._child.stderr:
            self._stderr = (self._stderr + line)[-4000:]
