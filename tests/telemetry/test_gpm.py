"""What parts of a card were at work, by a stand-in at the library's boundary and by a recording."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from soak.core.records import Quantity, Reading, ReadingStatus
from soak.telemetry.gpm import QUANTITIES, Activity
from soak.telemetry.nvml_record import Recorder, Replay

SM, TENSOR, DRAM = Quantity.SM_ACTIVE_PCT, Quantity.TENSOR_ACTIVE_PCT, Quantity.DRAM_ACTIVE_PCT


class Monitors:
    """NVML with performance monitors: a sample is a number, a metric is what lies between two of them.

    Structures are pynvml's own, as the real library would be given them."""

    def __init__(self, supported: bool = True) -> None:
        self.supported = supported
        self.told = {2: 91.5, 5: 40.25, 10: 12.0}
        self.returns: dict[int, int] = {}
        self.taken: list[int] = []
        self.asked: list[tuple[int, int]] = []
        self._values = (pynvml.c_uint * 8)()
        self._n_allocated = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlGpmQueryDeviceSupport(self, _: Any) -> SimpleNamespace:
        return SimpleNamespace(isSupportedDevice=int(self.supported))

    def nvmlGpmSampleAlloc(self) -> Any:
        self._n_allocated += 1
        return pynvml.cast(pynvml.byref(self._values, 4 * self._n_allocated), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleGet(self, _: Any, sample: Any) -> Any:
        address = pynvml.cast(sample, pynvml.c_void_p).value
        self.taken.append(address)
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        self.asked.append(
            tuple(pynvml.cast(s, pynvml.c_void_p).value for s in (request.sample1, request.sample2))
        )
        for metric in request.metrics[: request.numMetrics]:
            metric.value = self.told[metric.metricId]
            metric.nvmlReturn = self.returns.get(metric.metricId, 0)
        return request


def test_figures_of_the_time_between_two_reads():
    nvml = Monitors()
    activity = Activity(nvml, "card")
    assert activity.read() == {SM: Reading.ok(91.5), TENSOR: Reading.ok(40.25), DRAM: Reading.ok(12.0)}
    activity.read()
    # each read asks from the sample before to the one just taken, and takes turns with two
    first, second, third = nvml.taken
    assert nvml.asked == [(first, second), (second, third)]
    assert first == third


def test_a_metric_that_fails_costs_itself():
    nvml = Monitors()
    nvml.returns[5] = pynvml.NVML_ERROR_UNKNOWN
    readings = Activity(nvml, "card").read()
    assert readings[TENSOR].status is ReadingStatus.UNREADABLE
    assert readings[SM] == Reading.ok(91.5)


@pytest.mark.parametrize("impossible", [101.0, -1.0, float("nan"), float("inf")])
def test_impossible_figures_are_none(impossible):
    nvml = Monitors()
    nvml.told[10] = impossible
    assert Activity(nvml, "card").read()[DRAM].status is ReadingStatus.UNREADABLE


def test_a_card_without_monitors():
    for nvml in (Monitors(supported=False), SimpleNamespace(NVMLError=pynvml.NVMLError)):
        readings = Activity(nvml, "card").read()
        assert readings.keys() == QUANTITIES.keys()
        assert {reading.status for reading in readings.values()} == {ReadingStatus.UNSUPPORTED}


def test_a_recording_gives_the_same():
    recorder = Recorder(Monitors(), lambda text: text)
    told = Activity(recorder, "card 0").read()
    answers = json.loads(json.dumps(recorder.answers))
    assert len(answers["nvmlGpmMetricsGet()"][0]["metrics"]) == len(QUANTITIES)
    replayed = Activity(Replay(pynvml, answers), "card 0")
    assert replayed.read() == told
    assert replayed.read() == told  # the last answer for ever
