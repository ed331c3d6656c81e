"""What every `core.ports.Load` keeps, over the real pool with a CPU worker and the simulated load.

To add an implementation, add a function to SUBJECTS that yields a `Subject`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

import pytest

from soak.core.incidents import KINDS
from soak.core.ports import Checked, Happening, Load, LoadEvent, Progress, Ready
from soak.core.protocol import Limits, Protocol
from soak.core.records import Device
from soak.load.pool import Pool
from soak.simulate.world import SimulatedLoad, VirtualClock, World, simulated_device

PROTOCOL = Protocol(
    duration_ms=60_000, rotate_ms=10_000, check_ms=30_000, sample_ms=10_000, poll_ms=1_000, warmup_ms=0,
    seq_len_min=16, seq_len_max=64, seed=11, limits=Limits(frozenset()), heads=2, head_dim=32,
    dtype="float32", compare_every=1, work_rate_rule=False,
)  # fmt: skip
PATIENCE_S = 30.0


@dataclass
class Subject:
    """A load at work on `gpus`; what it said so far is in `events`."""

    load: Load
    gpus: Sequence[str]
    advance: Callable[[int], None]  # lets so many milliseconds of its time pass
    is_real: bool = True  # processes that end; virtual time leaves nothing to end
    events: list[LoadEvent] = field(default_factory=list)

    def until(self, wanted: Callable[[LoadEvent], bool]) -> LoadEvent:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            came = list(self.load.take())
            self.events += came
            for event in came:
                if wanted(event):
                    return event
            self.advance(50)
        raise AssertionError(f"nothing wanted; came: {self.events[-20:]}")


class BootClock:
    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def utc_ms(self) -> int:
        return time.time_ns() // 1_000_000


@contextmanager
def cpu_worker() -> Iterator[Subject]:
    pool = Pool([Device("cpu", "cpu")], PROTOCOL, BootClock())
    pool.start()
    try:
        yield Subject(pool, ["cpu"], lambda ms: time.sleep(ms / 1000))
    finally:
        pool.stop(3_000)


@contextmanager
def simulated() -> Iterator[Subject]:
    clock = VirtualClock()
    devices = [simulated_device(index, ecc=True) for index in range(2)]
    load = SimulatedLoad(World(clock, replace(PROTOCOL, compare_every=10), devices, (), seed=1))
    yield Subject(
        load, [d.gpu for d in devices], lambda ms: clock.advance_to(clock.boot_ms() + ms), is_real=False
    )


SUBJECTS: Sequence[Callable[[], AbstractContextManager[Subject]]] = (cpu_worker, simulated)


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda subject: subject.__name__)
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with request.param() as made:
        made.until(lambda _: {e.gpu for e in made.events if isinstance(e, Ready)} == set(made.gpus))
        made.load.rotate(PROTOCOL.shape(0))  # as a run does at t0: the rotation that is at work already
        yield made


def test_ready_comes_before_progress_and_says_what_runs(subject: Subject) -> None:
    for gpu in subject.gpus:
        first = next(event for event in subject.events if event.gpu == gpu)
        assert isinstance(first, Ready)
        assert first.kernel
        assert first.kernel_reason
        assert first.step_ms > 0


def test_taking_never_blocks(subject: Subject) -> None:
    for _ in range(20):
        began = time.monotonic()
        subject.events += subject.load.take()
        assert time.monotonic() - began < 0.2


def test_progress_grows_and_names_a_golden_digest(subject: Subject) -> None:
    for gpu in subject.gpus:
        first = subject.until(lambda e, g=gpu: isinstance(e, Progress) and e.gpu == g and e.n_steps > 0)
        later = subject.until(lambda e, g=gpu: isinstance(e, Progress) and e.gpu == g and e.n_compared > 0)
        assert isinstance(first, Progress)
        assert isinstance(later, Progress)
        assert later.n_steps >= first.n_steps
        assert later.flops >= first.flops > 0
        assert later.golden
        assert later.n_compared <= later.n_due
        assert later.mismatches == 0
        assert later.last_step_boot_ms is not None
        assert later.last_step_boot_ms <= later.boot_ms


def test_a_rotation_begins_anew(subject: Subject) -> None:
    subject.load.rotate(PROTOCOL.shape(1))
    for gpu in subject.gpus:
        event = subject.until(
            lambda e, g=gpu: isinstance(e, Progress) and e.gpu == g and e.rotation == 1 and bool(e.golden)
        )
        assert isinstance(event, Progress)
        before = [e for e in subject.events if isinstance(e, Progress) and e.gpu == gpu and e.rotation == 0]
        assert before
        assert event.golden != before[-1].golden


def test_a_check_comes_with_every_tensor(subject: Subject) -> None:
    subject.load.check(4)

    def made() -> list[Checked]:
        return [event for event in subject.events if isinstance(event, Checked)]

    subject.until(lambda _: len(made()) == len(subject.gpus))
    assert {event.gpu for event in made()} == set(subject.gpus)
    for event in made():
        assert event.check.index == 4
        assert event.check.gpu == event.gpu
        assert event.check.slices
        assert {error.tensor for error in event.check.errors} == {"o", "dq", "dk", "dv"}
        assert all(error.n_elements > 0 for error in event.check.errors)


def test_what_happens_has_a_kind_that_exists(subject: Subject) -> None:
    assert all(event.kind in KINDS for event in subject.events if isinstance(event, Happening))
    assert not [event for event in subject.events if isinstance(event, Happening)]


def test_stop_keeps_its_deadline_and_then_nothing_comes(subject: Subject) -> None:
    """Last: the subject is gone after it."""
    began = time.monotonic()
    subject.load.stop(2_000)
    assert time.monotonic() - began < 2.2
    subject.load.take()
    subject.advance(200)
    if subject.is_real:
        assert list(subject.load.take()) == []
