"""The daemon's side of telemetry: starts the sampler child, takes its reports, replaces it when it fails."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from soak.core.errors import CannotRun
from soak.core.ports import Clock, Happening
from soak.core.records import Device, Poll
from soak.telemetry.plausible import printable
from soak.telemetry.wire import (
    LINE_MAX,
    Detect,
    Detected,
    Happened,
    Order,
    Polled,
    Target,
    Watch,
    line_of,
    reports_decoder,
)

Spawn = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a child may be silent, and how often it is replaced."""

    silent_ms: int = 5_000  # at least; five polls where that is longer
    start_ms: int = 10_000  # more for the first report: an interpreter starts, a driver is loaded
    end_ms: int = 1_000  # for a killed child to be gone
    backoff_ms: int = 250  # before the first restart, doubled each time
    backoff_max_ms: int = 60_000
    healthy_ms: int = 600_000  # after so long without a fault the back-off begins anew
    n_restarts_max: int = 100


def spawn_child(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A child with pipes, in a session of its own: a signal to the daemon's group is not for it."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)


class Sampler:
    """`core.ports.Telemetry` over a killable child.

    One thread of the parent starts, hears and replaces the child; `take` and `stop` never wait for a driver.
    `sysfs_root`: the folder that stands for `/` when sysfs and procfs are read.
    """

    def __init__(
        self,
        backends: Sequence[str] = ("amd", "nvidia", "cpu"),
        sysfs_root: Path = Path("/"),
        *,
        clock: Clock,
        spawn: Spawn = spawn_child,
        patience: Patience | None = None,
        n_waiting_max: int = 20_000,
    ) -> None:
        self._backends = tuple(backends)
        self._root = sysfs_root
        self._clock = clock
        self._spawn = spawn
        self._patience = patience or Patience()
        self._changed = threading.Condition()  # guards everything below
        self._news: deque[Poll | Happening] = deque()
        self._n_waiting_max = n_waiting_max
        self._n_dropped = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._n_ended = 0
        self._last_end = ""
        self._gave_up = False
        self._stopping = False
        self._condemned = ""  # why the child has to be replaced, for the thread that hears it
        self._watch: Watch | None = None
        self._detected: Detected | None = None
        self._backend_of: dict[str, str] = {}
        self._absences: dict[str, str] = {}
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._supervise, name="telemetry", daemon=True)

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        with self._changed:
            return self._child.pid if self._child else None

    @property
    def absences(self) -> Mapping[str, str]:
        """Why a backend has no card, by backend, as `devices` found it."""
        return dict(self._absences)

    def start(self) -> None:
        """Starts the child."""
        self._thread.start()

    def devices(self, deadline_ms: int = 30_000) -> tuple[Device, ...]:
        """The cards of every backend, each asked on its own: one that hangs or crashes costs its own cards.

        Waits up to `deadline_ms`; a backend without an answer is in `absences`.
        """
        found: list[Device] = []
        end_ms = self._clock.boot_ms() + deadline_ms
        for n_left, backend in zip(range(len(self._backends), 0, -1), self._backends, strict=True):
            share_ms = max(end_ms - self._clock.boot_ms(), 0) // n_left
            answer = self._ask(backend, share_ms)
            if answer.absence:
                self._absences[backend] = answer.absence
            self._backend_of |= {device.gpu: backend for device in answer.devices}
            found += answer.devices
        return tuple(found)

    def watch(self, gpus: Sequence[str], poll_ms: int, ecc_every_ms: int) -> None:
        """Polls these cards of `devices` from now on. Raises CannotRun for a card that was not found."""
        unknown = [gpu for gpu in gpus if gpu not in self._backend_of]
        if unknown:
            known = ", ".join(self._backend_of) or "none"
            raise CannotRun(f"No telemetry for {', '.join(unknown)}; the cards with telemetry are: {known}.")
        targets = tuple(Target(gpu, self._backend_of[gpu]) for gpu in gpus)
        with self._changed:
            assert self._watch is None, "a sampler watches once"
            self._watch = Watch(targets, poll_ms, ecc_every_ms)
            if self._child is not None:
                _send(self._child, self._watch)

    def take(self) -> Sequence[Poll | Happening]:
        with self._changed:
            news, self._news = list(self._news), deque()
            if self._n_dropped:
                detail = f"{self._n_dropped} reports were dropped: nobody took them"
                news.insert(0, Happening("sensor_gap", self._clock.boot_ms(), None, detail))
                self._n_dropped = 0
        return news

    def stop(self, deadline_ms: int) -> None:
        with self._changed:
            self._stopping = True
            child = self._child
            self._changed.notify_all()
            if child is not None and child.stdin is not None:
                child.stdin.close()  # the child ends by itself
        if not self._thread.is_alive():
            return
        self._thread.join(deadline_ms / 2000)
        if self._thread.is_alive() and child is not None:
            child.kill()
            self._thread.join(deadline_ms / 2000)

    def _ask(self, backend: str, deadline_ms: int) -> Detected:
        """One backend's cards. A child that does not answer in time is replaced before the next question."""
        end_ms = self._clock.boot_ms() + deadline_ms
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._child or self._gave_up or self._stopping, deadline_ms / 1000
            )
            child, n_ended = self._child, self._n_ended
            if not ready or child is None:
                return Detected(backend, (), self._last_end or "the sampler does not start")
            self._detected = None
            _send(child, Detect(backend, deadline_ms // 2))
            left_s = (end_ms - self._clock.boot_ms()) / 1000
            self._changed.wait_for(lambda: self._detected or self._n_ended > n_ended, left_s)
            if self._detected is not None:
                return self._detected
            if self._n_ended > n_ended:
                return Detected(backend, (), f"the process that asked the driver ended: {self._last_end}")
            why = f"the driver gave no answer in {deadline_ms / 1000:g} s"
            self._condemned = f"{why} when asked for its {backend} cards"
            child.kill()  # its end is heard sooner than the sentence is read
            self._changed.wait_for(lambda: self._n_ended > n_ended, 2 * self._patience.end_ms / 1000)
        return Detected(backend, (), why)

    def _supervise(self) -> None:
        patience, n_restarts, backoff_ms = self._patience, 0, self._patience.backoff_ms
        while True:
            begun_ms = self._clock.boot_ms()
            why = self._one_life()
            with self._changed:
                self._n_ended += 1
                self._last_end = why
                self._changed.notify_all()
                if self._stopping:
                    return
                if n_restarts == patience.n_restarts_max:
                    self._gave_up = True
                    self._keep(
                        self._happening("sampler_restarted", f"{why}; given up after {n_restarts} restarts")
                    )
                    return
                if self._clock.boot_ms() - begun_ms >= patience.healthy_ms:
                    backoff_ms = patience.backoff_ms
                self._changed.wait_for(lambda: self._stopping, backoff_ms / 1000)
                if self._stopping:
                    return
                n_restarts += 1
                backoff_ms = min(2 * backoff_ms, patience.backoff_max_ms)
                self._keep(self._happening("sampler_restarted", why))

    def _one_life(self) -> str:
        """Starts a child, hears it until it ends or has to be ended, and ends it. The reason, in words."""
        arguments = ["soak.telemetry.sampler", str(os.getpid()), str(self._root)]
        command = [sys.executable, "-P", "-m", *arguments]  # -P: a soak folder where we are is not soak
        try:
            child = self._spawn(command)
        except OSError as error:
            return f"the sampler could not be started: {error.strerror}"
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)  # a stopped child must not stop who gives it orders
        with self._changed:
            self._child, self._condemned = child, ""
            if self._stopping:
                child.stdin.close()
            elif self._watch is not None:
                _send(child, self._watch)
            self._changed.notify_all()
        stderr_tail = bytearray()
        try:
            why = self._hear(child, stderr_tail)
        except OSError as error:
            why = f"the sampler could not be heard ({error.strerror}) and was killed"
        with self._changed:
            self._child = None
        return self._end(child, why, stderr_tail)

    def _hear(self, child: subprocess.Popen[bytes], stderr_tail: bytearray) -> str:
        """Takes in reports until the child ends ("") or has to be ended (why)."""
        assert child.stdout is not None
        assert child.stderr is not None
        reports, errors = child.stdout.fileno(), child.stderr.fileno()
        poller = select.poll()
        for fd in (reports, errors):
            poller.register(fd, select.POLLIN)
        decoder, rest = reports_decoder(), b""
        silent_ms, allowance_ms = 0, self._patience.start_ms
        while True:
            if self._condemned:
                return self._condemned
            before_ms = self._clock.boot_ms()
            ready = [fd for fd, _ in poller.poll(500)]
            if errors in ready:
                text = os.read(errors, 65536)
                stderr_tail[:] = (stderr_tail + text)[-2000:]
                if not text:
                    poller.unregister(errors)
            if reports not in ready:
                # Only time spent listening is silence: not ours under SIGSTOP, not a suspended machine's.
                silent_ms += min(self._clock.boot_ms() - before_ms, 500)
                allowed_ms = self._silence_allowed_ms()
                if allowed_ms is None:
                    silent_ms = 0
                elif silent_ms > allowed_ms + allowance_ms:
                    self._gap(silent_ms)
                    return f"the sampler was silent for {silent_ms / 1000:.1f} s and was killed"
                continue
            silent_ms = 0
            data = os.read(reports, 65536)
            if not data:
                return self._condemned
            *lines, rest = (rest + data).split(b"\n")
            if lines:
                allowance_ms = 0
            if len(rest) > LINE_MAX:
                return "the sampler sent a line without an end and was killed"
            try:
                self._take_in([decoder.decode(line) for line in lines])
            except msgspec.DecodeError as error:
                return f"the sampler sent what is no report ({error}) and was killed"

    def _silence_allowed_ms(self) -> int | None:
        with self._changed:
            return None if self._watch is None else max(self._patience.silent_ms, 5 * self._watch.poll_ms)

    def _take_in(self, reports: Sequence[Detected | Polled | Happened]) -> None:
        with self._changed:
            for report in reports:
                if isinstance(report, Polled):
                    self._keep(report.poll)
                elif isinstance(report, Happened):
                    self._keep_happening(report.happening)
                else:
                    self._detected = report
                    self._changed.notify_all()

    def _keep_happening(self, happening: Happening) -> None:
        """What is said once is not said again by the child's successors."""
        if happening.data.get("once"):
            if happening.detail in self._said:
                return
            self._said.add(happening.detail)
        self._keep(happening)

    def _keep(self, news: Poll | Happening) -> None:
        if len(self._news) >= self._n_waiting_max:
            self._news.popleft()
            self._n_dropped += 1
        self._news.append(news)

    def _gap(self, silent_ms: int) -> None:
        with self._changed:
            detail = f"no poll of any card for {silent_ms / 1000:.1f} s"
            self._keep(self._happening("sensor_gap", detail))

    def _happening(self, kind: str, detail: str) -> Happening:
        return Happening(kind, self._clock.boot_ms(), None, detail)

    def _end(self, child: subprocess.Popen[bytes], why: str, stderr_tail: bytearray) -> str:
        """Kills what is left of a child and says how it ended. One that cannot be killed is left."""
        if why:
            child.kill()
        try:
            code = child.wait(self._patience.end_ms / 1000)
        except subprocess.TimeoutExpired:
            child.kill()
            try:
                code = child.wait(self._patience.end_ms / 1000)
            except subprocess.TimeoutExpired:
                return (
                    f"{why or 'the sampler closed its pipe'}; process {child.pid} does not end and was left"
                )
        finally:
            rest = _unread(child.stderr)
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
        if why:
            return why
        stderr = bytes(stderr_tail) + rest
        ended = f"died by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        last_words = stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"the sampler {ended}" + "".join(f": {printable(line)}" for line in last_words)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has none
        return f"signal {number}"


def _unread(pipe: IO[bytes] | None) -> bytes:
    """What is in a pipe, without waiting for more."""
    if pipe is None:
        return b""
    os.set_blocking(pipe.fileno(), False)
    try:
        return os.read(pipe.fileno(), 65536)
    except BlockingIOError:
        return b""


def _send(child: subprocess.Popen[bytes], order: Order) -> None:
    """An order to a child; one that cannot take it is found out by its silence or its end."""
    assert child.stdin is not None
    try:
        os.write(child.stdin.fileno(), line_of(order))
    except (BrokenPipeError, BlockingIOError, ValueError):
        return
