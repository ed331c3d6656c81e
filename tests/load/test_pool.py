"""The parent of the workers, with real processes and real signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soak.core.incidents import KINDS
from soak.core.ports import Checked, Happening, Progress, Ready
from soak.core.protocol import Protocol
from soak.load.watch import Patience

QUICK = Patience(progress_ms=300, progress_steps=1, look_every_ms=50, term_ms=200, kill_ms=2_000)


def is_ready(event: Any) -> bool:
    return isinstance(event, Ready)


def is_kind(kind: str) -> Callable[[Any], bool]:
    return lambda event: isinstance(event, Happening) and event.kind == kind


def steps(event: Any) -> bool:
    return isinstance(event, Progress) and event.n_steps > 2


@pytest.mark.slow
def test_a_whole_life_with_every_death(watched: Callable[..., Any], protocol: Protocol) -> None:
    """A15: signal, iteration and seq_len are told; a restart goes on with the current rotation, its sums
    kept."""
    one = watched()
    one.until(is_ready)
    one.pool.rotate(protocol.shape(1))
    one.until(lambda event: steps(event) and event.rotation == 1)
    for number, kind in (
        (signal.SIGSEGV, "worker_crashed"),
        (signal.SIGKILL, "worker_killed"),
        (signal.SIGTERM, "worker_killed"),
        (signal.SIGABRT, "worker_crashed"),
    ):
        before = one.until(steps)
        one.pool.check(number)
        os.kill(one.pool.pids["cpu"], number)
        death = one.until(is_kind(kind))
        assert signal.Signals(number).name in death.detail
        assert (death.gpu, death.data["rotation"]) == ("cpu", 1)
        assert death.data["n_steps"] >= before.n_steps
        assert death.data["seq_len"] == protocol.shape(1).seq_len
        if number != signal.SIGABRT:
            one.until(is_ready)
            again = one.until(lambda event: isinstance(event, Progress))
            assert again.rotation == 1
            assert again.n_steps > before.n_steps
            assert again.golden == before.golden
            one.until(lambda event: isinstance(event, Checked))  # the check that its death cut short
    assert one.kinds().count("worker_restarted") == 3
    assert one.kinds()[-1] == "restarts_exhausted"
    assert one.pool.alive == ()


def test_a_stopped_worker_is_told_and_goes_on(watched: Callable[..., Any]) -> None:
    one = watched(mode="well", patience=Patience(progress_ms=3_000, look_every_ms=50))
    one.until(steps)
    os.kill(one.pool.pids["cpu"], signal.SIGSTOP)
    one.until(is_kind("worker_stopped"))
    time.sleep(0.5)
    assert list(one.pool.take()) == []  # neither hung nor starved, and told once
    os.kill(one.pool.pids["cpu"], signal.SIGCONT)
    one.until(steps)
    assert one.kinds() == ["worker_stopped"]


def test_a_worker_without_a_step_is_ended_and_restarted_three_times(watched: Callable[..., Any]) -> None:
    one = watched(mode="hang", patience=QUICK)
    one.until(is_kind("restarts_exhausted"))
    assert one.kinds() == ["no_progress", "worker_restarted"] * 3 + ["no_progress", "restarts_exhausted"]
    assert one.pool.alive == ()
    evidence = next(event for event in one.events if is_kind("no_progress")(event)).data
    assert evidence["silence_ms"] > evidence["deadline_ms"] == 300


def test_a_worker_that_ignores_term_is_killed(watched: Callable[..., Any]) -> None:
    one = watched(mode="stubborn", patience=QUICK)
    one.until(is_ready)
    pid = one.pool.pids["cpu"]
    one.until(is_kind("worker_restarted"))
    assert one.pool.pids["cpu"] != pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("mode", "kind", "says"),
    [
        ("abort", "worker_crashed", "SIGABRT"),
        ("exit", "worker_error", "exit code 1; its last words: ValueError: a reason"),
        ("babble", "worker_error", "no message"),
        ("error", "out_of_device_memory", "no memory left"),
    ],
)
def test_every_end_has_its_kind_and_reason(
    watched: Callable[..., Any], mode: str, kind: str, says: str
) -> None:
    one = watched(mode=mode)
    assert says in one.until(is_kind(kind)).detail
    one.until(is_kind("worker_restarted"))
    assert one.kinds()[:2] == [kind, "worker_restarted"]
    assert set(one.kinds()) <= set(KINDS)


def test_killed_for_memory_is_told_apart(watched: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "vmstat").write_text("oom_kill 4\n")
    one = watched(mode="well", root=tmp_path)
    one.until(steps)
    (tmp_path / "proc" / "vmstat").write_text("oom_kill 5\n")
    os.kill(one.pool.pids["cpu"], signal.SIGKILL)
    one.until(is_kind("worker_out_of_memory"))


def test_a_worker_that_never_was_ready_is_not_restarted(watched: Callable[..., Any]) -> None:
    one = watched(mode="unready")
    one.until(is_kind("worker_error"))
    assert one.pool.alive == ()
    assert one.kinds() == ["worker_error"]


def test_one_death_leaves_the_others_alone(watched: Callable[..., Any]) -> None:
    one = watched("0000:01:00.0", "0000:02:00.0", mode="well", patience=Patience(restarts=0))
    one.until(lambda event: steps(event) and event.gpu == "0000:01:00.0")
    one.until(lambda event: steps(event) and event.gpu == "0000:02:00.0")
    os.kill(one.pool.pids["0000:01:00.0"], signal.SIGSEGV)
    assert one.until(is_kind("restarts_exhausted")).gpu == "0000:01:00.0"
    assert one.pool.alive == ("0000:02:00.0",)
    one.until(lambda event: steps(event) and event.gpu == "0000:02:00.0")


def test_another_golden_digest_after_a_restart_is_a_mismatch(watched: Callable[..., Any]) -> None:
    one = watched(mode="other-golden")
    one.until(steps)
    os.kill(one.pool.pids["cpu"], signal.SIGKILL)
    assert "the golden digest after a restart is" in one.until(is_kind("mismatch")).detail
    one.until(steps)
    assert one.kinds().count("mismatch") == 1


def test_stop_ends_a_stopped_and_a_stubborn_worker_in_time(watched: Callable[..., Any]) -> None:
    one = watched("a", "b", mode="stubborn")
    one.until(lambda event: steps(event) and event.gpu == "a")
    one.until(lambda event: steps(event) and event.gpu == "b")
    pids = dict(one.pool.pids)
    os.kill(pids["b"], signal.SIGSTOP)
    began = time.monotonic()
    one.pool.stop(1_500)
    assert time.monotonic() - began < 1.6
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert [event for event in one.pool.take() if isinstance(event, Happening)] == []  # it was wanted


def test_a_parent_that_is_away_finds_all_beats_of_its_workers(watched: Callable[..., Any]) -> None:
    one = watched(mode="well", patience=Patience(parent_gap_ms=500, look_every_ms=50, progress_ms=1_500))
    one.until(steps)
    time.sleep(2.0)
    one.until(steps)
    time.sleep(0.2)
    one.until(steps)
    assert one.kinds() == []
