"""The parent's side of a verification: a child a subject, a deadline a case, and what a child's end means."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from soak.child import Child
from soak.core.errors import EXIT_CANNOT_RUN, EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, ConfigError
from soak.verify.messages import About, Began, Event, Order, Outcome, Over, Result, Stopped

RESTARTS_MOST = 3  # of a subject's child, after a case that hung, crashed or lost the card
_OWN_SIGNALS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)

Tell = Callable[[Order, About | Began | Result], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. `ready_s`: until the subject is there, with torch from a cold disk and the trial of a kernel
    before it is chosen."""

    ready_s: float = 600.0
    case_s: float = 300.0  # compiling the kernels of a shape included


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of one subject. `about`: None where it could not even begin; `refusal`: why, or why its rest
    was not made; "" where all was made. `is_stopped`: because a person, or the system, wanted its end."""

    order: Order
    about: About | None
    results: tuple[Result, ...]
    refusal: str = ""
    is_stopped: bool = False

    @property
    def exit_code(self) -> int:
        """1: a check failed; 3: stopped; 4: something could not be made, or nothing was; 0: all passed."""
        outcomes = [result.outcome for result in self.results]
        if Outcome.FAIL in outcomes:
            return EXIT_FAIL
        if self.is_stopped:
            return EXIT_INCONCLUSIVE
        made = Outcome.OK in outcomes and Outcome.ERROR not in outcomes
        return EXIT_PASS if made and not self.refusal else EXIT_CANNOT_RUN


def exit_code(verified: Sequence[Verified]) -> int:
    """Of all subjects: 1 where one failed; 3 where one was stopped; 4 where one was not verified; else 0."""
    codes = {each.exit_code for each in verified}
    for code in (EXIT_FAIL, EXIT_INCONCLUSIVE):
        if code in codes:
            return code
    return EXIT_PASS if codes == {EXIT_PASS} else EXIT_CANNOT_RUN


def verify(order: Order, environment: Mapping[str, str], patience: Patience, tell: Tell) -> Verified:
    """Makes the order's cases; `tell` hears of each as it comes. ConfigError for a name that there is not.

    A KeyboardInterrupt ends it: what was made until then comes back, `is_stopped`.
    """
    heard: list[About | Began | Result] = []

    def hear(order: Order, event: About | Began | Result) -> None:
        heard.append(event)
        tell(order, event)

    try:
        return _until_over(order, environment, patience, hear)
    except KeyboardInterrupt:
        return stopped(order, heard)


def stopped(order: Order, heard: Sequence[About | Began | Result] = ()) -> Verified:
    """A subject that was stopped after these events, or before it was begun."""
    about = next((event for event in heard if isinstance(event, About)), None)
    results = tuple(event for event in heard if isinstance(event, Result))
    says = "it was stopped; its rest was not made" if results else "it was stopped; no check was made"
    return Verified(order, about, results, says, is_stopped=True)


def _until_over(order: Order, environment: Mapping[str, str], patience: Patience, tell: Tell) -> Verified:
    """Until every case is made, or no further child would change anything."""
    so_far = Verified(order, None, ())
    for _ in range(1 + RESTARTS_MOST):
        done = tuple(result.id for result in so_far.results)
        heard = _one_child(msgspec.structs.replace(order, done=done), environment, patience, tell)
        about = so_far.about or heard.about
        so_far = Verified(order, about, so_far.results + heard.results, heard.refusal)
        if not heard.refusal or heard.about is None:
            return so_far
    return replace(so_far, refusal=f"{so_far.refusal}; its rest was not made after {RESTARTS_MOST} restarts")


def _one_child(order: Order, environment: Mapping[str, str], patience: Patience, tell: Tell) -> Verified:
    """Until the child is through, or ends otherwise: the case that it was in is then judged by how."""
    child: Child[Event] = Child("soak.verify.worker", (), Event, environment)
    try:
        child.say(msgspec.json.encode(order))
        return _listen(child, order, patience, tell)
    finally:
        child.end()


def _listen(child: Child[Event], order: Order, patience: Patience, tell: Tell) -> Verified:
    about: About | None = None
    began: Began | None = None
    results: list[Result] = []
    n_heard, deadline_s = 0, patience.ready_s
    while True:
        heard, came = child.wait(partial(_has_more_than, n_heard), deadline_s)
        if not came:
            break
        for event in heard[n_heard:]:
            match event:
                case About():
                    about, deadline_s = event, patience.case_s
                    if not order.done:
                        tell(order, event)
                case Began():
                    began = event
                    tell(order, event)
                case Result():
                    began = None
                    results.append(event)
                    tell(order, event)
                case Over():
                    return Verified(order, about, tuple(results))
                case Stopped("usage", sentence):
                    raise ConfigError(f"{sentence[:1].upper()}{sentence[1:]}.")
                case Stopped(_, sentence):
                    return Verified(order, about, tuple(results), sentence)
        n_heard = len(heard)
    if began is not None:
        results.append(_cut_short(child, began, deadline_s))
        tell(order, results[-1])
        return Verified(order, about, tuple(results), results[-1].says)
    return Verified(order, about, tuple(results), child.why_silent(deadline_s))


def _has_more_than(n_heard: int, events: Sequence[Event]) -> bool:
    return len(events) > n_heard


def _cut_short(child: Child[Event], began: Began, deadline_s: float) -> Result:
    """A hang and a crash are the subject's own; a kill from outside, an end without a word show nothing."""
    status = child.status
    if status is None:
        says = f"it did not finish within {deadline_s:.0f} s and was killed"
        return Result(began.round, began.case, Outcome.FAIL, says, (), deadline_s)
    own = -status in _OWN_SIGNALS
    says = child.why_silent(deadline_s)
    return Result(began.round, began.case, Outcome.FAIL if own else Outcome.ERROR, says, (), 0.0)
