"""What there is to inspect for gfx906: the product's kernels, and the seed document's tiles as named
negatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from soak_kernels import mi50_portable
from soak_kernels.launch import Call
from soak_kernels.mi50_frame import HEAD_DIMS
from soak_kernels.mi50_portable import Tile

Role = Literal["product", "negative"]
PASSES = ("forward", "dq", "dkv")
# Matrix products of a pass, of 2 * M * N * D operations each. A backward is counted with 5, though its
# kernels do 7.
PRODUCTS = {"forward": 2, "dq": 3, "dkv": 4}
TILES_DEEP = 4  # blocks in the launch that is inspected: its main loop is entered more than once

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
    for pass_ in PASSES:
        for head_dim in HEAD_DIMS:
            for causal in (False, True):
                yield _portable(pass_, head_dim, causal)
    for name, tile, reason in DOCUMENT:
        yield _document(name, tile, reason)


def _portable(pass_: str, head_dim: int, causal: bool) -> Configuration:
    tile = mi50_portable.TILES[pass_, head_dim]
    return Configuration(
        name=f"mi50_portable-{pass_}-d{head_dim}-{'causal' if causal else 'full'}",
        kernel="mi50_portable", role="product", pass_=pass_, head_dim=head_dim, causal=causal,
        block_m=tile.block_m, block_n=tile.block_n, tile=tile.name,
        reason="plain Triton: right operands transposed beforehand, the head dimension in chunks",
        call=lambda: _portable_call(pass_, head_dim, causal, {**mi50_portable.TILES}),
    )  # fmt: skip


def _document(name: str, tile: Tile, reason: str) -> Configuration:
    return Configuration(
        name=name, kernel="mi50_portable", role="negative", pass_="forward", head_dim=128, causal=False,
        block_m=tile.block_m, block_n=tile.block_n, tile=tile.name, reason=reason,
        call=lambda: _portable_call("forward", 128, False, {("forward", 128): tile}),
    )  # fmt: skip


def _portable_call(pass_: str, head_dim: int, causal: bool, tiles: dict[tuple[str, int], Tile]) -> Call:
    tile = tiles[pass_, head_dim]
    q, lse = _tensors(TILES_DEEP * max(tile.block_m, tile.block_n), head_dim)
    calls: list[Call] = []
    if pass_ == "forward":
        mi50_portable.mi50_portable_forward(q, q, q, causal=causal, tiles=tiles, launch=calls.append)
    else:
        mi50_portable.mi50_portable_backward(
            q, q, q, q, lse, q, causal=causal, tiles=tiles, launch=calls.append
        )
    return next(call for call in calls if call.kernel.__name__ == f"_{pass_}_kernel")


def _tensors(seq_len: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros((1, 1, seq_len, head_dim), dtype=torch.float16), torch.zeros(
        (1, 1, seq_len), dtype=torch.float64
    )
