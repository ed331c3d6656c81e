from __future__ import annotations

import pytest
from soak_kernels.tuning import HEAD_DIMS, PASSES, POLICY, choose, plan


def test_the_product_architectures_have_tiles_of_their_own() -> None:
    for arch in ("gfx906", "sm_90"):
        for pass_ in PASSES:
            for head_dim in HEAD_DIMS:
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
        ({"head_dim": 80}, "head_dim is 80; legal values: 64, 128"),
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
        choose("sm_90", **{**arguments, **changes})  # type: ignore[arg-type]
