"""Slices of a step for the gradient check, copied to pinned host memory beside the load."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from soak.core.protocol import Protocol
from soak.load.gradient import N_SLICES, Outputs, Slice, choose_slices
from soak.load.recipe import Inputs
from soak.load.rotation_gpu import RotationGpu
from soak.load.streams import Event, Streams


@dataclass
class Capture:
    """One gradient check under way. `is_golden` comes with the step's comparison."""

    index: int
    rotation: RotationGpu
    slices: tuple[tuple[int, int], ...]  # (batch, head)
    began_boot_ms: int
    copied: Event
    is_golden: bool | None = field(default=None)


class HostCopies:
    """Pinned room for the slices of one check; used by one check at a time."""

    def __init__(self, protocol: Protocol, streams: Streams) -> None:
        self._streams = streams
        self._seed = protocol.seed
        dtype: torch.dtype = getattr(torch, protocol.dtype)
        size = (N_SLICES, protocol.seq_len_max, protocol.head_dim)
        self._inputs = [streams.pinned(*size, dtype=dtype) for _ in Inputs._fields]
        self._lse = streams.pinned(*size[:2], dtype=torch.float64)
        self._outputs = [streams.pinned(*size, dtype=dtype) for _ in range(4)]

    def launch(
        self, index: int, rotation: RotationGpu, outputs: Outputs, done: Event, now_boot_ms: int
    ) -> Capture:
        """Copies beside the load once `done` has passed; the outputs must stay until `copied` has."""
        size = rotation.size
        slices = choose_slices(self._seed, index, batch=size.batch, heads=size.heads)
        with self._streams.beside():
            self._streams.after(done)
            for number, (batch, head) in enumerate(slices):
                for source, room in zip((*rotation.inputs, *outputs), self._rooms(), strict=True):
                    room[number, : size.seq_len].copy_(source[batch, head], non_blocking=True)
            copied = self._streams.mark()
        return Capture(index, rotation, slices, now_boot_ms, copied)

    def read(self, capture: Capture) -> list[Slice]:
        """Waits for the copies; the slices are the caller's own."""
        capture.copied.wait()
        rows = capture.rotation.size.seq_len
        own = [
            [room[number, :rows].clone() for room in self._rooms()] for number in range(len(capture.slices))
        ]
        n_inputs = len(Inputs._fields)
        return [Slice(Inputs(*each[:n_inputs]), Outputs(*each[n_inputs:])) for each in own]

    def _rooms(self) -> list[torch.Tensor]:
        o, dq, dk, dv = self._outputs
        return [*self._inputs, o, self._lse, dq, dk, dv]
