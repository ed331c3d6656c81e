"""The contract of `core.ports.Clock`, over the machine's and the simulated one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from soak.clock import SystemClock
from soak.core.ports import Clock
from soak.simulate import VirtualClock


@dataclass
class Subject:
    clock: Clock
    passes: Callable[[int], None]  # lets so many milliseconds pass


def of_the_machine() -> Subject:
    return Subject(SystemClock(), lambda ms: time.sleep(ms / 1_000))


def simulated() -> Subject:
    clock = VirtualClock()
    return Subject(clock, lambda ms: clock.advance_to(clock.boot_ms() + ms))


@pytest.fixture(params=[of_the_machine, simulated], ids=lambda make: make.__name__)
def subject(request: pytest.FixtureRequest) -> Subject:
    made: Subject = request.param()
    return made


def test_times_are_whole_milliseconds(subject: Subject) -> None:
    assert type(subject.clock.boot_ms()) is int
    assert type(subject.clock.utc_ms()) is int
    assert subject.clock.utc_ms() > 1_700_000_000_000  # since 1970, not since boot


def test_boot_time_never_goes_back(subject: Subject) -> None:
    seen = []
    for _ in range(200):
        seen.append(subject.clock.boot_ms())
        subject.passes(0)
    assert seen == sorted(seen)


def test_both_clocks_pass_alike(subject: Subject) -> None:
    boot_ms, utc_ms = subject.clock.boot_ms(), subject.clock.utc_ms()
    subject.passes(120)
    assert 119 <= subject.clock.boot_ms() - boot_ms < 5_000
    assert abs((subject.clock.utc_ms() - utc_ms) - (subject.clock.boot_ms() - boot_ms)) < 1_000


def test_the_machine_has_a_clock_that_stands_still_in_a_suspend() -> None:
    clock = SystemClock()
    asleep_ms = clock.boot_ms() - clock.awake_ms()
    assert asleep_ms >= -1
    time.sleep(0.05)
    assert abs(clock.boot_ms() - clock.awake_ms() - asleep_ms) < 1_000


def test_a_simulated_wall_clock_can_be_set_and_moves_nothing_else() -> None:
    clock = VirtualClock(boot_ms=1_000, utc_ms=50_000)
    clock.set_wall(-7_000)
    assert (clock.boot_ms(), clock.utc_ms()) == (1_000, 43_000)
    clock.advance_to(3_000)
    assert (clock.boot_ms(), clock.utc_ms()) == (3_000, 45_000)
    with pytest.raises(AssertionError):
        clock.advance_to(2_999)
