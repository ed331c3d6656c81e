"""Asking NVML: its errors as what they mean for a reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from soak.core.records import Reading
from soak.telemetry.plausible import is_name
from soak.telemetry.sensors import CardGone
from soak.telemetry.sysfs import says_nothing

Nvml = Any  # the module pynvml, or what stands in for it


@dataclass(frozen=True, slots=True)
class Session:
    """NVML, started, with the ways to ask it."""

    nvml: Nvml

    def guarded(self, question: Callable[[], Reading]) -> Reading:
        """The answer, or the absence that NVML's error means. Raises CardGone."""
        nvml = self.nvml
        try:
            return question()
        except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_ResetRequired, nvml.NVMLError_GpuNotFound) as error:
            raise CardGone(f"lost: {error}") from error
        except nvml.NVMLError_NotSupported:
            return Reading.unsupported("this card or driver does not tell it")
        except (AttributeError, nvml.NVMLError_FunctionNotFound):
            return Reading.unsupported("this NVML is too old to tell it")
        except nvml.NVMLError as error:
            return Reading.unreadable(f"NVML: {error}")

    def newest(self, *questions: Callable[[], Any]) -> Any:
        """The answer to the first of these, newest first, that this library and driver know. Raises
        NVMLError."""
        *newer, oldest = questions
        for question in newer:
            try:
                return question()
            except (AttributeError, self.nvml.NVMLError_FunctionNotFound):
                continue
        return oldest()

    def fact(self, question: Callable[[], Any]) -> Any:
        """A fact for which no reason is needed; None where there is none."""
        try:
            return question()
        except (AttributeError, self.nvml.NVMLError):
            return None

    def text(self, question: Callable[[], Any]) -> str | None:
        """A fact in words; None where there is none, or where NVML writes that there is none."""
        told = self.fact(question)
        text = told.decode("utf-8", "replace") if isinstance(told, bytes) else told
        return text if text and is_name(text) and not says_nothing(text) else None
