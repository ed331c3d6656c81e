"""One card's cadence: what a slow, failing, vanishing or flapping card makes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest

from soak.core.ports import Happening
from soak.core.records import Device, Poll, Quantity, Reading, ReadingStatus
from soak.telemetry.beat import Beat, boot_ms
from soak.telemetry.sensors import CardGone, Unavailable

UTILISATION = Quantity.UTILISATION_PCT
GOOD = {UTILISATION: Reading.ok(97.0), Quantity.POWER_W: Reading.unsupported("no sensor")}


class Scripted:
    """A card whose reads are these actions in turn, the last one for ever."""

    def __init__(self, *reads: Callable[[], Mapping[Quantity, Reading]]) -> None:
        self.reads = list(reads)
        self.n_ecc = 0

    def describe(self) -> Device:
        return Device("card", "amd")

    def read(self) -> Mapping[Quantity, Reading]:
        return (self.reads.pop(0) if len(self.reads) > 1 else self.reads[0])()

    def read_ecc(self) -> Mapping[str, Reading]:
        self.n_ecc += 1
        return {"ras/umc/corrected": Reading.ok(0.0)}


def good() -> Mapping[Quantity, Reading]:
    return GOOD


def raising(error: Exception) -> Callable[[], Mapping[Quantity, Reading]]:
    def read() -> Mapping[Quantity, Reading]:
        raise error

    return read


def bad(reason: str) -> Callable[[], Mapping[Quantity, Reading]]:
    return lambda: {UTILISATION: Reading.unreadable(reason)}


@pytest.fixture
def beaten():
    """Runs a card until it told so many polls; what it told."""

    def run(
        card: Scripted, n_polls: int, poll_ms: int = 50, ecc_every_ms: int = 10_000
    ) -> list[Poll | Happening]:
        told: list[Poll | Happening] = []
        enough = threading.Event()

        def tell(news: Poll | Happening) -> None:
            if enough.is_set():
                threading.Event().wait()  # parks the thread of a beat that nobody needs any more
            told.append(news)
            if sum(isinstance(item, Poll) for item in told) == n_polls:
                enough.set()

        Beat("card", lambda: card, tell, poll_ms, ecc_every_ms).start()
        assert enough.wait(10)
        return told

    return run


def polls(told: list[Poll | Happening]) -> list[Poll]:
    return [item for item in told if isinstance(item, Poll)]


def happenings(told: list[Poll | Happening]) -> list[Happening]:
    return [item for item in told if isinstance(item, Happening)]


def test_missed_beats_are_skipped_and_the_grid_is_kept(beaten):
    def slow() -> Mapping[Quantity, Reading]:
        time.sleep(0.25)
        return GOOD

    begun_ms = boot_ms()
    stamps = [poll.boot_ms for poll in polls(beaten(Scripted(good, slow, good), 6, poll_ms=100))]
    assert stamps[0] >= begun_ms + 100
    assert stamps[1] - stamps[0] >= 240  # begun at its beat, done a quarter of a second later
    assert all(later - earlier >= 30 for earlier, later in pairwise(stamps)), "missed beats were made up for"
    assert (stamps[-1] - stamps[0]) % 100 <= 30 or (stamps[-1] - stamps[0]) % 100 >= 70


def test_error_counters_are_read_when_due(beaten):
    card = Scripted(good)
    told = polls(beaten(card, 9, poll_ms=50, ecc_every_ms=200))
    with_ecc = [index for index, poll in enumerate(told) if poll.ecc is not None]
    assert with_ecc[0] == 0
    assert 2 <= len(with_ecc) <= 4


def test_a_value_that_stops_coming_is_said_once_and_its_reason_kept(beaten):
    reset = bad("gpu_busy_percent: EPERM: reset or suspend suspected")
    told = beaten(Scripted(good, reset, reset, good, reset, good), 8)
    (error,) = happenings(told)
    assert (error.kind, error.gpu) == ("sensor_error", "card")
    assert error.detail == "utilisation_pct: gpu_busy_percent: EPERM: reset or suspend suspected"
    assert error.data == {"quantity": "utilisation_pct"}
    values = [poll.readings[UTILISATION].value for poll in polls(told)]
    assert values == [97.0, None, None, 97.0, None, 97.0, 97.0, 97.0]


def test_an_error_counter_that_stops_coming_is_said_once(beaten):
    """A driver that resets its card answers with a sentence, and counts from 0 afterwards."""

    class Resetting(Scripted):
        def read_ecc(self) -> Mapping[str, Reading]:
            self.n_ecc += 1
            hidden = Reading.unreadable("umc_err_count says 'Query currently inaccessible': reset suspected")
            return {"ras/umc/corrected": hidden if self.n_ecc in (3, 4, 6) else Reading.ok(0.0)}

    (error,) = happenings(beaten(Resetting(good), 8, poll_ms=50, ecc_every_ms=50))
    assert (error.kind, error.data) == ("sensor_error", {"quantity": "ecc ras/umc/corrected"})
    assert error.detail.endswith("'Query currently inaccessible': reset suspected")


def test_a_card_is_lost_each_time_it_goes(beaten):
    gone = raising(CardGone("fell off the bus"))
    told = beaten(Scripted(good, gone, gone, good, gone, good), 6)
    assert [item.kind for item in happenings(told)] == ["device_lost", "device_lost"]
    reading = polls(told)[1].readings[UTILISATION]
    assert reading == Reading.unreadable("fell off the bus")
    assert set(polls(told)[1].readings) == {UTILISATION}, "what the card never had is not missed"


def test_a_driver_that_is_away_is_no_lost_card(beaten):
    told = beaten(Scripted(good, raising(Unavailable("the driver is being replaced")), good), 3)
    assert [item.kind for item in happenings(told)] == ["sensor_error"]
    assert polls(told)[1].readings[UTILISATION].status is ReadingStatus.UNREADABLE


def test_a_fault_of_our_own_becomes_a_record(beaten):
    told = beaten(Scripted(good, raising(ZeroDivisionError("division by zero")), good), 3)
    assert polls(told)[1].readings[UTILISATION] == Reading.unreadable("ZeroDivisionError: division by zero")
    assert polls(told)[2].readings == GOOD


def test_a_look_at_a_card_that_answers_tells_nothing():
    told: list[Poll | Happening] = []
    beat = Beat("card", lambda: Scripted(good), told.append, 1000, 1000)
    beat.look()
    assert told == []


def test_a_card_that_does_not_answer_has_a_gap_told_once_and_a_poll_a_beat():
    """Time is handed in: the card hangs in its first read for ever."""
    told: list[Poll | Happening] = []
    now = [1000]
    hung, never = threading.Event(), threading.Event()

    def hang() -> Mapping[Quantity, Reading]:
        hung.set()
        never.wait()
        return {}

    beat = Beat("card", lambda: Scripted(hang), told.append, 1, 10_000, clock=lambda: now[0])
    beat.start()
    assert hung.wait(5)
    for now[0] in (2999, 3000, 3000, 3001, 63_500):
        beat.look()
    (gap,) = happenings(told)
    assert (gap.kind, gap.gpu, gap.detail, gap.boot_ms) == ("sensor_gap", "card", "no answer in 2 s", 3000)
    assert [poll.boot_ms for poll in polls(told)] == [3000, 3001, 63_500]
    assert "no answer in 62 s" in polls(told)[-1].readings[UTILISATION].reason
    never.set()
