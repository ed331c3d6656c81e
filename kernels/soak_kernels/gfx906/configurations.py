"""What there is to inspect for gfx906: the product's kernels, and the seed document's tiles as named
negatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from soak_kernels import mi50, mi50_portable
from soak_kernels.launch import Call
from soak_kernels.mi50_frame import HEAD_DIMS
from soak_kernels.mi50_portable import Tile

Role = Literal["product", "negative"]
PASSES = ("forward", "dq", "dkv")
# Matrix products of a pass, of 2 * M * N * D operations each. A backward is counted with 5, though its
# kernels do 7.
PRODUCTS = {"forward": 2, "dq": 3, "dkv": 4}
TILES_DEEP = 4  # blocks in the launch that is inspected: its main loop is entered more than once

# name -> (tiles, why there is such a kernel, launchers)
_KERNELS: dict[str, tuple[Mapping[tuple[str, int], Any], str, Callable[..., Any], Callable[..., Any]]] = {
    "mi50": (
        mi50.TILES, "Gluon: LDS layouts chosen here, operands transposed in registers",
        mi50.mi50_forward, mi50.mi50_backward,
    ),
    "mi50_portable": (
        mi50_portable.TILES,
        "plain Triton: right operands transposed beforehand, the head dimension in chunks",
        mi50_portable.mi50_portable_forward, mi50_portable.mi50_portable_backward,
    ),
}  # fmt: skip

# Tile sizes that the seed document gives an MI50, with the whole head dimension as one step, as it has them.
DOCUMENT = (
    ("document-short", Tile(64, 64, 128, 128), "seq_len up to 512: 64 x 64"),
    ("document-middle", Tile(128, 32, 128, 128), "seq_len up to 2048: 128 x 32"),
    ("document-long", Tile(32, 32, 128, 128), "seq_len above: 256 x 256 in sub-tiles of 32 x 32"),
    ("document-stages", Tile(64, 64, 128, 128, num_stages=4), "the best by its table: 64 x 64, 4 stages"),
)


@dataclass(frozen=True)
class Configuration:
    """One kernel as it is compiled. call: a launch of it, with tensors on the CPU that hold nothing yet."""

    name: str
    kernel: str
    role: Role
    pass_: str
    head_dim: int
    causal: bool
    block_m: int
    block_n: int
    tile: str
    reason: str
    call: Callable[[], Call]

    @property
    def operations(self) -> float:
        """Of one workgroup and trip of the main loop."""
        return 2.0 * PRODUCTS[self.pass_] * self.block_m * self.block_n * self.head_dim


def configurations() -> Iterator[Configuration]:
    """Every configuration: products first, then negatives."""
    for kernel, (tiles, reason, _, _) in _KERNELS.items():
        for pass_ in PASSES:
            for head_dim in HEAD_DIMS:
                for causal in (False, True):
                    name = f"{kernel}-{pass_}-d{head_dim}-{'causal' if causal else 'full'}"
                    tile = tiles[pass_, head_dim]
                    yield _configuration(name, kernel, "product", pass_, head_dim, causal, tile, reason)
    for name, tile, reason in DOCUMENT:
        yield _configuration(name, "mi50_portable", "negative", "forward", 128, False, tile, reason)


def _configuration(
    name: str, kernel: str, role: Role, pass_: str, head_dim: int, causal: bool, tile: Any, reason: str
) -> Configuration:
    return Configuration(
        name=name, kernel=kernel, role=role, pass_=pass_, head_dim=head_dim, causal=causal,
        block_m=tile.block_m, block_n=tile.block_n, tile=tile.name, reason=reason,
        call=lambda: _call(kernel, pass_, head_dim, causal, tile),
    )  # fmt: skip


def _call(kernel: str, pass_: str, head_dim: int, causal: bool, tile: Any) -> Call:
    """The launch of one pass, as its launcher makes it."""
    tiles, _, forward, backward = _KERNELS[kernel]
    tiles = {**tiles, (pass_, head_dim): tile}
    q, lse = _tensors(TILES_DEEP * max(tile.block_m, tile.block_n), head_dim)
    calls: list[Call] = []
    if pass_ == "forward":
        forward(q, q, q, causal=causal, tiles=tiles, launch=calls.append)
    else:
        backward(q, q, q, q, lse, q, causal=causal, tiles=tiles, launch=calls.append)
    return next(call for call in calls if call.kernel.__name__ == f"_{pass_}_kernel")


def _tensors(seq_len: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros((1, 1, seq_len, head_dim), dtype=torch.float16), torch.zeros(
        (1, 1, seq_len), dtype=torch.float64
    )
