"""What is verified: one kernel on one device, as something that computes attention and its gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch

from soak.load.cgroup import allowed_cores
from soak.load.engine import LoadError
from soak.load.gradient import Outputs
from soak.load.recipe import Inputs, draw_inputs
from soak.verify.messages import About, Order

Attend = Callable[[Inputs, bool], Outputs]
Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]
OTHER_HEAD_DIMS = (64, 128)  # verified beside the load's where the kernel has them


class UsageError(Exception):
    """The order names what there is not."""


@dataclass(frozen=True)
class Subject:
    """`attend(inputs, causal)`: forward and backward of q, do [B, H, Sq, D] and k, v [B, Hkv, Sk, D]; causal
    is aligned at the bottom right. `forward(q, k, v, causal)`: O alone.

    `head_dims`: the load's first. `rectangular`: the masks with which Sq may differ from Sk. `grouped`: Hkv
    may be a divisor of H.
    `extreme_gradients`: "" where gradients stay finite whatever the scores are; else why they do not.
    `engine`: one of ENGINES; a round takes its shapes by it, for a CPU can afford less than a card.
    """

    about: About
    device: torch.device
    dtype: torch.dtype
    head_dims: tuple[int, ...]
    attend: Attend
    forward: Forward
    rectangular: tuple[bool, ...] = (False, True)
    grouped: bool = True
    extreme_gradients: str = ""
    engine: str = "gpu"

    def draw(self, seed: int, *, batch: int, heads: int, seq_len: int) -> Inputs:
        """The recipe's inputs at the load's head dimension, in its type and on the device."""
        return draw_inputs(
            seed, batch=batch, heads=heads, seq_len=seq_len, head_dim=self.head_dims[0], dtype=self.dtype,
            device=self.device,
        )  # fmt: skip

    @property
    def is_interpreted(self) -> bool:
        """Speed and memory mean nothing."""
        return self.engine == "interpreter"


def subject_of(order: Order) -> Subject:
    """Finds the device, chooses the kernel. Raises UsageError, LoadError and what the runtime raises."""
    if order.engine == "cpu":
        return _of_cpu(order)
    if order.engine == "interpreter":
        return _of_kernels(order, torch.device("cpu"), {"torch": str(torch.__version__)})
    from soak.load import device_gpu

    device = device_gpu.find(order.gpu)
    torch.cuda.set_device(device)
    return _of_kernels(order, device, device_gpu.versions())


def _of_cpu(order: Order) -> Subject:
    """The load's own kernel, called as the load calls it: a head at a time, one torch thread a lane."""
    from soak.load import engine_cpu

    lanes = ThreadPoolExecutor(allowed_cores(), initializer=torch.set_num_threads, initargs=(1,))

    def attend(inputs: Inputs, causal: bool) -> Outputs:
        batch, heads = inputs.q.shape[:2]
        each = [
            Inputs(*(x[b : b + 1, h : h + 1] for x in inputs)) for b in range(batch) for h in range(heads)
        ]
        slices = list(lanes.map(engine_cpu.attention, each, repeat(causal)))
        stacked = (torch.stack(tensors) for tensors in zip(*slices, strict=True))
        return Outputs(*(x.view(batch, heads, *x.shape[1:]) for x in stacked))

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        def one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            o: torch.Tensor = torch._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)[0]
            return o

        return torch.cat(list(lanes.map(one, *(torch.split(x, 1) for x in (q, k, v)))))

    if order.kernel not in ("auto", engine_cpu.KERNEL):
        raise UsageError(f"the CPU's load has no kernel {order.kernel!r}; use auto or {engine_cpu.KERNEL}")
    versions = {"torch": str(torch.__version__)}
    about = About(order.gpu, engine_cpu.KERNEL, engine_cpu.KERNEL_REASON, order.dtype, versions)
    return Subject(
        about,
        torch.device("cpu"),
        getattr(torch, order.dtype),
        _head_dims(order, lambda _: True),
        attend,
        forward,
        rectangular=(False,),  # the load has no other; PyTorch aligns its mask at the top left
        grouped=False,
        extreme_gradients="PyTorch's backward takes exp(score - LSE), which overflows from scores of 1e8 on",
        engine="cpu",
    )


def _of_kernels(order: Order, device: torch.device, versions: Mapping[str, str]) -> Subject:
    """A kernel of `soak_kernels`, through the function that everybody calls."""
    try:
        import triton
    except ModuleNotFoundError as error:
        sentence = "Triton is not installed, and these kernels need it; install gpu-soak[gpu]"
        raise LoadError("compile_error", sentence) from error
    from soak_kernels import KERNELS, attention, choose

    if order.kernel not in ("auto", *KERNELS):
        raise UsageError(f"there is no kernel {order.kernel!r}; legal: auto, {', '.join(KERNELS)}")
    dtype: torch.dtype = getattr(torch, order.dtype)

    def choice(head_dim: int, kernel: str, seq_k: int = 512) -> Any:
        q, k, v = (
            torch.empty((1, 16, rows, head_dim), dtype=dtype, device=device) for rows in (512, seq_k, seq_k)
        )
        return choose(q, k, v, kernel=kernel)

    try:
        found = choice(order.head_dim, order.kernel)
    except ValueError as error:
        raise LoadError("compile_error", f"{order.kernel} cannot run here: {error}") from error
    kernel: str = found.kernel

    def is_able(head_dim: int, seq_k: int = 512) -> bool:
        try:
            choice(head_dim, kernel, seq_k)
        except ValueError:
            return False
        return True

    def attend(inputs: Inputs, causal: bool) -> Outputs:
        q, k, v = (x.detach().requires_grad_() for x in inputs[:3])
        o, lse = attention(q, k, v, is_causal=causal, enable_gqa=True, kernel=kernel, return_lse=True)
        gradients = torch.autograd.grad(o, (q, k, v), inputs.do)
        return Outputs(o.detach(), lse, *gradients)

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        o = attention(q, k, v, is_causal=causal, kernel=kernel)
        assert isinstance(o, torch.Tensor)
        return o

    where = "by Triton's interpreter, small shapes: " if order.engine == "interpreter" else ""
    about = About(
        order.gpu,
        kernel,
        where + str(found).removeprefix(f"{kernel}: "),
        order.dtype,
        {**versions, "triton": str(triton.__version__)},
    )
    return Subject(
        about,
        device,
        dtype,
        _head_dims(order, is_able),
        attend,
        forward,
        rectangular=(False, True) if is_able(order.head_dim, 511) else (),
        engine=order.engine,
    )


def _head_dims(order: Order, is_able: Callable[[int], bool]) -> tuple[int, ...]:
    others = (d for d in OTHER_HEAD_DIMS if d != order.head_dim and is_able(d))
    return (order.head_dim, *others)
