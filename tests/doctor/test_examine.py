"""Real children: what they say, and what becomes of it where they are silent, crash or are out of reach."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from soak.child import Child
from soak.core.ports import Happening
from soak.core.records import Poll, Quantity, Reading
from soak.doctor import events
from soak.doctor.examine import Patience, _has_libraries, _made_ready, _paired, means
from soak.doctor.facts import Stack

Q = Quantity
IMPORT_S = 90.0


@contextmanager
def workout(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[Child[events.Event]]:
    child: Child[events.Event] = Child(
        "soak.doctor.workout",
        arguments,
        events.Event,
        None if environment is None else os.environ | environment,
    )
    try:
        yield child
    finally:
        child.end()


class Sensors:
    """Polls of `cpu` and of another card, as they would come: busy from a given moment on."""

    def __init__(self) -> None:
        self._until_ms = boot_ms()

    def take(self) -> list[Poll | Happening]:
        begun_ms, self._until_ms = self._until_ms, boot_ms()
        return [
            Poll(gpu, at_ms, {Q.UTILISATION_PCT: Reading.ok(1.0), Q.POWER_W: Reading.unreadable("EIO")})
            for at_ms in range(begun_ms, self._until_ms, 100)
            for gpu in ("cpu", "0000:33:00.0")
        ]

    def stop(self, deadline_ms: int) -> None:
        raise AssertionError(f"the doctor's caller stops telemetry, not examine (in {deadline_ms} ms)")


def boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def test_a_load_of_the_cpu_and_what_the_sensors_said_meanwhile():
    with workout("cpu", "cpu", "x86_64", "64", "float32") as child:
        said, held = child.wait(_has_libraries, IMPORT_S)
        assert held, said
        child.say(b"card")
        stack = _made_ready(child, 60.0)
        assert (stack.fault, stack.stage) == ("", "")
        assert stack.torch is not None
        pairing, stack = _paired(child, Sensors(), Patience(rest_s=0.3), stack)
    assert pairing.fault == ""
    assert pairing.n_steps > 0
    assert 3000 <= pairing.load_ms < 10_000
    assert pairing.rest["cpu"] == pairing.loaded["0000:33:00.0"] == {Q.UTILISATION_PCT: 1.0}


def test_a_card_that_the_runtime_does_not_offer():
    """Here the runtime offers none; Triton compiles for the card all the same."""
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    with workout("gpu", "0000:33:00.0", "sm_90", "128", "float16", environment=hidden) as child:
        said, held = child.wait(_has_libraries, IMPORT_S)
        assert held, said
        child.say(b"card")
        stack = _made_ready(child, 120.0)
    assert stack.stage == "card"
    assert "no GPU" in stack.fault
    assert stack.triton is not None
    assert stack.offline == "Triton compiles for sm_90 (forward-d64-full-float16)"


def test_an_environment_without_triton(tmp_path):
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton/__init__.py").write_text("raise ImportError('no triton here')\n")
    with workout("gpu", "", "", "0", "", environment={"PYTHONPATH": str(tmp_path)}) as child:
        said, held = child.wait(_has_libraries, IMPORT_S)
    assert held
    assert said[-1] == events.Stopped("triton", "ImportError: no triton here")


@pytest.fixture
def stand_in(tmp_path):
    """A torch of one line in the place of the real one: an import that does what the line does."""

    def write(line: str) -> dict[str, str]:
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch/__init__.py").write_text(f"import os, signal, time\n{line}\n")
        return {"PYTHONPATH": str(tmp_path)}

    return write


def test_a_torch_that_crashes(stand_in):
    with workout(
        "cpu", "cpu", "", "64", "float32", environment=stand_in("os.kill(os.getpid(), 11)")
    ) as child:
        assert not child.wait(_has_libraries, 30.0)[1]
        stack = _made_ready(child, 1.0)
    assert stack == Stack(stage="torch", fault="died by signal 11")


def test_a_torch_that_never_comes(stand_in):
    with workout("cpu", "cpu", "", "64", "float32", environment=stand_in("time.sleep(600)")) as child:
        stack = _made_ready(child, 2.0)
        begun_s = time.monotonic()
    assert stack == Stack(stage="torch", fault="no answer in 2 s")
    assert time.monotonic() - begun_s < 3.0
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_a_child_whose_parent_lets_go_ends(stand_in):
    torch = "__version__ = '0'\nclass version:\n    cuda = hip = None"
    with workout("cpu", "cpu", "", "64", "float32", environment=stand_in(torch)) as child:
        assert child.wait(_has_libraries, 20.0)[0][-1] == events.Imported()
        assert child._child.stdin is not None
        child._child.stdin.close()
        assert child._child.wait(10.0) == 0


def test_a_child_that_is_killed_meanwhile():
    child: Child[events.Event] = Child("http.server", ("0",), events.Event)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(lambda said: said, 10.0) == ([], False)
    assert child.why_silent(10.0).startswith("died by signal 9")
    child.end()


def test_means_leave_out_what_gave_no_value():
    polls = [
        Poll("a", 0, {Q.UTILISATION_PCT: Reading.ok(10.0), Q.POWER_W: Reading.unsupported("none")}),
        Poll("a", 1, {Q.UTILISATION_PCT: Reading.ok(30.0), Q.POWER_W: Reading.unreadable("EIO")}),
    ]
    assert means(polls) == {"a": {Q.UTILISATION_PCT: 20.0}}
