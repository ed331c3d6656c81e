"""The cross-check by registers, against a stand-in for pyamdgpuinfo (its module functions)."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from soak.core.records import Quantity, Reading, ReadingStatus
from soak.telemetry.amd import AmdBackend
from soak.telemetry.amdgpuinfo import GraphicsPipe

MI50 = Path(__file__).parents[1] / "captures/amd__instinct-mi50-32gb__by-hand/root"
GPU = "0000:33:00.0"


class Card:
    def __init__(self, pci_slot: str | None, busy: float | Exception = 0.99) -> None:
        self.pci_slot, self.busy = pci_slot, busy
        self.polling: dict[str, int] = {}

    def start_utilisation_polling(self, **rate: int) -> None:
        self.polling = rate

    def query_utilisation(self) -> dict[str, float]:
        if isinstance(self.busy, Exception):
            raise self.busy
        assert self.polling, "asked before polling was started"
        return {"graphics_pipe": self.busy, "shader_interpolator": 0.0}


class Module:
    def __init__(self, *cards: Card, error: Exception | None = None) -> None:
        self.cards, self.error = cards, error

    def detect_gpus(self) -> int:
        if self.error is not None:
            raise self.error
        return len(self.cards)

    def get_gpu(self, index: int) -> Card:
        return self.cards[index]


def opened(module: Any) -> GraphicsPipe:
    pipe = GraphicsPipe(module)
    end = time.monotonic() + 5
    while "being opened" in pipe.busy_pct(GPU).reason and time.monotonic() < end:
        time.sleep(0.005)
    return pipe


def test_the_share_is_a_percentage_of_the_card_with_this_address():
    pipe = opened(Module(Card("0000:0B:00.0", 0.5), Card(GPU, 0.87)))
    assert pipe.busy_pct(GPU) == Reading.ok(87.0)
    assert pipe.busy_pct("0000:0b:00.0") == Reading.ok(50.0)
    assert pipe.busy_pct("0000:0c:00.0").status is ReadingStatus.UNSUPPORTED


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "not installed"),
        (Module(error=FileNotFoundError(2, "No such file or directory: '/dev/dri'")), "/dev/dri"),
        (Module(error=RuntimeError("drm")), "drm"),
        (Module(), "no render node"),
        (Module(Card(None)), "with a PCI address"),  # in a container without /dev/dri/by-path
    ],
)
def test_without_the_registers_it_says_why(module, reason):
    reading = opened(module).busy_pct(GPU)
    assert reading.status is ReadingStatus.UNSUPPORTED
    assert reason in reading.reason


def test_a_failing_query_is_unreadable():
    for error in (OSError("gone"), RuntimeError("query failed")):
        assert opened(Module(Card(GPU, error))).busy_pct(GPU).status is ReadingStatus.UNREADABLE


def test_a_node_that_hangs_on_opening_holds_nobody_up():
    released = threading.Event()

    class Hanging(Module):
        def detect_gpus(self) -> int:
            released.wait(10)
            return 0

    begun = time.monotonic()
    pipe = GraphicsPipe(Hanging())
    assert pipe.busy_pct(GPU).status is ReadingStatus.UNSUPPORTED
    assert time.monotonic() - begun < 1
    released.set()


def test_the_firmware_is_believed_until_the_registers_contradict_it_three_times(tmp_path):
    root = shutil.copytree(MI50, tmp_path / "mi50", symlinks=True)
    card = Card(GPU, 0.97)
    subject = AmdBackend(root, opened(Module(card))).open(GPU)
    utilisation = Quantity.UTILISATION_PCT
    assert subject.read()[utilisation] == Reading.ok(99.0)
    card.busy = 0.02
    assert [subject.read()[utilisation].value for _ in range(3)] == [99.0, 99.0, None]
    reading = subject.read()[utilisation]
    assert reading == Reading.unreadable("gpu_busy_percent says 99 while the registers show 2 % busy")
    card.busy = 0.97
    assert subject.read()[utilisation] == Reading.ok(99.0)
    card.busy = RuntimeError("query failed")
    assert [subject.read()[utilisation].value for _ in range(4)] == [99.0] * 4
