"""Xids as NVML announces them: heard once, meant as in the kernel log, whoever tells first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from soak.core.ports import Happening
from soak.telemetry.kernel_log import KernelLog
from soak.telemetry.nvml_events import NvmlEvents
from soak.telemetry.sensors import Unavailable

GPU, OTHER = "0000:9b:00.0", "0000:e3:00.0"
XID, CLOCK = pynvml.nvmlEventTypeXidCriticalError, pynvml.nvmlEventTypeClock


class Announcing:
    """NVML with these events in its set, then a wait without one, then its end. A handle is an address."""

    def __init__(self, *events: tuple[str, int, int], refuses: frozenset[str] = frozenset()) -> None:
        self.events = list(events)
        self.refuses = refuses
        self.registered: list[str] = []
        self.n_timeouts = 1

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlEventSetCreate(self) -> str:
        return "the set"

    def nvmlDeviceGetHandleByPciBusId(self, gpu: str) -> str:
        return gpu

    def nvmlDeviceGetPciInfo(self, handle: str) -> SimpleNamespace:
        if handle == "lost":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return SimpleNamespace(busId=f"0000{handle}".encode())

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: str) -> None:
        assert (kinds, events) == (XID, "the set")
        if handle in self.refuses:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        self.registered.append(handle)

    def nvmlEventSetWait_v2(self, _: str, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms > 0
        if self.events:
            device, kind, data = self.events.pop(0)
            return SimpleNamespace(device=device, eventType=kind, eventData=data)
        if self.n_timeouts:
            self.n_timeouts -= 1
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


def heard(nvml: Announcing, tmp_path: Any, *lines_before: str) -> list[Happening]:
    told: list[Any] = []
    log = KernelLog(tmp_path / "kmsg", [GPU, OTHER], told.append, lambda: 1000)
    for line in lines_before:
        log.take_in(line)
    NvmlEvents(lambda: nvml, [GPU, OTHER], log.take_in).follow()
    return told


def test_an_xid_is_what_the_kernel_log_would_make_of_it(tmp_path):
    (happening,) = heard(Announcing((GPU, XID, 79)), tmp_path)
    assert (happening.kind, happening.gpu) == ("device_lost", GPU)
    assert "fallen off the bus" in happening.detail
    assert "told by NVML" in happening.data["line"]


def test_both_witnesses_of_one_xid_make_one_incident(tmp_path):
    line = f"NVRM: Xid (PCI:{GPU[:-2]}): 48, pid=1234, DBE"
    told = heard(Announcing((GPU, XID, 48), (OTHER, XID, 48)), tmp_path, line)
    assert [happening.gpu for happening in told] == [GPU, OTHER]


def test_other_events_are_no_xids(tmp_path):
    assert heard(Announcing((GPU, CLOCK, 79)), tmp_path) == []


def test_a_card_that_announces_nothing_costs_itself(tmp_path):
    nvml = Announcing((OTHER, XID, 119), refuses=frozenset({GPU}))
    assert [happening.gpu for happening in heard(nvml, tmp_path)] == [OTHER]
    assert nvml.registered == [OTHER]


def test_a_card_that_is_lost_with_its_xid_ends_nothing(tmp_path):
    assert [h.gpu for h in heard(Announcing(("lost", XID, 79), (GPU, XID, 119)), tmp_path)] == [GPU]


def test_where_nothing_can_be_heard_it_ends(tmp_path):
    nvml = Announcing((GPU, XID, 79), refuses=frozenset({GPU, OTHER}))
    assert heard(nvml, tmp_path) == []
    assert nvml.n_timeouts == 1, "nobody waited"


def test_without_nvml_it_ends():
    def absent() -> Any:
        raise Unavailable("no NVIDIA driver")

    NvmlEvents(absent, [GPU], pytest.fail).follow()
