"""What parts of an NVIDIA card were at work, by its performance monitors (GPM, Hopper and newer).

Utilisation says that a kernel was resident; these say how many multiprocessors were, what the tensor pipes
and the memory did. A figure is of the time between two samples, here from poll to poll.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from soak.core.records import Quantity, Reading
from soak.telemetry.plausible import judged

QUANTITIES: Mapping[Quantity, str] = {  # by the name of NVML's metric
    Quantity.SM_ACTIVE_PCT: "NVML_GPM_METRIC_SM_UTIL",
    Quantity.TENSOR_ACTIVE_PCT: "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    Quantity.DRAM_ACTIVE_PCT: "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
_UNSUPPORTED = "this card or driver has no performance monitors to read (GPM)"


class Activity:
    """One card's monitors. Two samples are kept and taken in turn; they live as long as the process."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._samples: list[Any] = []
        self._is_supported = self._begin()

    def _begin(self) -> bool:
        nvml = self._nvml
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
                return False
            self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
            nvml.nvmlGpmSampleGet(self._handle, self._samples[1])
        except (AttributeError, nvml.NVMLError):
            return False
        return True

    def read(self) -> dict[Quantity, Reading]:
        """Since the last read. Raises NVMLError."""
        if not self._is_supported:
            return dict.fromkeys(QUANTITIES, Reading.unsupported(_UNSUPPORTED))
        nvml = self._nvml
        self._samples.reverse()
        nvml.nvmlGpmSampleGet(self._handle, self._samples[1])
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(QUANTITIES)
        request.sample1, request.sample2 = self._samples
        for index, name in enumerate(QUANTITIES.values()):
            request.metrics[index].metricId = getattr(nvml, name)
        told = nvml.nvmlGpmMetricsGet(request)
        return {q: self._reading(q, metric) for q, metric in zip(QUANTITIES, told.metrics, strict=False)}

    def _reading(self, quantity: Quantity, metric: Any) -> Reading:
        if metric.nvmlReturn != self._nvml.NVML_SUCCESS:
            return Reading.unreadable(f"NVML: {self._nvml.NVMLError(metric.nvmlReturn)}")
        return judged(quantity, metric.value)
