"""Which tile a kernel uses, as data with reasons: (arch, head_dim, seq_len, causal, pass, dtype) -> (config,
reason).

The figures for gfx906 are static (compiled and modelled without a card); `python -m soak_kernels.compile`
repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from soak_kernels.shape import DTYPES, HEAD_DIMS, head_dims_in_words, padded

Pass = Literal["forward", "dq", "dkv"]
PASSES: tuple[Pass, ...] = ("forward", "dq", "dkv")
PRODUCT_HEAD_DIMS = (64, 128)  # those that the load runs, and for which cards have tiles of their own


@dataclass(frozen=True)
class TileConfig:
    """One compiled shape of one kernel.

    block_m, block_n: rows of Q and of K/V a tile; chunk_qk: head dimension a step of the products that
    contract over it; chunk_pv: head dimension a piece of the accumulators. chunk_qk == head_dim keeps the
    stationary operand on chip, less re-reads it in each tile. transposed: the operand right of such a product
    comes from a copy [D, S] in the workspace; v_transposed: so does V in P V.
    """

    block_m: int
    block_n: int
    chunk_qk: int
    chunk_pv: int
    transposed: bool
    num_warps: int
    num_stages: int
    v_transposed: bool = False

    @property
    def name(self) -> str:
        """Short and unique: `128x32.qk16.pv16.t.w4.s1`."""
        kind = ("t" if self.transposed else "n") + (".vt" if self.v_transposed else "")
        return (
            f"{self.block_m}x{self.block_n}.qk{self.chunk_qk}.pv{self.chunk_pv}"
            f".{kind}.w{self.num_warps}.s{self.num_stages}"
        )


@dataclass(frozen=True)
class AttentionConfig:
    """The three kernels of one attention, with the reason of each choice (a run stores it)."""

    forward: TileConfig
    dq: TileConfig
    dkv: TileConfig
    reasons: tuple[str, str, str]


@dataclass(frozen=True)
class Rule:
    """A line of the policy; the first that matches is taken. seq_len_max and causal: None for any."""

    arch: str
    pass_: Pass
    head_dim: int
    tile: TileConfig
    reason: str
    dtypes: tuple[str, ...]
    seq_len_max: int | None = None
    causal: bool | None = None


def _chunked(m: int, n: int, chunk: int) -> TileConfig:
    return TileConfig(m, n, chunk, chunk, transposed=True, num_warps=4, num_stages=1)


def _resident(m: int, n: int, head_dim: int, num_warps: int = 8, num_stages: int = 3) -> TileConfig:
    return TileConfig(m, n, head_dim, head_dim, False, num_warps, num_stages)


_HALF = ("float16", "bfloat16")
_ONLY_FLOAT16 = ("float16",)  # gfx906 has no bfloat16 arithmetic
_DOT2 = (
    "gfx906 has no matrix unit, only v_dot2 from registers: the head dimension goes in chunks, the left "
    "operand is re-read, the right one is contiguous along its columns (no 8-way LDS conflict); "
)
_WGMMA = "sm_90 has wgmma: "
_SHORT = "few blocks a row, so 64 keys a block: 1.3 times the speed of 128 at seq_len 512 on an H200"

POLICY: tuple[Rule, ...] = (
    Rule("gfx906", "forward", 64, _chunked(64, 64, 16), _DOT2 + "no spill", _ONLY_FLOAT16),
    Rule("gfx906", "forward", 128, _chunked(128, 32, 16), _DOT2 + "no spill", _ONLY_FLOAT16),
    Rule("gfx906", "dq", 64, _chunked(64, 64, 16), _DOT2 + "no spill", _ONLY_FLOAT16),
    Rule("gfx906", "dq", 128, _chunked(128, 32, 16), _DOT2 + "no spill", _ONLY_FLOAT16),
    Rule("gfx906", "dkv", 64, _chunked(32, 64, 32), _DOT2 + "no spill", _ONLY_FLOAT16),
    Rule("gfx906", "dkv", 128, _chunked(32, 64, 32), _DOT2 + "no spill", _ONLY_FLOAT16),
    Rule("sm_90", "forward", 64, _resident(128, 128, 64), _WGMMA + "128 x 128, K and V three deep", _HALF),
    Rule("sm_90", "forward", 128, _resident(128, 64, 128, 4, 2), _WGMMA + _SHORT, _HALF, 1024, True),
    Rule("sm_90", "forward", 128, _resident(128, 128, 128), _WGMMA + "128 x 128, 224 KB three deep", _HALF),
    Rule("sm_90", "dq", 64, _resident(128, 64, 64), _WGMMA + "Q, dO, dQ of 128 rows on chip", _HALF),
    Rule("sm_90", "dq", 128, _resident(128, 64, 128), _WGMMA + "Q, dO, dQ of 128 rows on chip", _HALF),
    Rule("sm_90", "dkv", 64, _resident(64, 128, 64), _WGMMA + "dK, dV of 128 rows in registers", _HALF),
    Rule("sm_90", "dkv", 128, _resident(64, 128, 128), _WGMMA + "dK, dV of 128 rows in registers", _HALF),
)


def _generic(pass_: Pass, head_dim: int, dtype: str) -> tuple[TileConfig, str]:
    """What every card with 64 KB of on-chip memory can hold: small tiles, one stage, nothing assumed.
    head_dim: a power of two."""
    wide = head_dim > 128
    if dtype == "float32":
        block, chunk = (16, 64) if wide else (32, head_dim)
        tile = TileConfig(block, block, chunk, chunk, False, 4, 1)
        return tile, "float32 products are exact (ieee), not tensor cores, so registers bound the tile"
    if wide:
        block = 16 if pass_ == "dkv" else 32
        tile = TileConfig(block, block, head_dim, head_dim, False, 4, 1)
        return tile, f"{block} x {block} of a wide head fits 64 KB of on-chip memory"
    tile = TileConfig(64, 32, head_dim, head_dim, False, 4, 1)
    if pass_ == "dkv":
        tile = TileConfig(32, 64, head_dim, head_dim, False, 4, 1)
    return tile, "64 x 32 fits 64 KB of on-chip memory and 256 registers on cards with a matrix unit"


def choose(
    arch: str, *, head_dim: int, seq_len: int, causal: bool, pass_: Pass, dtype: str = "float16"
) -> tuple[TileConfig, str]:
    """The tile for one kernel and why.

    arch: "sm_90", "gfx906", ... (see `device.architecture`); seq_len: keys of a row; dtype: torch's name
    without "torch.". A head_dim between powers of two gets the tile of the next one. A card or type without a
    line of its own gets the generic tile, and the reason then begins with "fallback:".
    Raises ValueError for a head_dim, seq_len, pass or dtype that no kernel has.
    """
    if head_dim not in HEAD_DIMS:
        raise ValueError(f"head_dim is {head_dim}; legal values: {head_dims_in_words(HEAD_DIMS)}")
    if seq_len < 1:
        raise ValueError(f"seq_len is {seq_len}; legal values: 1 and above")
    if pass_ not in PASSES:
        raise ValueError(f"pass is {pass_!r}; legal values: {', '.join(PASSES)}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}; legal values: {', '.join(DTYPES)}")
    width = padded(head_dim)
    as_width = "" if width == head_dim else f"; head_dim {head_dim} is padded to {width}"
    for rule in POLICY:
        if (
            arch == rule.arch
            and pass_ == rule.pass_
            and width == rule.head_dim
            and dtype in rule.dtypes
            and (rule.seq_len_max is None or seq_len <= rule.seq_len_max)
            and (rule.causal is None or rule.causal == causal)
        ):
            return rule.tile, rule.reason + as_width
    tile, reason = _generic(pass_, width, dtype)
    return tile, f"fallback: no {pass_} tile for {arch} {dtype} head_dim {head_dim}; {reason}{as_width}"


def plan(arch: str, *, head_dim: int, seq_len: int, causal: bool, dtype: str = "float16") -> AttentionConfig:
    """`choose` for the three kernels of one attention; errors as there."""
    chosen = [
        choose(arch, head_dim=head_dim, seq_len=seq_len, causal=causal, pass_=pass_, dtype=dtype)
        for pass_ in PASSES
    ]
    (forward, why_forward), (dq, why_dq), (dkv, why_dkv) = chosen
    return AttentionConfig(forward, dq, dkv, (why_forward, why_dq, why_dkv))


# --- what fits on the chip, by the rule of FlashAttention 1

_ON_CHIP_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10}
_ON_CHIP_ELSEWHERE = 64 << 10  # gfx906 and every other card that Triton compiles for have this much


def on_chip_bytes(arch: str) -> int:
    """Shared memory (LDS) that one program can have; for a card not known here, what all of them have."""
    return _ON_CHIP_BYTES.get(arch, _ON_CHIP_ELSEWHERE)


def block_floats(block: int, head_dim: int) -> int:
    """2 B + 3 B D + B^2: the two statistics of B rows, tiles of Q, K and V, and their scores, in float32."""
    return 2 * block + 3 * block * head_dim + block * block


def largest_block(arch: str, head_dim: int, *, most: int = 64) -> tuple[int, str]:
    """The largest power of two B (16 to `most`) whose `block_floats` fit the card, and the sum in words.

    head_dim: a power of two. Raises ValueError, with the numbers, where not even 16 fits."""
    limit = on_chip_bytes(arch)
    block = most
    while block >= 16:
        needed = 4 * block_floats(block, head_dim)
        if needed <= limit:
            return block, f"{block} rows: 4 (2 B + 3 B D + B^2) = {needed} of {limit} bytes on chip"
        block //= 2
    raise ValueError(
        f"head_dim is {head_dim}; legal: what {arch} has room for; 16 rows take {needed} of its {limit} bytes"
    )
