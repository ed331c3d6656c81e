"""Puts a card, its streams and its kernel together; under Triton's interpreter, the CPU in place of a
card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton

from soak.core.protocol import Protocol
from soak.load import device_gpu, memory
from soak.load.engine import BitFlip
from soak.load.engine_gpu import EngineGpu, Rig
from soak.load.kernel_gpu import TritonKernel
from soak.load.streams import CudaStreams, HostStreams


def engine_of_card(
    gpu: str, protocol: Protocol, inject: BitFlip | None, compiler: Mapping[str, str]
) -> EngineGpu:
    """Finds the card and takes its memory. `compiler`: the settings in force, for the record. Raises
    LoadError."""
    return EngineGpu(
        gpu, protocol, _interpreted(protocol, compiler) or _card(gpu, protocol, compiler), inject
    )


def _card(gpu: str, protocol: Protocol, compiler: Mapping[str, str]) -> Rig:
    device = device_gpu.find(gpu)
    torch.cuda.set_device(device)  # pinned memory belongs to the current device's context
    device_gpu.require_memory(device, memory.bytes_needed(protocol))
    facts: dict[str, Any] = {**device_gpu.facts(device), "compiler": dict(compiler)}
    return Rig(CudaStreams(device), _kernel(device, protocol), facts, device_gpu.versions())


def _interpreted(protocol: Protocol, compiler: Mapping[str, str]) -> Rig | None:
    if not triton.knobs.runtime.interpret:
        return None
    streams = HostStreams()
    facts = {"device": "Triton's interpreter, no GPU", "compiler": dict(compiler)}
    return Rig(streams, _kernel(streams.device, protocol), facts, device_gpu.versions(), burst_ms=0.0)


def _kernel(device: torch.device, protocol: Protocol) -> TritonKernel:
    return TritonKernel(
        device,
        head_dim=protocol.head_dim,
        dtype=protocol.dtype,
        seq_len_max=protocol.seq_len_max,
        kernel=protocol.kernel,
    )
