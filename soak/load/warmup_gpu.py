"""Before the first step: everything compiled and run, the check tested, the card loaded, its speed
measured."""

from __future__ import annotations

from typing import Any

import torch
from soak_kernels.flops import backward_flops, forward_flops

from soak.core.protocol import Protocol
from soak.load import gradient
from soak.load.buffers_gpu import Buffers, Size
from soak.load.calibration import Calibration, lengths_between
from soak.load.engine import LoadError, boot_ms
from soak.load.failures import what_ended
from soak.load.gradient import Outputs
from soak.load.kernel_gpu import Kernel
from soak.load.memory import batch_of
from soak.load.recipe import Inputs, fill_inputs
from soak.load.streams import Streams

LENGTHS = 5  # with both masks each
POINT_MS = 250.0  # of work a measured point
STEPS_MAX = 50


def work_of(protocol: Protocol, seq_len: int, causal: bool) -> float:
    """Operations of one step, forward and backward."""
    size = (batch_of(protocol, seq_len), protocol.heads, seq_len, seq_len, protocol.head_dim)
    return forward_flops(*size, causal=causal) + backward_flops(*size, causal=causal)


class Warmup:
    def __init__(self, protocol: Protocol, streams: Streams, kernel: Kernel, buffers: Buffers) -> None:
        self._protocol, self._streams, self._kernel, self._buffers = protocol, streams, kernel, buffers
        self.calibration = Calibration({(1, False): 1.0})
        self._prepared: Any = None
        self._prepared_for: tuple[int, bool] | None = None

    def run(self, burst_ms: float) -> dict[str, Any]:
        """What was found, for the record. Raises LoadError, SelfTestError, and what the runtime raises."""
        p = self._protocol
        with self._streams.load():
            whole = self._buffers.size(p.seq_len_max)
            fill_inputs(p.seed, self._buffers.inputs(0, whole), self._buffers.scratch)
            compiled = self._compile()
            said = gradient.self_test(
                self._one_head, p.limits, head_dim=p.head_dim, dtype=getattr(torch, p.dtype)
            )
            burst = self._burst(burst_ms)
            lengths = lengths_between(p.seq_len_min, p.seq_len_max, LENGTHS)
            step_ms = {(s, causal): self._measure(s, causal) for s in lengths for causal in (False, True)}
        self.calibration = Calibration({(s, c): work_of(p, s, c) / ms for (s, c), ms in step_ms.items()})
        return {
            "compiled": [f"{s}{' causal' if c else ''}" for s, c in compiled],
            "self_test": said,
            "burst": burst,
            "step_ms": {f"{s}{' causal' if c else ''}": round(ms, 3) for (s, c), ms in step_ms.items()},
        }

    def _compile(self) -> list[tuple[int, bool]]:
        """Every variant that the range of lengths needs, the smallest, the largest and an odd length; once
        each, digests and comparison included."""
        p = self._protocol
        odd = min((p.seq_len_min + p.seq_len_max) // 2 | 1, p.seq_len_max)
        shapes = self._kernel.variants(range(p.seq_len_min, p.seq_len_max + 1))
        shapes += [(p.seq_len_min, False), (p.seq_len_max, False), (odd, True)]
        shapes = list(dict.fromkeys(shapes))
        for seq_len, causal in shapes:
            try:
                self._step(seq_len, causal)
                size = self._buffers.size(seq_len)
                self._buffers.launch_golden_digests(0, size)
                self._buffers.slots[0].launch_comparison(size, self._buffers.golden[0], self._buffers.weights)
                self._streams.drain()
            except Exception as error:
                kind, sentence = what_ended(error)
                if kind not in ("worker_error", "compile_error"):
                    raise  # the device or its memory, not the compiler
                mask = "causal" if causal else "full"
                versions = ", ".join(f"{name} {version}" for name, version in self._kernel.versions.items())
                raise LoadError(
                    "compile_error",
                    f"{self._kernel.name} does not run at seq_len {seq_len}, {mask}, with {versions} "
                    f"({self._kernel.reason[:60]}): {sentence}",
                ) from error
        return shapes

    def _one_head(self, inputs: Inputs, causal: bool) -> Outputs:
        """`gradient.self_test`'s view of the kernel: host tensors in and out."""
        device = self._streams.device
        on_device = Inputs(*(tensor.to(device) for tensor in inputs))
        o = torch.empty_like(on_device.q)
        lse = torch.empty(o.shape[:3], dtype=torch.float64, device=device)
        outputs = Outputs(o, lse, *(torch.empty_like(o) for _ in range(3)))
        self._kernel.run(self._kernel.prepare(on_device, causal), on_device, outputs, causal)
        self._streams.drain()
        return Outputs(*(tensor[0, 0].cpu() for tensor in outputs))

    def _burst(self, burst_ms: float) -> dict[str, int]:
        """Full load for a while: the card that is meant must show it. When it was (boot_ms), and how many
        steps."""
        began_ms, n_steps, last = boot_ms(), 0, self._streams.mark()
        while boot_ms() - began_ms < burst_ms:
            self._step(self._protocol.seq_len_max, False)
            now = self._streams.mark()
            last.wait()  # one step stays in the queue
            last, n_steps = now, n_steps + 1
        self._streams.drain()
        return {"began_boot_ms": began_ms, "ended_boot_ms": boot_ms(), "n_steps": n_steps}

    def _measure(self, seq_len: int, causal: bool) -> float:
        """Milliseconds of a step."""
        once = self._timed(seq_len, causal, 1)
        return self._timed(seq_len, causal, max(2, min(int(POINT_MS / max(once, 1e-3)), STEPS_MAX)))

    def _timed(self, seq_len: int, causal: bool, n_steps: int) -> float:
        began = self._streams.mark()
        for _ in range(n_steps):
            self._step(seq_len, causal)
        ended = self._streams.mark()
        ended.wait()
        return max(began.elapsed_ms(ended) / n_steps, 1e-3)

    def _step(self, seq_len: int, causal: bool) -> None:
        size: Size = self._buffers.size(seq_len)
        inputs = self._buffers.inputs(
            0, size
        )  # drawn once as one long row of numbers: any shape is a view of it
        if self._prepared_for != (seq_len, causal):
            self._prepared, self._prepared_for = self._kernel.prepare(inputs, causal), (seq_len, causal)
        self._kernel.run(self._prepared, inputs, self._buffers.plain.outputs(size), causal)
