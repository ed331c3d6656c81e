"""The parent of the workers: one child a card, watched, restarted within limits. Imports no GPU stack.

    start ─> starting ─ Ready ─> working ─ deadline missed ─> ending: TERM, KILL ─┐
                 ^                  └── died ────────────────────────────────────┤
                 └──────────── restart, three at most ───────────────────────────┴─> down

A worker that ends before it was ever ready is not restarted: its card cannot start, and the run says so. One
card's worker never touches another's. Everything happens in `take`, which the run calls about once a second.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from soak.core.ports import Clock, Happening, LoadEvent, Progress
from soak.core.protocol import Protocol, Shape
from soak.core.records import Device
from soak.load import wire
from soak.load.cgroup import oom_kills
from soak.load.child import Child, Spawn, spawn
from soak.load.deaths import explain
from soak.load.environment import worker_environment
from soak.load.process import look_at
from soak.load.watch import Doubt, Patience, Watch

WORKER = (sys.executable, "-P", "-m", "soak.load.worker")  # -P: a torch.py in the working folder is not torch
CHECKS_OWED = 8
_NAP_S = 0.02


@dataclass
class _Card:
    """What the pool knows of one card. `child` is None where the card is down."""

    device: Device
    child: Child | None = None
    watch: Watch | None = None
    was_ready: bool = False
    ready: bool = False  # this incarnation
    restarts: int = 0
    ending_ms: int | None = None  # when it was told to end
    killed_ms: int | None = None
    oom_kills: int | None = None  # when this incarnation started
    progress: Progress | None = None  # the last, as handed on
    before: Progress | None = None  # what earlier incarnations did in the rotation of `progress`
    checks: deque[int] = field(default_factory=lambda: deque(maxlen=CHECKS_OWED))  # ordered and not made yet


class Pool:
    """Implements `core.ports.Load`.

    `command` is what a worker is started with, `patience` its limits, `inject_bit_flip` ("ROTATION:STEP") a
    test's damage on every card, `root` where /proc and /sys are. `rotation`: the one to begin with.
    `stand_in`: the cards are recorded ones, the CPU works in their place, one sequence a launch.
    """

    def __init__(
        self,
        cards: Sequence[Device],
        protocol: Protocol,
        clock: Clock,
        *,
        rotation: int = 0,
        patience: Patience | None = None,
        command: Sequence[str] = WORKER,
        inject_bit_flip: str | None = None,
        stand_in: bool = False,
        environment: Mapping[str, str] | None = None,
        spawn: Spawn = spawn,
        root: Path = Path("/"),
    ) -> None:
        self._cards = {device.gpu: _Card(device) for device in cards}
        self._protocol, self._clock = protocol, clock
        self._stand_in = stand_in
        self._rotation = rotation
        self._patience = patience or Patience()
        damage = ("--inject-bit-flip", inject_bit_flip) if inject_bit_flip else ()
        self._command = (*command, "--parent", str(os.getpid()), *damage)
        self._environment = os.environ if environment is None else environment
        self._spawn, self._root = spawn, root
        self._late: list[LoadEvent] = []  # what came in during stop()
        self._left: list[Child] = []  # unkillable ones
        self._stopping = False

    def start(self) -> None:
        """Starts every worker, from a thread that stays: they end with it. Raises OSError if one cannot
        start."""
        for card in self._cards.values():
            self._start(card)

    @property
    def alive(self) -> tuple[str, ...]:
        """The cards that work or may work again."""
        return tuple(gpu for gpu, card in self._cards.items() if card.child is not None)

    @property
    def pids(self) -> Mapping[str, int]:
        """The worker of each card that has one."""
        return {gpu: card.child.pid for gpu, card in self._cards.items() if card.child is not None}

    def rotate(self, shape: Shape) -> None:
        assert shape == self._protocol.shape(shape.index), shape
        self._rotation = shape.index
        for card in self._cards.values():
            if card.child is not None:
                card.child.order(wire.Rotate(shape.index))

    def check(self, index: int) -> None:
        for card in self._cards.values():
            card.checks.append(index)
            if card.child is not None and card.ready:
                card.child.order(wire.Check(index))

    def take(self) -> Sequence[LoadEvent]:
        events, self._late = self._late, []
        for card in self._cards.values():
            if card.child is not None:
                events += self._attend(card, card.child, self._clock.boot_ms())
        return events

    def stop(self, deadline_ms: int) -> None:
        """A third of the deadline each for the order to stop, SIGTERM and SIGKILL; what then remains is
        left."""
        self._stopping = True
        began_ms = self._clock.boot_ms()
        for card in self._cards.values():
            card.ending_ms = began_ms
            if card.child is not None:
                card.child.order(wire.Stop())
        for number, share in ((signal.SIGTERM, 1), (signal.SIGKILL, 2), (None, 3)):
            while self.alive and self._clock.boot_ms() - began_ms < deadline_ms * share // 3:
                self._late += self.take()
                time.sleep(_NAP_S)
            for card in self._cards.values():
                if card.child is not None and number is not None:
                    card.child.signal(number)
                elif card.child is not None:
                    self._late += self._leave(card, card.child)

    # one card

    def _start(self, card: _Card) -> None:
        now_ms = self._clock.boot_ms()
        environment = worker_environment(card.device, self._environment)
        card.oom_kills = oom_kills(self._root)
        card.child = Child(self._spawn(self._command, environment))
        card.watch = Watch(self._patience, now_ms)
        card.ready, card.ending_ms, card.killed_ms = False, None, None
        engine, protocol = "cpu" if card.device.vendor == "cpu" else "gpu", self._protocol
        if self._stand_in:
            engine, protocol = "cpu", replace(protocol, dtype="float32", tokens=0, kernel="auto")
        card.child.order(wire.Start(card.device.gpu, engine, protocol, self._rotation))

    def _attend(self, card: _Card, child: Child, now_ms: int) -> list[LoadEvent]:
        status = child.ended()
        events = [event for said in child.take() for event in self._heard(card, child, said)]
        if status is not None:
            return [*events, *self._died(card, child, status)]
        if card.ending_ms is not None:
            return [*events, *self._press(card, child, now_ms)]
        if child.babble:
            self._end(card, child, now_ms)
            detail = f"the worker said what is no message: {child.babble}"
            return [*events, self._happening(card, "worker_error", detail)]
        doubt = self._doubt(card, child, now_ms)
        if doubt is None:
            return events
        if doubt.kind == "no_progress":
            self._end(card, child, now_ms)
        return [*events, self._happening(card, doubt.kind, doubt.detail, doubt.data)]

    def _heard(self, card: _Card, child: Child, said: wire.Said) -> list[LoadEvent]:
        assert card.watch is not None
        match said:
            case wire.ReadySaid(event):
                card.was_ready = card.ready = True
                card.watch.ready(event.boot_ms, int(event.facts.get("lanes", 1)), event.step_ms)
                for index in card.checks:
                    child.order(wire.Check(index))
                return [event]
            case wire.ProgressSaid(event, in_step_since_ms):
                card.watch.progress(event)
                card.watch.in_step_since_ms = in_step_since_ms
                return self._counted(card, event)
            case wire.CheckedSaid(event):
                if event.check.index in card.checks:
                    card.checks.remove(event.check.index)
                return [event]
            case wire.HappeningSaid(event):
                return [event]

    def _counted(self, card: _Card, progress: Progress) -> list[LoadEvent]:
        """With what earlier incarnations did in this rotation added; their golden digest must be the same."""
        before = card.before
        events: list[LoadEvent] = []
        if before is not None and before.rotation == progress.rotation:
            if before.golden and progress.golden and before.golden != progress.golden:
                detail = (
                    f"rotation {progress.rotation}: the golden digest after a restart is {progress.golden}, "
                    f"before it was {before.golden}"
                )
                events.append(self._happening(card, "mismatch", detail, {"rotation": progress.rotation}))
                card.before = before = replace(before, golden=progress.golden)
            progress = replace(
                progress,
                n_steps=progress.n_steps + before.n_steps,
                flops=progress.flops + before.flops,
                n_due=progress.n_due + before.n_due,
                n_compared=progress.n_compared + before.n_compared,
                mismatches=progress.mismatches + before.mismatches,
            )
        card.progress = progress
        return [*events, progress]

    def _doubt(self, card: _Card, child: Child, now_ms: int) -> Doubt | None:
        """Deadlines hold for a worker that is or was ready; a first start has its own, which the run
        keeps."""
        assert card.watch is not None
        if not card.was_ready or not card.watch.due(now_ms):
            return None
        process = look_at(child.pid, self._root / "proc")
        return card.watch.look(now_ms, process) if process is not None else None

    def _end(self, card: _Card, child: Child, now_ms: int) -> None:
        card.ending_ms = now_ms
        child.signal(signal.SIGTERM)

    def _press(self, card: _Card, child: Child, now_ms: int) -> list[LoadEvent]:
        """TERM was sent; KILL follows, then the worker is left."""
        assert card.ending_ms is not None
        if self._stopping:
            return []  # stop() has its own deadline
        if card.killed_ms is None:
            if now_ms - card.ending_ms >= self._patience.term_ms:
                card.killed_ms = now_ms
                child.signal(signal.SIGKILL)
            return []
        if now_ms - card.killed_ms < self._patience.kill_ms:
            return []
        return self._leave(card, child)

    def _leave(self, card: _Card, child: Child) -> list[LoadEvent]:
        card.child = None
        self._left.append(child)
        process = look_at(child.pid, self._root / "proc")
        state = process.state if process is not None else "unknown"
        detail = f"process {child.pid} did not end on SIGKILL and is left (state {state})"
        return [self._happening(card, "worker_unkillable", detail, {"pid": child.pid, "state": state})]

    def _died(self, card: _Card, child: Child, status: int) -> list[LoadEvent]:
        wanted = card.ending_ms is not None
        rose = (oom_kills(self._root) or 0) - card.oom_kills if card.oom_kills is not None else 0
        death = explain(status, n_oom_kills=rose, last_words=child.last_words)
        child.close()
        card.child = None
        events: list[LoadEvent] = []
        if death.kind and not wanted:
            events.append(
                self._happening(card, death.kind, death.detail, {"status": status, "oom_kills": rose})
            )
        if self._stopping or not card.was_ready:
            return events
        card.before = card.progress
        return [*events, *self._restart(card)]

    def _restart(self, card: _Card) -> list[LoadEvent]:
        limit = self._patience.restarts
        if card.restarts >= limit:
            detail = f"the worker was restarted {limit} times and is not started again"
            return [self._happening(card, "restarts_exhausted", detail)]
        card.restarts += 1
        try:
            self._start(card)
        except OSError as error:
            card.child = None
            return [
                self._happening(card, "restarts_exhausted", f"the worker cannot be started again: {error}")
            ]
        detail = f"restart {card.restarts} of {limit}, on rotation {self._rotation}"
        return [self._happening(card, "worker_restarted", detail, {"restarts": card.restarts})]

    def _happening(
        self, card: _Card, kind: str, detail: str, data: Mapping[str, Any] | None = None
    ) -> Happening:
        """With what the worker was at when it was last heard."""
        shape = self._protocol.shape(self._rotation)
        at: dict[str, Any] = {"rotation": shape.index, "seq_len": shape.seq_len, "causal": shape.causal}
        if card.progress is not None:
            at |= {"n_steps": card.progress.n_steps, "last_step_boot_ms": card.progress.last_step_boot_ms}
        return Happening(kind, self._clock.boot_ms(), card.device.gpu, detail, {**at, **(data or {})})
