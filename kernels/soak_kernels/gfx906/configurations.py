"""What there is to inspect for gfx906: the product's kernels, and the tiles of a tuning document as named
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


@dataclass(frozen=True)
class _Kernel:
    """An attention kernel: its tiles by pass and head dimension, and its two launchers."""

    tiles: Mapping[tuple[str, int], Any]
    forward: Callable[..., Any]
    backward: Callable[..., Any]


_KERNELS = {
    "mi50": _Kernel(mi50.TILES, mi50.mi50_forward, mi50.mi50_backward),
    "mi50_portable": _Kernel(
        mi50_portable.TILES, mi50_portable.mi50_portable_forward, mi50_portable.mi50_portable_backward
    ),
}


def _of_document(block_m: int, block_n: int, num_stages: int, words: str) -> Tile:
    """A tile with the whole head dimension as one step, as the document has them."""
    return Tile(
        block_m, block_n, 128, 128, num_stages=num_stages, reason=f"the document's tile {words}; spills"
    )


# Tiles that a tuning document gives an MI50 at head_dim 128. None of them can be a product. The default of
# its table, 128 x 128 in two stages, is left out: the compiler is not done with it after a minute and a half.
DOCUMENT = {
    "document-short": _of_document(64, 64, 1, "for seq_len up to 512"),
    "document-middle": _of_document(128, 32, 1, "for seq_len up to 2048"),
    "document-long": _of_document(32, 32, 1, "above: 256 x 256 in pieces of 32 x 32"),
    "document-checklist": _of_document(64, 64, 4, "of its table and its checklist"),
    "document-fastest": _of_document(32, 32, 4, "of its table, the fastest there"),
}


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
    for kernel, entry in _KERNELS.items():
        for pass_ in PASSES:
            for head_dim in HEAD_DIMS:
                for causal in (False, True):
                    name = f"{kernel}-{pass_}-d{head_dim}-{'causal' if causal else 'full'}"
                    tile = entry.tiles[pass_, head_dim]
                    yield configuration(name, kernel, pass_, head_dim, causal, tile)
    for name, tile in DOCUMENT.items():
        yield configuration(name, "mi50_portable", "forward", 128, False, tile, role="negative")


def configuration(
    name: str, kernel: str, pass_: str, head_dim: int, causal: bool, tile: Any, *, role: Role = "product"
) -> Configuration:
    """A configuration with a tile of its own: what a search over tiles inspects."""
    return Configuration(
        name=name, kernel=kernel, role=role, pass_=pass_, head_dim=head_dim, causal=causal,
        block_m=tile.block_m, block_n=tile.block_n, tile=tile.name, reason=tile.reason,
        call=lambda: _call(kernel, pass_, head_dim, causal, tile),
    )  # fmt: skip


def _call(kernel: str, pass_: str, head_dim: int, causal: bool, tile: Any) -> Call:
    """The launch of one pass, as its launcher makes it."""
    entry = _KERNELS[kernel]
    tiles = {**entry.tiles, (pass_, head_dim): tile}
    q, lse = _tensors(TILES_DEEP * max(tile.block_m, tile.block_n), head_dim)
    calls: list[Call] = []
    if pass_ == "forward":
        entry.forward(q, q, q, causal=causal, tiles=tiles, launch=calls.append)
    else:
        entry.backward(q, q, q, q, lse, q, causal=causal, tiles=tiles, launch=calls.append)
    return next(call for call in calls if call.kernel.__name__ == f"_{pass_}_kernel")


def _tensors(seq_len: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An input and a log-sum-exp of one head."""
    x = torch.zeros((1, 1, seq_len, head_dim), dtype=torch.float16)
    return x, torch.zeros((1, 1, seq_len), dtype=torch.float64)
