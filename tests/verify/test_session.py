"""Real children: what they say, and what becomes of a case that hangs, crashes or is cut short."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import msgspec
import pytest

from soak.child import Child
from soak.core.errors import ConfigError
from soak.verify import session
from soak.verify.messages import About, Began, Event, Order, Outcome, Over, Result
from soak.verify.session import Patience, Verified, exit_code, stopped, verify

Make = Callable[..., Order]
PATIENT = Patience()


def made(order: Order, patience: Patience = PATIENT, **environment: str) -> tuple[Verified, list[object]]:
    told: list[object] = []
    return verify(order, {**os.environ, **environment}, patience, lambda _, event: told.append(event)), told


def test_a_child_makes_the_cases_that_are_asked_for(order: Make) -> None:
    verified, told = made(order(rounds=("integrity", "gradient"), case="refused"))
    assert verified.exit_code == 0
    assert [result.id for result in verified.results] == ["gradient/other-scale-is-refused"]
    assert [type(event) for event in told] == [About, Began, Result]
    assert verified.about is not None
    assert verified.about.kernel == "torch.flash_attention_cpu"
    assert "torch" in verified.about.versions


def test_a_case_that_hangs_is_killed_and_has_failed_and_the_rest_is_made(order: Make) -> None:
    asked = order(rounds=("gradient",), plant="hang", case="re")  # damage-is-rejected, other-scale-is-refused
    verified, told = made(asked, Patience(case_s=1.0))
    assert verified.exit_code == 1
    outcomes = {result.case: result.outcome for result in verified.results}
    assert outcomes == {"damage-is-rejected": Outcome.FAIL, "other-scale-is-refused": Outcome.OK}
    assert "did not finish within 1 s" in verified.results[0].says
    assert sum(isinstance(event, About) for event in told) == 1


def test_a_crash_is_the_kernel_s_and_restarts_have_an_end(
    order: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "RESTARTS_MOST", 1)
    verified, _ = made(order(rounds=("gradient",), plant="crash"))
    assert verified.exit_code == 1
    assert [result.outcome for result in verified.results] == [Outcome.FAIL] * 2
    assert "signal 11" in verified.results[0].says
    assert "not made after 1 restarts" in verified.refusal


@pytest.mark.parametrize(
    ("number", "outcome"), [(signal.SIGKILL, Outcome.ERROR), (signal.SIGABRT, Outcome.FAIL)]
)
def test_a_kill_from_outside_proves_nothing(order: Make, number: int, outcome: Outcome) -> None:
    child: Child[Event] = Child("soak.verify.worker", (), Event)
    try:
        child.say(msgspec.json.encode(order(rounds=("gradient",), plant="hang")))
        heard, began = child.wait(lambda events: any(isinstance(e, Began) for e in events), 60.0)
        assert began
        os.kill(child.pid, number)
        child.wait(lambda _: False, 30.0)
        (case,) = [event for event in heard if isinstance(event, Began)]
        result = session._cut_short(child, case, 300.0)
    finally:
        child.end()
    assert result.outcome is outcome
    assert f"signal {int(number)}" in result.says


def test_a_name_that_there_is_not_is_bad_usage(order: Make) -> None:
    with pytest.raises(ConfigError, match=r"^The CPU's load has no kernel 'turbo'"):
        made(order(kernel="turbo"))


def test_what_cannot_begin_is_refused(order: Make) -> None:
    verified, _ = made(order(gpu="0000:33:00.0", engine="gpu", dtype="float16", head_dim=128))
    assert verified.about is None
    assert verified.exit_code == 4
    assert verified.refusal


def test_a_child_without_a_parent_ends(order: Make) -> None:
    child: Child[Event] = Child("soak.verify.worker", (), Event)
    child.say(msgspec.json.encode(order(rounds=("gradient",), plant="hang")))
    child.wait(lambda events: any(isinstance(e, Began) for e in events), 60.0)
    assert child._child.stdin is not None
    child._child.stdin.close()
    child.wait(lambda _: False, 30.0)
    assert child.status == 0
    child.end()


@pytest.mark.parametrize(("plant", "code"), [(None, 0), ("write-outside", 1)])
def test_a_kernel_of_triton_by_its_interpreter(order: Make, plant: str | None, code: int) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    asked = order(
        engine="interpreter", dtype="float16", rounds=("boundary",), case="seq-2-d64-causal", plant=plant
    )
    verified, _ = made(asked, TRITON_INTERPRET="1")
    assert verified.exit_code == code, verified
    assert verified.about is not None
    assert "interpreter" in verified.about.reason


def test_what_was_made_until_an_interrupt_comes_back(order: Make) -> None:
    made: list[Result] = []

    def interrupt_the_second(_: Order, event: object) -> None:
        if isinstance(event, Began) and made:
            raise KeyboardInterrupt
        made.extend([event] if isinstance(event, Result) else [])

    verified = verify(order(rounds=("gradient",), case="re"), os.environ, PATIENT, interrupt_the_second)
    assert verified.results == tuple(made)
    assert len(made) == 1
    assert verified.about is not None
    assert verified.refusal == "it was stopped; its rest was not made"
    assert verified.exit_code == 3


def test_the_exit_code_is_that_of_the_worst(order: Make) -> None:
    def came_to(*outcomes: Outcome, refusal: str = "") -> Verified:
        results = tuple(Result("numerics", str(i), o, "", (), 0.0) for i, o in enumerate(outcomes))
        return Verified(order(), None, results, refusal)

    ok, skip, error, fail = Outcome.OK, Outcome.SKIP, Outcome.ERROR, Outcome.FAIL
    assert exit_code([came_to(ok, skip), came_to(ok)]) == 0
    assert exit_code([came_to(ok), came_to(ok, error)]) == 4
    assert exit_code([came_to(ok, error), came_to(ok, fail)]) == 1
    assert exit_code([came_to(ok, refusal="it fell silent")]) == 4
    assert exit_code([came_to(skip)]) == 4  # nothing was shown
    assert exit_code([came_to()]) == 4
    assert exit_code([]) == 4
    assert exit_code([came_to(ok), stopped(order())]) == 3
    assert exit_code([came_to(error), stopped(order())]) == 3
    assert exit_code([came_to(fail), stopped(order())]) == 1


def test_events_cross_with_numbers_that_json_has_not() -> None:
    assert msgspec.json.decode(b'{"type":"over"}', type=Event) == Over()
