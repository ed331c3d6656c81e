"""What every `core.ports.Telemetry` keeps, over the real implementations and the simulated one.

To add an implementation, add a fixture function to SUBJECTS that yields a `Subject`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from soak.core.incidents import KINDS
from soak.core.ports import Happening, Telemetry
from soak.core.protocol import Limits, Protocol
from soak.core.records import ECC_KINDS, Poll, Quantity, ReadingStatus
from soak.simulate import SimulatedTelemetry, VirtualClock, World, simulated_device
from soak.telemetry.plausible import BOUNDS
from soak.telemetry.watch import Sampler

CAPTURES = Path(__file__).parents[1] / "captures"
POLL_MS, ECC_EVERY_MS = 100, 300


@dataclass
class Subject:
    """A telemetry that polls `gpus` every POLL_MS; `has_ecc`: those of them with error counters."""

    telemetry: Telemetry
    gpus: Sequence[str]
    has_ecc: frozenset[str]
    advance: Callable[[int], None]  # lets so many milliseconds of its time pass


class BootClock:
    def boot_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def utc_ms(self) -> int:
        return time.time_ns() // 1_000_000


@contextmanager
def sampled(backend: str, root: Path) -> Iterator[Subject]:
    sampler = Sampler((backend,), root, clock=BootClock())
    sampler.start()
    devices = sampler.devices()
    sampler.watch([device.gpu for device in devices], POLL_MS, ECC_EVERY_MS)
    has_ecc = frozenset(device.gpu for device in devices if device.ecc.status is ReadingStatus.OK)
    try:
        yield Subject(sampler, [device.gpu for device in devices], has_ecc, lambda ms: time.sleep(ms / 1000))
    finally:
        sampler.stop(2000)


def this_machine(_: Path) -> AbstractContextManager[Subject]:
    return sampled("cpu", Path("/"))


def cpu_of_files(folder: Path) -> AbstractContextManager[Subject]:
    files = {
        "proc/stat": "cpu0 1 0 0 1 0 0 0 0\n",
        "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\n",
        "sys/devices/system/edac/mc/mc0/ce_count": "0\n",
        "sys/devices/system/edac/mc/mc0/ue_count": "0\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return sampled("cpu", folder)


def an_mi50_of_files(_: Path) -> AbstractContextManager[Subject]:
    return sampled("amd", CAPTURES / "amd__instinct-mi50-32gb__by-hand/root")


def an_h200_of_answers(_: Path) -> AbstractContextManager[Subject]:
    return sampled("nvidia", CAPTURES / "nvidia__h200__580.159.04/root")


@contextmanager
def two_that_do_not_exist(_: Path) -> Iterator[Subject]:
    clock = VirtualClock()
    protocol = Protocol(60_000, 20_000, 60_000, 20_000, POLL_MS, 0, 512, 4096, 7, Limits(frozenset()))
    devices = [simulated_device(0, ecc=True), simulated_device(1, ecc=False)]
    telemetry = SimulatedTelemetry(World(clock, protocol, devices, (), seed=7))
    gpus = [device.gpu for device in devices]
    yield Subject(telemetry, gpus, frozenset(gpus[:1]), lambda ms: clock.advance_to(clock.boot_ms() + ms))


SUBJECTS = [this_machine, cpu_of_files, an_mi50_of_files, an_h200_of_answers, two_that_do_not_exist]


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.__name__)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    with request.param(tmp_path) as opened:
        yield opened


def gather(subject: Subject, n_polls: int) -> list[Poll | Happening]:
    """Until every card has so many polls."""
    news: list[Poll | Happening] = []
    for _ in range(100):
        subject.advance(POLL_MS)
        news += subject.telemetry.take()
        polled = [item.gpu for item in news if isinstance(item, Poll) for _ in range(item.n)]
        if all(polled.count(gpu) >= n_polls for gpu in subject.gpus):
            return news
    raise AssertionError(f"{n_polls} polls of {subject.gpus} did not come: {news}")


def test_polls_come_in_order_with_whole_readings(subject: Subject) -> None:
    news = gather(subject, 6)
    polls = [item for item in news if isinstance(item, Poll)]
    assert {poll.gpu for poll in polls} == set(subject.gpus)
    for gpu in subject.gpus:
        stamps = [poll.boot_ms for poll in polls if poll.gpu == gpu]
        assert stamps == sorted(stamps)
        assert len(set(stamps)) == len(stamps)
    for poll in polls:
        assert poll.n >= 1
        assert poll.cost_ms >= 0
        assert Quantity.UTILISATION_PCT in poll.readings
        for quantity, reading in poll.readings.items():
            assert isinstance(quantity, Quantity)
            if reading.status is ReadingStatus.OK:
                assert reading.value is not None
                assert math.isfinite(reading.value)
                assert BOUNDS[quantity][0] <= reading.value <= BOUNDS[quantity][1]
            else:
                assert reading.value is None, "an absence carries no value"
                assert reading.reason, "an absence says why"
    for item in news:
        if isinstance(item, Happening):
            assert item.kind in KINDS


def test_error_counters_come_when_due_and_only_where_there_are_any(subject: Subject) -> None:
    news = gather(subject, 10)
    for gpu in subject.gpus:
        read = [
            poll.ecc for poll in news if isinstance(poll, Poll) and poll.gpu == gpu and poll.ecc is not None
        ]
        if gpu not in subject.has_ecc:
            assert read == []
            continue
        assert 2 <= len(read) <= 10
        assert len({tuple(sorted(counters)) for counters in read}) == 1, "every reading has the same counters"
        for key, reading in read[0].items():
            view, block, kind = key.split("/")
            assert view
            assert block
            assert kind in ECC_KINDS
            assert (reading.value is not None) == (reading.status is ReadingStatus.OK)


def test_taking_never_waits(subject: Subject) -> None:
    begun = time.monotonic()
    for _ in range(20):
        subject.telemetry.take()
    assert time.monotonic() - begun < 0.2


def test_after_the_stop_nothing_comes(subject: Subject) -> None:
    gather(subject, 1)
    begun = time.monotonic()
    subject.telemetry.stop(2000)
    assert time.monotonic() - begun < 2.2
    subject.telemetry.take()
    subject.advance(5 * POLL_MS)
    assert list(subject.telemetry.take()) == []
    subject.telemetry.stop(2000)
