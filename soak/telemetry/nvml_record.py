"""NVML's answers, recorded call by call and given again: a card's telemetry without the card.

`Recorder` stands in front of pynvml and keeps what it answers; `Replay` stands in for it. Answers to the same
call are given in their order, the last one for ever.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

ANSWERS = "nvml.json"  # below what stands for `/`
Answers = dict[str, list[Any]]  # by call: what it returned, or {"error": code}
# The third of Samples is the time of the last answer; a request for metrics holds the samples' addresses.
_N_KEY_ARGUMENTS = {"nvmlDeviceGetSamples": 2, "nvmlGpmMetricsGet": 0}
_REQUEST, _METRICS_MAX = "c_nvmlGpmMetricsGet_t", 16  # metrics that a request may ask for


class Recorder:
    """Passes every call on to `nvml` and keeps the answers; `hide` replaces what is to stay unknown in each
    text."""

    def __init__(self, nvml: Any, hide: Callable[[str], str]) -> None:
        self._nvml = nvml
        self._hide = hide
        self._handles: dict[int, str] = {}
        self.answers: Answers = {}

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._nvml, name)
        return attribute if not _is_call(name) else self._recorded(name, attribute)

    def _recorded(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*arguments: Any, **named: Any) -> Any:
            told = self.answers.setdefault(_key(name, [self._plain(argument) for argument in arguments]), [])
            try:
                answer = call(*arguments, **named)
            except self._nvml.NVMLError as error:
                told.append({"error": error.value})
                raise
            told.append(self._plain(answer))
            return answer

        return asked

    def _plain(self, value: Any) -> Any:
        """A value as JSON has it."""
        if isinstance(value, bytes):
            return self._hide(value.decode("utf-8", "replace"))
        if isinstance(value, str):
            return self._hide(value)
        if type(value).__name__ == _REQUEST:
            return {"metrics": [self._plain(metric) for metric in value.metrics[: value.numMetrics]]}
        if isinstance(value, ctypes.Structure | ctypes.Union):
            return {field[0]: self._plain(getattr(value, field[0])) for field in value._fields_}
        if isinstance(value, SimpleNamespace):
            return {name: self._plain(part) for name, part in vars(value).items()}
        if isinstance(value, ctypes.Array | list | tuple):
            return [self._plain(item) for item in value]
        if isinstance(value, ctypes._Pointer):
            address = ctypes.cast(value, ctypes.c_void_p).value or 0
            return {"handle": self._handles.setdefault(address, f"card {len(self._handles)}")}
        return value


class Replay:
    """Answers as recorded; what was not recorded is not supported. Constants and errors are pynvml's."""

    def __init__(self, nvml: Any, answers: Mapping[str, list[Any]]) -> None:
        self._nvml = nvml
        self._left = {key: list(told) for key, told in answers.items()}

    def __getattr__(self, name: str) -> Any:
        if name == _REQUEST:
            return _request
        if not _is_call(name):
            return getattr(self._nvml, name)

        def asked(*arguments: Any, **_: Any) -> Any:
            told = self._left.get(_key(name, arguments), [])
            answer = told.pop(0) if len(told) > 1 else told[0] if told else {"error": 3}
            if isinstance(answer, Mapping) and "error" in answer:
                raise self._nvml.NVMLError(answer["error"])
            return _object(answer)

        return asked


def _is_call(name: str) -> bool:
    return name.startswith(("nvmlDevice", "nvmlSystem", "nvmlInit", "nvmlGpm", "nvmlEvent"))


def _request() -> SimpleNamespace:
    """Stands in for the structure that asks for metrics, whose fields take real samples only."""
    return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(_METRICS_MAX)])


def _key(name: str, arguments: Any) -> str:
    shown = [_shown(argument) for argument in arguments][: _N_KEY_ARGUMENTS.get(name)]
    return f"{name}({', '.join(shown)})"


def _shown(argument: Any) -> str:
    if isinstance(argument, Mapping) and "handle" in argument:
        return str(argument["handle"])
    return str(argument)


def _object(answer: Any) -> Any:
    """Structures by their fields' names, as ctypes gives them; a handle is its name."""
    if isinstance(answer, Mapping):
        if "handle" in answer:
            return answer["handle"]
        return SimpleNamespace(**{name: _object(value) for name, value in answer.items()})
    return [_object(item) for item in answer] if isinstance(answer, list) else answer
