"""The working child: `python -m soak.doctor.workout ENGINE GPU ARCH HEAD_DIM DTYPE`, one a card.

It says what torch and Triton are, waits for `card`, makes the card ready (compiles the load's kernels and
runs them once), waits for `go`, loads the card for three seconds, and ends. The end of stdin ends it at once,
whatever it is in. Before `card` it touches no card.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from soak.doctor.events import LOAD_S, Event, Imported, Loaded, Ready, Stopped, Torch, Triton

_TOKENS, _SEQ_LEN, _HEADS = 16_384, 1024, 16


Step = Callable[[], None]


def main() -> None:
    engine, gpu, arch, head_dim, dtype = sys.argv[1:6]
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no message
    orders: list[str] = []
    heard = threading.Condition()
    threading.Thread(target=_listen, args=(orders, heard), daemon=True).start()

    def say(event: Event) -> None:
        os.write(out, msgspec.json.encode(event) + b"\n")

    def wait_for(order: str) -> None:
        with heard:
            heard.wait_for(lambda: order in orders)

    stage = "torch"
    try:
        say(_torch())
        if engine == "gpu":
            stage = "triton"
            say(_triton())
        say(Imported())
        wait_for("card")
        stage = "card"
        begun_s = time.monotonic()
        step, kernel, offered = _of_cpu() if engine == "cpu" else _of_card(gpu, int(head_dim), dtype)
        stage = "compile"
        step()
        say(Ready(kernel, time.monotonic() - begun_s, offered))
        wait_for("go")
        stage = "load"
        say(_loaded(step))
    except Exception as error:  # noqa: BLE001 - the loop of this process: what ends it is said
        offline = _offline(arch, dtype) if engine == "gpu" and stage == "card" else ""
        say(Stopped(stage, _words(error), offline))
    os._exit(0)  # a runtime's own threads are not waited for


def _listen(orders: list[str], heard: threading.Condition) -> None:
    for line in sys.stdin:
        with heard:
            orders.append(line.strip())
            heard.notify_all()
    os._exit(0)


def _torch() -> Torch:
    import torch

    return Torch(str(torch.__version__), torch.version.cuda, torch.version.hip)


def _triton() -> Triton:
    from soak_kernels.environment import pin_compiler

    pin_compiler(os.environ)  # as the load does, so that both find the same in Triton's cache
    import triton

    return Triton(str(triton.__version__))


def _of_cpu() -> tuple[Step, str, tuple[str, ...]]:
    """Attention on every allowed core."""
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    q = torch.randn(1, _HEADS, 512, 64)

    def step() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)

    return step, "scaled_dot_product_attention of torch", ()


def _of_card(gpu: str, head_dim: int, dtype: str) -> tuple[Step, str, tuple[str, ...]]:
    """The load's own kernels on the card at this PCI address. Raises LoadError where it is not offered."""
    import torch
    from soak_kernels.functional import card_of

    from soak.load.device_gpu import address, find
    from soak.load.gradient import Outputs
    from soak.load.kernel_gpu import TritonKernel
    from soak.load.recipe import draw_inputs

    device = find(gpu)
    offered = tuple(address(index) or "" for index in range(torch.cuda.device_count()))
    kernel = TritonKernel(device, head_dim=head_dim, dtype=dtype, seq_len_max=_SEQ_LEN)
    inputs = draw_inputs(
        0, batch=_TOKENS // _SEQ_LEN, heads=_HEADS, seq_len=_SEQ_LEN, head_dim=head_dim,
        dtype=getattr(torch, dtype), device=device,
    )  # fmt: skip

    prepared = kernel.prepare(inputs, False)
    lse = torch.empty(inputs.q.shape[:3], dtype=torch.float64, device=device)
    outputs = Outputs(torch.empty_like(inputs.q), lse, *(torch.empty_like(inputs.q) for _ in range(3)))

    def step() -> None:
        kernel.run(prepared, inputs, outputs, False)
        torch.cuda.synchronize(device)

    return step, f"{kernel.name}, forward and backward, on {card_of(device).arch}", offered


def _loaded(step: Step) -> Loaded:
    begun_ms, end_s, n_steps = _boot_ms(), time.monotonic() + LOAD_S, 0
    while time.monotonic() < end_s:
        step()
        n_steps += 1
    return Loaded(n_steps, begun_ms, _boot_ms())


def _offline(arch: str, dtype: str) -> str:
    """Whether Triton compiles for the architecture, where the card itself is out of reach."""
    from soak_kernels.compile import compile_first

    try:
        compiled = compile_first(arch, dtype=dtype)
    except Exception as error:  # noqa: BLE001 - Triton raises whatever its stages raise
        return f"Triton does not compile for {arch} either: {_words(error)}"
    return f"Triton compiles for {arch} ({compiled.name})"


def _words(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return first if type(error).__name__ == "LoadError" else f"{type(error).__name__}: {first}"


def _boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


if __name__ == "__main__":
    main()
