"""Whose doing a silence is."""

from __future__ import annotations

import pytest

from soak.core.ports import Progress
from soak.load.process import ProcessLook
from soak.load.watch import Patience, Watch

PATIENCE = Patience()


def ready(step_ms: float = 1.0, n_lanes: int = 2) -> Watch:
    watch = Watch(PATIENCE, now_ms=0)
    watch.ready(0, n_lanes, step_ms)
    return watch


def kinds(watch: Watch, looks: list[tuple[int, ProcessLook]]) -> list[tuple[int, str]]:
    found = [(at_ms // 1000, watch.look(at_ms, look)) for at_ms, look in looks]
    return [(at_s, doubt.kind) for at_s, doubt in found if doubt is not None]


def seconds(n: int, state: str, cpu_ms_per_s: int, n_runnable: int) -> list[tuple[int, ProcessLook]]:
    return [(s * 1000, ProcessLook(state, s * cpu_ms_per_s, n_runnable)) for s in range(1, n + 1)]


def test_asleep_without_a_step_is_no_progress() -> None:
    assert kinds(ready(), seconds(70, "S", 0, 0)) == [(61, "no_progress")]


def test_busy_without_a_step_is_no_progress() -> None:
    assert kinds(ready(), seconds(70, "R", 2000, 2)) == [(61, "no_progress")]


def test_a_long_step_has_ten_times_as_long() -> None:
    assert kinds(ready(step_ms=12_000), seconds(130, "S", 0, 0)) == [(121, "no_progress")]


def test_steps_keep_it_quiet() -> None:
    watch = ready()
    for at_ms, look in seconds(300, "S", 0, 0):
        watch.progress(Progress("cpu", at_ms, 0, 1, 1, at_ms - at_ms % 50_000, 1.0))
        assert watch.look(at_ms, look) is None


def test_beats_without_steps_do_not_keep_it_quiet() -> None:
    watch = ready()
    found = []
    for at_ms, look in seconds(70, "S", 0, 0):
        watch.progress(Progress("cpu", at_ms, 0, 1, 1, 0, 1.0))
        found.append(watch.look(at_ms, look))
    assert [doubt.kind for doubt in found if doubt] == ["no_progress"]


def test_a_thread_that_happens_to_run_at_a_look_is_not_a_starved_host() -> None:
    looks = [(s * 1000, ProcessLook("S", s, int(s % 4 == 0))) for s in range(1, 100)]
    assert kinds(ready(), looks) == [(81, "no_progress")]


def test_runnable_without_processor_time_is_a_starved_host() -> None:
    assert kinds(ready(), seconds(300, "R", 10, 2)) == [(61, "host_starved")]


def test_starved_threads_beside_a_main_thread_asleep() -> None:
    assert kinds(ready(), seconds(300, "S", 10, 2)) == [(61, "host_starved")]


def test_stopped_is_told_at_once_and_is_neither_starved_nor_hung() -> None:
    assert kinds(ready(), seconds(300, "T", 0, 0)) == [(1, "worker_stopped")]


def test_a_parent_that_did_not_run_blames_nobody_if_steps_came() -> None:
    watch = ready()
    assert kinds(watch, seconds(3, "S", 0, 0)) == []
    assert watch.look(900_000, ProcessLook("S", 0, 0)) is None  # the first look after fifteen minutes
    watch.progress(Progress("cpu", 900_500, 0, 1, 1, 899_990, 1.0))
    assert watch.look(901_000, ProcessLook("S", 0, 0)) is None


def test_a_parent_that_did_not_run_is_a_starved_host_if_no_step_came() -> None:
    watch = ready()
    late = [(s * 1000, ProcessLook("S", 0, 0)) for s in (1, 100, 101, 102, 200, 201)]
    assert kinds(watch, late) == [(101, "host_starved")]


def test_a_step_after_starving_begins_anew() -> None:
    watch = ready()
    looks = seconds(100, "R", 10, 2)
    assert kinds(watch, looks) == [(61, "host_starved")]
    watch.progress(Progress("cpu", 100_000, 0, 1, 1, 100_000, 1.0))
    assert watch.look(101_000, ProcessLook("R", 1010, 2)) is None


def test_time_before_the_last_step_does_not_count() -> None:
    watch = ready(step_ms=1.0)
    for at_ms in range(4_000, 400_000, 4_000):
        watch.progress(Progress("cpu", at_ms, 0, 1, 1, at_ms - 1, 1.0))
        assert watch.look(at_ms, ProcessLook("S", 0, 0)) is None
    doubt = [watch.look(at_ms, ProcessLook("S", 0, 0)) for at_ms in range(400_000, 470_000, 4_000)]
    assert [d.data["silence_ms"] > 60_000 for d in doubt if d] == [True]


def test_a_restarted_worker_has_ten_minutes_to_become_ready() -> None:
    watch = Watch(PATIENCE, now_ms=0)
    assert kinds(watch, seconds(605, "S", 0, 0)) == [(601, "no_progress")]


def test_the_evidence_is_told() -> None:
    watch = ready()
    watch.in_step_since_ms = 500
    doubts = [watch.look(at_ms, look) for at_ms, look in seconds(61, "D", 0, 0)]
    assert doubts[-1] is not None
    assert doubts[-1].data == {
        "silence_ms": 61_000, "could_run_ms": 61_000, "deadline_ms": 60_000, "state": "D",
        "threads_runnable": 0, "cpu_ms": 0, "in_step_ms": 60_500,
    }  # fmt: skip


@pytest.mark.parametrize(("now_ms", "due"), [(999, False), (1000, True)])
def test_looks_are_a_second_apart(now_ms: int, due: bool) -> None:
    assert ready().due(now_ms) is due
