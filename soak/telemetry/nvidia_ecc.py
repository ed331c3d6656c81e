"""An NVIDIA card's memory errors: counters by view and place, and what earlier ones left behind."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from soak.core.records import Reading, ReadingStatus
from soak.telemetry.nvml import Session
from soak.telemetry.plausible import counted

_KINDS = {
    "corrected": "NVML_MEMORY_ERROR_TYPE_CORRECTED",
    "uncorrected": "NVML_MEMORY_ERROR_TYPE_UNCORRECTED",
}
_VIEWS = {"volatile": "NVML_VOLATILE_ECC", "aggregate": "NVML_AGGREGATE_ECC"}
_PLACES = {"dram": "NVML_MEMORY_LOCATION_DRAM", "sram": "NVML_MEMORY_LOCATION_SRAM"}
_RETIRED_FOR = (
    "NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS",
    "NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR",
)


class NvidiaCounters:
    """One card's error counters, keyed `view/place/kind`.

    `volatile` counts since the driver was loaded, `aggregate` over the card's life; `volatile_place` shows
    the errors of `volatile` again, by place, where the driver tells it. What the card never told is not
    expected; what it stops telling is missed.
    """

    def __init__(self, session: Session, handle: Any) -> None:
        self._session = session
        self._handle = handle
        self._why_none = self._absence()
        asked: Mapping[str, Callable[[], int]] = {} if self._why_none else self._asked()
        self._asked_for = {
            key: question
            for key, question in asked.items()
            if self._ask(question).status is not ReadingStatus.UNSUPPORTED
        }

    def read(self) -> dict[str, Reading] | None:
        """Every counter that the card tells; None where it tells none. Raises CardGone."""
        return {key: self._again(question) for key, question in self._asked_for.items()} or None

    def support(self, counters: Mapping[str, Reading]) -> Reading:
        """ok(1) where every counter gave a value, else the first reason."""
        if self._why_none:
            return Reading.unsupported(self._why_none)
        if not counters:
            return Reading.unsupported("the driver tells no error counters of this card")
        failed = [reading for reading in counters.values() if reading.status is not ReadingStatus.OK]
        return Reading.unreadable(failed[0].reason) if failed else Reading.ok(1.0)

    def notes(self, counters: Mapping[str, Reading]) -> Iterator[str]:
        """What the report should say about the memory's history."""
        for key, reading in counters.items():
            if key.startswith("aggregate/") and reading.value:
                yield f"{key} was {reading.value:.0f} before the run"
        nvml, fact = self._session.nvml, self._session.fact
        rows = fact(lambda: nvml.nvmlDeviceGetRemappedRows(self._handle))
        if rows and any(rows):
            corrected, uncorrected, pending, failed = rows
            yield (
                f"rows remapped: {corrected} for corrected, {uncorrected} for uncorrected errors"
                + (", more pending a reset" if pending else "")
                + (", and a remapping failed" if failed else "")
            )
        n_retired = sum(len(self._retired(cause)) for cause in _RETIRED_FOR)
        if n_retired:
            yield f"{n_retired} memory pages retired before the run"

    def _absence(self) -> str:
        nvml = self._session.nvml
        try:
            current, pending = nvml.nvmlDeviceGetEccMode(self._handle)
        except nvml.NVMLError_NotSupported:
            return "this card has no ECC"
        except nvml.NVMLError:
            return ""  # the counters will say what is wrong
        if current:
            return ""
        return "ECC is off" + (
            ": on after the next reboot" if pending else ": switch it on (nvidia-smi -e 1)"
        )

    def _asked(self) -> Mapping[str, Callable[[], int]]:
        """A question a counter."""
        nvml, handle = self._session.nvml, self._handle

        def total(kind: str, view: str) -> int:
            return int(nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), getattr(nvml, view)))

        def at(kind: str, place: str) -> int:
            ask = nvml.nvmlDeviceGetMemoryErrorCounter
            return int(ask(handle, getattr(nvml, kind), nvml.NVML_VOLATILE_ECC, getattr(nvml, place)))

        totals = {
            f"{view}/all/{kind}": functools.partial(total, k, v)
            for view, v in _VIEWS.items()
            for kind, k in _KINDS.items()
        }
        return totals | {
            f"volatile_place/{place}/{kind}": functools.partial(at, k, p)
            for place, p in _PLACES.items()
            for kind, k in _KINDS.items()
        }

    def _ask(self, question: Callable[[], int]) -> Reading:
        return self._session.guarded(lambda: counted(question()))

    def _again(self, question: Callable[[], int]) -> Reading:
        reading = self._ask(question)
        if reading.status is ReadingStatus.UNSUPPORTED:
            return Reading.unreadable(f"told before, now: {reading.reason}")
        return reading

    def _retired(self, cause: str) -> Sequence[int]:
        """Pages retired for one cause; cards from Ampere on remap rows instead."""
        nvml = self._session.nvml
        ask = self._session.fact
        return ask(lambda: nvml.nvmlDeviceGetRetiredPages(self._handle, getattr(nvml, cause))) or ()
