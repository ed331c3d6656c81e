"""Order of work on a device: a stream for the load, one beside it for drawing and copying, events between
them.

`CudaStreams` is torch.cuda (CUDA or HIP). `HostStreams` does everything at once on CPU tensors: with Triton's
interpreter the whole engine then runs without a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in a stream."""

    def wait(self) -> None:
        """Returns when the device has passed it; other threads run meanwhile."""

    def elapsed_ms(self, later: Any) -> float:
        """Device time from here to a later event of the same kind; both passed."""


class Streams(Protocol):
    device: torch.device

    def load(self) -> Any:
        """A context: what this thread launches goes to the load's stream."""

    def beside(self) -> Any:
        """A context: what this thread launches goes to the stream beside it."""

    def mark(self) -> Event:
        """An event behind all that was launched in the current stream."""

    def after(self, event: Any) -> None:
        """What is launched in the current stream from now on waits for the event, on the device."""

    def drain(self) -> None:
        """Returns when the current stream has done everything."""

    def pinned(self, *size: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that the device copies to while both go on."""


class _CudaEvent:
    def __init__(self) -> None:
        make: Any = torch.cuda.Event
        self._event = make(enable_timing=True, blocking=True)  # blocking: no core spins meanwhile
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()

    def elapsed_ms(self, later: _CudaEvent) -> float:
        return float(self._event.elapsed_time(later._event))

    def hold_current_stream(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)


class CudaStreams:
    """Of one card; usable from any thread."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        make: Any = torch.cuda.Stream
        self._load, self._beside = make(device), make(device)

    @contextmanager
    def load(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self._load):  # both are a thread's own
            yield

    @contextmanager
    def beside(self) -> Iterator[None]:
        with torch.cuda.device(self.device), torch.cuda.stream(self._beside):
            yield

    def mark(self) -> _CudaEvent:
        return _CudaEvent()

    def after(self, event: _CudaEvent) -> None:
        event.hold_current_stream()

    def drain(self) -> None:
        self.mark().wait()

    def pinned(self, *size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, pin_memory=True)


class _HostEvent:
    def __init__(self) -> None:
        self._at_s = time.perf_counter()

    def wait(self) -> None:
        return None

    def elapsed_ms(self, later: _HostEvent) -> float:
        return (later._at_s - self._at_s) * 1000.0


class HostStreams:
    """Everything is done when the call returns."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    @contextmanager
    def load(self) -> Iterator[None]:
        yield

    beside = load

    def mark(self) -> _HostEvent:
        return _HostEvent()

    def after(self, event: _HostEvent) -> None:
        del event

    def drain(self) -> None:
        return None

    def pinned(self, *size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype)
