from __future__ import annotations

import pytest
from soak_kernels.shape import HEAD_DIMS
from soak_kernels.tuning import (
    PASSES,
    POLICY,
    PRODUCT_HEAD_DIMS,
    block_floats,
    choose,
    largest_block,
    on_chip_bytes,
    plan,
)


def test_the_product_architectures_have_tiles_of_their_own() -> None:
    for arch in ("gfx906", "sm_90"):
        for pass_ in PASSES:
            for head_dim in PRODUCT_HEAD_DIMS:
                for causal in (False, True):
                    _, reason = choose(arch, head_dim=head_dim, seq_len=512, causal=causal, pass_=pass_)
                    assert reason.startswith(arch)


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [("sm_80", "float16"), ("gfx942", "bfloat16"), ("gfx906", "bfloat16"), ("sm_90", "float32")],
)
def test_a_fallback_says_so(arch: str, dtype: str) -> None:
    config = plan(arch, head_dim=128, seq_len=512, causal=True, dtype=dtype)
    for pass_, reason in zip(PASSES, config.reasons, strict=True):
        assert reason.startswith(f"fallback: no {pass_} tile for {arch} {dtype} head_dim 128; ")


def test_every_tile_is_possible() -> None:
    for rule in POLICY:
        tile = rule.tile
        assert rule.head_dim % tile.chunk_qk == 0
        assert rule.head_dim % tile.chunk_pv == 0
        for size in (tile.block_m, tile.block_n, tile.chunk_qk, tile.chunk_pv):
            assert size >= 16, "tl.dot takes 16 and above"
            assert size & (size - 1) == 0, "tl.arange takes powers of two"
        assert rule.reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 72}, "head_dim is 72; legal values: multiples of 16 from 32 to 256"),
        ({"seq_len": 0}, "seq_len is 0; legal values: 1 and above"),
        ({"pass_": "dk"}, "pass is 'dk'; legal values: forward, dq, dkv"),
        ({"dtype": "int8"}, "dtype is int8; legal values: float16, bfloat16, float32"),
    ],
)
def test_bad_input(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {
        "head_dim": 64,
        "seq_len": 1,
        "causal": True,
        "pass_": "dq",
        "dtype": "float16",
    }
    with pytest.raises(ValueError, match=message):
        choose("sm_90", **{**arguments, **changes})  # type: ignore[arg-type]  # wrong on purpose


def test_a_head_between_powers_of_two_has_the_tile_of_the_next_and_says_so() -> None:
    for pass_ in PASSES:
        tile, reason = choose("sm_90", head_dim=96, seq_len=4096, causal=False, pass_=pass_)
        whole, why = choose("sm_90", head_dim=128, seq_len=4096, causal=False, pass_=pass_)
        assert (tile, reason) == (whole, f"{why}; head_dim 96 is padded to 128")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_a_generic_tile_fits_what_every_card_has(head_dim: int, dtype: str) -> None:
    """Three tiles of rows at a time: the two operands of a product, and the one that stays."""
    size = 4 if dtype == "float32" else 2
    for pass_ in PASSES:
        tile, _ = choose("any-other", head_dim=head_dim, seq_len=64, causal=True, pass_=pass_, dtype=dtype)
        assert size * tile.chunk_qk * (tile.block_m + tile.block_n) <= on_chip_bytes("any-other")


def test_the_rule_of_the_first_flash_attention() -> None:
    """2 B + 3 B D + B^2 floats: 28,928 bytes for 32 rows of 64, 28,672 of them tiles."""
    assert 4 * block_floats(32, 64) == 28_928 == 28_672 + 4 * 2 * 32
    assert largest_block("gfx906", 64) == (
        32,
        "32 rows: 4 (2 B + 3 B D + B^2) = 28928 of 65536 bytes on chip",
    )
    assert largest_block("sm_90", 64)[0] == 64
    for arch in ("gfx906", "sm_75", "sm_80", "sm_90"):
        for head_dim in (32, 64, 128, 256):
            block, _ = largest_block(arch, head_dim)
            assert 4 * block_floats(block, head_dim) <= on_chip_bytes(arch)


def test_a_block_that_cannot_fit_is_refused_with_the_numbers() -> None:
    message = "head_dim is 512; legal: what gfx906 has room for; 16 rows take 99456 of its 65536 bytes"
    with pytest.raises(ValueError, match=message):
        largest_block("gfx906", 512)
