"""The one loop of a run: wait for the cards, tick, finish. It knows ports only, and no clock of its own.

Every tick: what came in is folded, duties that are due are done, rows are written. The simulator drives the
same object in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from soak.core.card import CardState, Row, Start
from soak.core.criteria import Card, Standing
from soak.core.journal import Journal
from soak.core.muster import Muster
from soak.core.ports import Checked, Clock, Happening, Load, LoadEvent, Progress, Store, Telemetry
from soak.core.protocol import Protocol
from soak.core.quorum import Quorum
from soak.core.records import Attempt, Device, Poll, RunInfo, RunRecord, Stretch, Verdict
from soak.core.snapshot import CardSnapshot, Snapshot
from soak.core.verdict import CardJudgement, Judgement, earlier_attempts, judgement

DUTIES = ("rotate", "check", "sample", "end")
LATE_MS = 2_000  # a duty this late is done without its wake, and the wake counts as missed
BEAT_WITHIN_MS = 2_000  # a worker says how far it is at least this often, half a second being the rule
HEARTBEAT_MS = 9_000  # open rows and elapsed time go to the store this often (promised: 15 s until stored)
LAST_CHECK_WITHIN_MS = 60_000
STOP_WITHIN_MS = {"load": 2_000, "telemetry": 700, "store": 1_500}  # a stop takes under 5 s in all
# A run that ended by itself is in no hurry: a slow card or a locked database does not cost the verdict.
END_WITHIN_MS = {"load": 10_000, "telemetry": 700, "store": 60_000}


@dataclass(frozen=True, slots=True)
class Plan:
    """A run to be done, decided before anything starts.

    `attempt`: the number of the attempt; `before`: the run as stored where it is taken up again; `continues`:
    the last stored attempt goes on (`--on-interrupt continue`) instead of a new one beginning.
    """

    info: RunInfo
    protocol: Protocol
    boot_id: str
    attempt: int = 1
    before: RunRecord | None = None
    continues: bool = False
    happened: tuple[Happening, ...] = ()  # what the decision found (an unclean reboot), to be recorded
    stop_on_fail: bool = False

    @property
    def start_ms(self) -> int:
        """Elapsed time at which it begins: 0, or where the attempt that goes on was left."""
        return self.before.attempts[-1].elapsed_ms if self.continues and self.before is not None else 0


class Run:
    """A run in progress. Call `tick` about once a second and at every wake, then `finish` once."""

    def __init__(self, plan: Plan, clock: Clock, telemetry: Telemetry, load: Load, store: Store) -> None:
        self._plan = plan
        self._protocol = plan.protocol
        self._clock, self._telemetry, self._load, self._store = clock, telemetry, load, store
        self._boot_at_t0_ms = 0
        self._muster = Muster(plan.info, plan.protocol, clock.boot_ms())
        self._journal = Journal(plan.attempt, clock, plan.before.incidents if plan.before else ())
        self._cards: dict[str, CardState] = {}
        self._attempt: Attempt | None = None
        self._done = {"rotate": 0, "check": 0, "sample": 0}  # how many of each duty were done
        self._woken: set[str] = set()
        self._in_flight: dict[str, set[int]] = {d.gpu: set() for d in plan.info.devices}
        self._n_missed = dict.fromkeys(self._done, 0)
        self._written_ms = 0
        self._lost = False  # another daemon took the run or a card: this one has to leave it
        self._closing = "the closing record was not written"
        self._out_reason = ""
        self.state = "starting"
        self.info = plan.info

    # -- clocks ------------------------------------------------------------------------------------------

    def elapsed_ms(self, boot_ms: int | None = None) -> int:
        """Elapsed time of the attempt, at most the planned length; 0 before t0."""
        if self.state == "starting":
            return 0
        now_ms = self._clock.boot_ms() if boot_ms is None else boot_ms
        return max(0, min(now_ms - self._boot_at_t0_ms, self._protocol.duration_ms))

    @property
    def boot_at_t0_ms(self) -> int:
        """CLOCK_BOOTTIME at elapsed 0; due times follow from it. Meaningless before t0."""
        return self._boot_at_t0_ms

    @property
    def is_over(self) -> bool:
        """No tick will change anything more: call `finish` with what `outcome` says."""
        return self.state in ("ending", "out")

    @property
    def outcome(self) -> tuple[str, str]:
        """How a run that is over ended, and why: the `end` and `reason` of `finish`."""
        assert self.is_over, self.state
        return ("completed", "") if self.state == "ending" else ("failed", self._out_reason)

    # -- the start ---------------------------------------------------------------------------------------

    def wait_for_cards(self) -> list[str]:
        """Before t0: takes what came in; what is still waited for. Nothing: t0 is set, `tick` may begin.

        Raises:
            CannotRun: a card has no first step within 10 min or its worker failed; no ECC baseline.
        """
        for item in self._telemetry.take():
            self._muster.take_reading(item)
        for event in self._load.take():
            self._muster.take_event(event)
        waiting = self._muster.waiting_for(self._clock.boot_ms())
        if not waiting:
            self._begin()
        return waiting

    def _begin(self) -> None:
        """Sets t0, writes the run and its attempt, and gives the first orders."""
        plan, now_ms, utc_ms = self._plan, self._clock.boot_ms(), self._clock.utc_ms()
        last = plan.before.attempts[-1] if plan.continues and plan.before is not None else None
        start_ms = plan.start_ms
        self._boot_at_t0_ms = now_ms - start_ms
        self.info = self._muster.info_at_t0()
        if plan.continues and plan.before is not None:  # the same t0: its baseline, and what it could read
            self.info = replace(self.info, devices=plan.before.info.devices)
        self._quorum = Quorum(self.info.devices)
        stretches = (*(last.stretches if last is not None else ()), Stretch(start_ms, utc_ms))
        self._attempt = Attempt(
            number=plan.attempt,
            started_utc_ms=last.started_utc_ms if last is not None else utc_ms,
            boot_id=plan.boot_id,
            stretches=stretches,
            elapsed_ms=start_ms,
        )
        start = Start(plan.attempt, self._boot_at_t0_ms, utc_ms - start_ms, start_ms)
        before = plan.before if plan.continues else None
        for device in self.info.devices:
            card = Card(device, self._protocol, stretches, frozenset(self.info.waived))
            earlier = None
            if plan.before is not None:
                earlier = earlier_attempts(plan.before, self._protocol, device, plan.attempt)
            self._cards[device.gpu] = CardState(card, start, before, earlier)
        self.state = "running"
        self._store.write(self.info, self._attempt)
        self._begin_duties(start_ms)
        for happening in (*plan.happened, *self._muster.happened):
            self.note(happening)

    def _begin_duties(self, start_ms: int) -> None:
        protocol = self._protocol
        self._done = {
            "rotate": protocol.rotation_index(start_ms) + 1,
            "check": protocol.n_checks(start_ms),
            "sample": start_ms // protocol.sample_ms,
        }
        self._load.rotate(protocol.shape(self._done["rotate"] - 1))
        self._order_check(self._done["check"] - 1)
        self._written_ms = start_ms

    # -- the loop ----------------------------------------------------------------------------------------

    def wake(self, duty: str) -> None:
        """The scheduler says that a duty is due; it is done in the next tick, once its own time has come."""
        self._woken.add(duty)

    def tick(self) -> None:
        """Folds what came in, does what is due, writes what is new."""
        assert self._attempt is not None
        self._take_all()
        elapsed_ms = self.elapsed_ms()
        self._do_duties(elapsed_ms)
        self._write_rows(elapsed_ms)
        if self.state == "running" and (self._lost or all(c.is_out for c in self._cards.values())):
            self.state, self._out_reason = "out", "no card can work any more"
        if self._plan.stop_on_fail and self.state == "running" and self._has_failed(elapsed_ms):
            self.note(Happening("stopped_on_fail", self._clock.boot_ms()))
            self.state, self._out_reason = "out", "stopped by the first final fail, as asked"

    def _take_all(self) -> None:
        """In the order in which it happened, whatever the order of arrival."""
        for item in sorted((*self._load.take(), *self._telemetry.take()), key=self._place):
            for happening in self._take(item):
                self.note(happening)
        for happening in self._store.take():
            self.note(happening)

    def _place(self, item: LoadEvent | Poll) -> tuple[int, str, str, tuple[int | str, ...]]:
        """When something counts. A poll is judged by what the load did up to a little after it: a heartbeat
        may be late, but one from beyond a standstill says nothing about the time before."""
        patience_ms = 0
        rest: tuple[int | str, ...] = ()
        match item:
            case Poll():
                patience_ms = max(2 * self._protocol.poll_ms, BEAT_WITHIN_MS)
            case Progress():
                rest = (item.rotation, item.n_steps)
            case Checked():
                rest = (item.check.index,)
            case Happening():
                rest = (item.kind, item.detail)
        return item.boot_ms + patience_ms, type(item).__name__, item.gpu or "", rest

    def _take(self, item: LoadEvent | Poll) -> Sequence[Happening]:
        if isinstance(item, Happening):
            return [item]
        card = self._cards.get(item.gpu)
        if card is None:
            return []
        match item:
            case Poll():
                return card.take_poll(item)
            case Progress():
                return [*card.take_progress(item), *self._quorum.take(item)]
            case Checked():
                card.take_check(item.check, item.boot_ms)
                flying = self._in_flight[item.gpu]  # made in order: an earlier one that is still out is lost
                flying.difference_update([index for index in flying if index <= item.check.index])
        return []

    def _do_duties(self, elapsed_ms: int) -> None:
        protocol = self._protocol
        n, due_ms = protocol.n_rotations(elapsed_ms), self._done["rotate"] * protocol.rotate_ms
        if n > self._done["rotate"] and self._is_due("rotate", due_ms, elapsed_ms):
            self._done["rotate"] = n
            self._load.rotate(protocol.shape(n - 1))
        if self._is_due("check", self._done["check"] * protocol.check_ms, elapsed_ms):
            self._done["check"] = protocol.n_checks(elapsed_ms)
            self._order_check(self._done["check"] - 1)
        if self._is_due("sample", (self._done["sample"] + 1) * protocol.sample_ms, elapsed_ms):
            self._done["sample"] = elapsed_ms // protocol.sample_ms
            self._written_ms = elapsed_ms - HEARTBEAT_MS  # everything goes to the store now
        if elapsed_ms >= protocol.duration_ms and self._last_evidence_is_in():
            self.state = "ending"

    def _is_due(self, duty: str, due_ms: int, elapsed_ms: int) -> bool:
        """Due times are monotonic; the wake only says when to look. A wake that is early is kept."""
        if due_ms >= self._protocol.duration_ms and duty != "sample":
            return False
        late_ms = elapsed_ms - due_ms
        if late_ms < 0 or (duty not in self._woken and late_ms <= LATE_MS):
            return False
        if duty not in self._woken:
            self._n_missed[duty] = self._n_missed.get(duty, 0) + 1
            detail = f"{duty} was due at {due_ms / 1000:.1f} s and was not woken for"
            self.note(Happening("scheduler_missed", self._clock.boot_ms(), None, detail))
        self._woken.discard(duty)
        return True

    def _order_check(self, index: int) -> None:
        lacking = [gpu for gpu, card in self._cards.items() if not (card.is_out or card.has_made(index))]
        for gpu in lacking:
            flying = self._in_flight[gpu]
            if flying:
                detail = f"check {index} is due while check {max(flying)} is still at work"
                self.note(Happening("check_late", self._clock.boot_ms(), gpu, detail))
            flying.add(index)
        if lacking:
            self._load.check(index)

    def _last_evidence_is_in(self) -> bool:
        """After the planned length: polls that reach its end, and the last check (waited for up to 60 s)."""
        over_ms = self._clock.boot_ms() - self._boot_at_t0_ms - self._protocol.duration_ms
        working = [card for card in self._cards.values() if not card.is_out]
        polled = all((c.last_poll_ms or 0) >= self._protocol.duration_ms for c in working)
        if not polled and over_ms <= 2 * self._protocol.poll_ms:
            return False
        waiting = any(self._in_flight[card.device.gpu] for card in working)
        return not waiting or over_ms > LAST_CHECK_WITHIN_MS

    def _write_rows(self, elapsed_ms: int) -> None:
        assert self._attempt is not None
        rows: list[Row] = [row for card in self._cards.values() for row in card.rows(elapsed_ms)]
        if rows or elapsed_ms - self._written_ms >= HEARTBEAT_MS:
            self._written_ms = elapsed_ms
            self._attempt = replace(self._attempt, elapsed_ms=elapsed_ms)
            rows += [row for card in self._cards.values() for row in card.open_rows()]
            self._store.write(*rows, self._attempt)

    def _has_failed(self, elapsed_ms: int) -> bool:
        return self._judgement(Standing(elapsed_ms)).verdict is Verdict.FAIL

    def note(self, happening: Happening) -> None:
        """Records that something happened, on the cards it concerns."""
        incident = self._journal.record(happening, self.elapsed_ms(happening.boot_ms))
        if incident is None:
            return
        for gpu, card in self._cards.items():
            if incident.gpu in (gpu, None):
                card.take_incident(incident)
        self._store.write(incident)
        self._lost |= happening.kind == "lease_lost"

    # -- the end -----------------------------------------------------------------------------------------

    def finish(self, end: str, reason: str = "", hurry: Callable[[], bool] = lambda: False) -> Judgement:
        """Stops the load, writes everything and the closing record; the final judgement.

        `end`: completed, interrupted, failed. An interrupted run takes under 5 s, whatever the children do;
        one that ended by itself may take over a minute, unless `hurry` says that somebody wants it stopped.
        """
        within_ms = STOP_WITHIN_MS if end == "interrupted" else END_WITHIN_MS
        if self._attempt is None:  # before t0: nothing was begun, nothing is written
            self._stop_children(within_ms)
            cards = [CardJudgement(device, Verdict.INCONCLUSIVE, ()) for device in self.info.devices]
            return judgement(cards, complete=True)
        if end == "interrupted":
            self.note(Happening("interrupted", self._clock.boot_ms(), None, reason))
        elapsed_ms = self.elapsed_ms()
        for card in self._cards.values():
            card.end(self._clock.boot_ms())
        self._stop_children(within_ms)
        self._take_all()
        rows: list[Row] = []
        for card in self._cards.values():
            rows += card.rows(elapsed_ms, at_end=True) + card.open_rows()
        self._attempt = replace(
            self._attempt, elapsed_ms=elapsed_ms, end=end, reason=reason, ended_utc_ms=self._clock.utc_ms()
        )
        self.state = end
        judged = self._judgement(Standing(elapsed_ms, ended=True, closing=""))
        self._store.write(*rows, *(f for card in judged.cards for f in card.findings))
        self._closing = self._close(self._attempt, within_ms["store"], hurry)
        return judged if self._closing == "" else self._judgement(self._standing())

    def _close(self, attempt: Attempt, within_ms: int, hurry: Callable[[], bool]) -> str:
        """Writes the closing record, in short tries; what is wrong with it, "" where it is complete."""
        for _ in range(within_ms // STOP_WITHIN_MS["store"]):
            closed = self._store.close_attempt(attempt, STOP_WITHIN_MS["store"])
            if closed is not None:
                self._attempt = closed
                return _closing_words(closed)
            if hurry():
                break
        return "the closing record could not be written"

    def _stop_children(self, within_ms: Mapping[str, int]) -> None:
        self._load.stop(within_ms["load"])
        self._telemetry.stop(within_ms["telemetry"])

    def _standing(self) -> Standing:
        if self._attempt is not None and self._attempt.end != "running":
            return Standing(self._attempt.elapsed_ms, ended=True, closing=self._closing)
        return Standing(self.elapsed_ms())

    def _judgement(self, standing: Standing) -> Judgement:
        cards = []
        for card in self._cards.values():
            shot = card.snapshot(standing, 0)
            cards.append(CardJudgement(card.device, shot.verdict, shot.findings))
        return judgement(cards, complete=standing.ended)

    # -- what it looks like ------------------------------------------------------------------------------

    def snapshot(self, message: str = "") -> Snapshot:
        """The run at this instant, for the live view, metrics and pages."""
        standing = self._standing()
        boot_ms, utc_ms = self._clock.boot_ms(), self._clock.utc_ms()
        if self._cards:
            cards = tuple(card.snapshot(standing, utc_ms - boot_ms) for card in self._cards.values())
        else:
            cards = tuple(_not_begun(device) for device in self.info.devices)
        elapsed_ms = standing.elapsed_ms
        running = self.state == "running"
        judged = judgement([CardJudgement(c.device, c.verdict, c.findings) for c in cards], complete=False)
        return Snapshot(
            info=self.info,
            protocol=self._protocol,
            state="running" if self.is_over else self.state,
            verdict=judged.verdict,
            attempt=self._attempt or Attempt(self._plan.attempt, utc_ms, self._plan.boot_id, ()),
            elapsed_ms=elapsed_ms,
            boot_ms=boot_ms,
            utc_ms=utc_ms,
            shape=self._protocol.shape(self._protocol.rotation_index(elapsed_ms)) if running else None,
            cards=cards,
            n_incidents=self._journal.counts,
            incidents=self._journal.recent,
            n_missed=dict(self._n_missed),
            message=message,
        )


def _closing_words(closed: Attempt) -> str:
    if closed.closing is None:
        return "there is no closing record"
    return f"{closed.closing.dropped} rows were dropped" if closed.closing.dropped else ""


def _not_begun(device: Device) -> CardSnapshot:
    return CardSnapshot(device=device, up=True, verdict=Verdict.INCONCLUSIVE, findings=())
