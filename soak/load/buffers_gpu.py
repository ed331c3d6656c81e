"""All device memory of the load, taken once: a rotation is a view of it, so that none allocates or frees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from soak_kernels.digest import DigestWeights, compare, digest, digest_shape, digest_weights

from soak.core.protocol import Protocol
from soak.load import memory
from soak.load.gradient import Outputs
from soak.load.recipe import Inputs
from soak.load.streams import Event, Streams

_COUNTER_STRIDE = (
    2  # int64: each counter 16 bytes from the next, as Triton compiles once for aligned pointers
)


@dataclass(frozen=True, slots=True)
class Size:
    """Of one rotation's tensors: [batch, heads, seq_len, head_dim]."""

    batch: int
    heads: int
    seq_len: int
    head_dim: int

    @property
    def n_rows(self) -> int:
        return self.batch * self.heads * self.seq_len

    @property
    def n_slices(self) -> int:
        return self.batch * self.heads


class OutputSet:
    """Room for one step's outputs and their digests."""

    def __init__(self, protocol: Protocol, device: torch.device, *, with_digests: bool) -> None:
        rows, elements = memory.n_rows(protocol), memory.n_elements(protocol)
        dtype: torch.dtype = getattr(torch, protocol.dtype)
        self._lse = torch.empty(rows, dtype=torch.float64, device=device)
        self._tensors = [torch.empty(elements, dtype=dtype, device=device) for _ in range(4)]
        n = memory.n_digests(protocol) if with_digests else 0
        self._digests = [torch.empty(n, dtype=torch.int64, device=device) for _ in Outputs._fields]

    def outputs(self, size: Size) -> Outputs:
        shape = (size.batch, size.heads, size.seq_len, size.head_dim)
        o, dq, dk, dv = (flat[: size.n_rows * size.head_dim].view(shape) for flat in self._tensors)
        return Outputs(o, self._lse[: size.n_rows].view(shape[:3]), dq, dk, dv)

    def digests(self, size: Size) -> tuple[torch.Tensor, ...]:
        """int64 [batch * heads, blocks of rows] per output."""
        shape = digest_shape(self.outputs(size).o)
        return tuple(flat[: shape[0] * shape[1]].view(shape) for flat in self._digests)

    def take_digests(self, size: Size, weights: DigestWeights) -> None:
        for tensor, out in zip(self.outputs(size), self.digests(size), strict=True):
            digest(tensor, weights=weights, out=out)


class Slot(OutputSet):
    """Outputs of a step that is compared; kept until the host has seen the result and a check its slices."""

    def __init__(self, protocol: Protocol, streams: Streams) -> None:
        super().__init__(protocol, streams.device, with_digests=True)
        self._counter = torch.zeros(_COUNTER_STRIDE, dtype=torch.int64, device=streams.device)
        self._seen = streams.pinned(_COUNTER_STRIDE, dtype=torch.int64)
        self.is_busy = False  # a step that uses it is in the queue
        self.copied: Event | None = None  # a check's copy of its outputs

    def launch_comparison(self, size: Size, golden: OutputSet, weights: DigestWeights) -> None:
        """Digests, comparison and the copy of its count, all on the current stream."""
        self.take_digests(size, weights)
        self._counter.zero_()
        for ours, theirs in zip(self.digests(size), golden.digests(size), strict=True):
            compare(ours, theirs, self._counter[:1])
        self._seen.copy_(self._counter, non_blocking=True)

    def n_differing(self) -> int:
        """Digests that differ; the step must be done."""
        return int(self._seen[0])


class Buffers:
    """Sets of inputs and outputs, by their use."""

    def __init__(self, protocol: Protocol, streams: Streams) -> None:
        device = streams.device
        elements = memory.n_elements(protocol)
        dtype: torch.dtype = getattr(torch, protocol.dtype)
        self._protocol = protocol
        self._inputs = [
            [torch.empty(elements, dtype=dtype, device=device) for _ in Inputs._fields]
            for _ in range(memory.INPUT_SETS)
        ]
        self.scratch = torch.empty(elements, dtype=torch.float32, device=device)
        self.golden = [OutputSet(protocol, device, with_digests=True) for _ in range(memory.GOLDEN_SETS)]
        self.plain = OutputSet(protocol, device, with_digests=False)
        self.slots = [Slot(protocol, streams) for _ in range(memory.COMPARE_SLOTS)]
        row_words = max(protocol.head_dim * dtype.itemsize // 4, 2)  # a log-sum-exp is two words
        self.weights = digest_weights(protocol.seq_len_max, row_words, device)
        n = memory.n_digests(protocol)
        self._seen = [streams.pinned(len(Outputs._fields), n, dtype=torch.int64) for _ in self.golden]

    def size(self, seq_len: int) -> Size:
        p = self._protocol
        return Size(memory.batch_of(p, seq_len), p.heads, seq_len, p.head_dim)

    def inputs(self, place: int, size: Size) -> Inputs:
        shape = (size.batch, size.heads, size.seq_len, size.head_dim)
        return Inputs(*(flat[: size.n_rows * size.head_dim].view(shape) for flat in self._inputs[place]))

    def launch_golden_digests(self, place: int, size: Size) -> None:
        """Of the first step's outputs, and their copy to the host, on the current stream."""
        golden = self.golden[place]
        golden.take_digests(size, self.weights)
        for each, seen in zip(golden.digests(size), self._seen[place], strict=True):
            seen[: each.numel()].copy_(each.view(-1), non_blocking=True)

    def golden_digests(self, place: int, size: Size) -> list[torch.Tensor]:
        """As copied to the host; the step must be done."""
        return [
            seen[: each.numel()]
            for each, seen in zip(self.golden[place].digests(size), self._seen[place], strict=True)
        ]
