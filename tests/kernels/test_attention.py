"""Attention under Triton's interpreter against float64, with everything around and inside every output
poisoned."""

from __future__ import annotations

from typing import Any

import pytest
from soak_kernels.tuning import PASSES, choose

FORWARD_LIMIT = 1e-3  # relative L2; float16 and float32
GRADIENT_LIMIT = 2e-3
SEQ_LENS = (1, 17, 63, 64, 65, 127, 129, 200)
PRODUCTS = ("gfx906", "sm_90")
OTHER = "any-other"


def check(answer: dict[str, Any]) -> None:
    assert answer["intact"], "written outside a tensor"
    assert answer["o"] < FORWARD_LIMIT
    assert answer["lse"] < FORWARD_LIMIT
    for name in ("dq", "dk", "dv"):
        assert answer[name] < GRADIENT_LIMIT, name


@pytest.mark.parametrize(
    ("arch", "seq_len"),
    [(arch, seq_len) for arch in PRODUCTS for seq_len in SEQ_LENS]
    + [(OTHER, seq_len) for seq_len in (1, 65, 127)],
)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_float64(interpreter: Any, arch: str, head_dim: int, causal: bool, seq_len: int) -> None:
    answer = interpreter.call(
        "compare_with_reference",
        arch=arch,
        batch=1,
        heads=1,
        seq_len=seq_len,
        head_dim=head_dim,
        causal=causal,
    )
    check(answer)
    for pass_ in PASSES:
        tile, reason = choose(arch, head_dim=head_dim, seq_len=seq_len, causal=causal, pass_=pass_)
        assert answer["ran"][pass_] == tile.name
        assert reason.startswith("fallback:") == (arch == OTHER)


@pytest.mark.parametrize("arch", [*PRODUCTS, OTHER])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_and_batches_and_repeats(interpreter: Any, arch: str, causal: bool) -> None:
    answer = interpreter.call(
        "compare_with_reference",
        arch=arch,
        batch=2,
        heads=1,
        seq_len=70,
        head_dim=64,
        causal=causal,
        repeat=True,
    )
    check(answer)
    assert answer["identical"], "the same inputs gave other bits"


@pytest.mark.parametrize("causal", [False, True])
def test_float32(interpreter: Any, causal: bool) -> None:
    """bfloat16 has no test here: the interpreter multiplies its bit patterns as integers. `bench` checks it
    on a card."""
    answer = interpreter.call(
        "compare_with_reference",
        arch=OTHER,
        batch=1,
        heads=1,
        seq_len=65,
        head_dim=64,
        causal=causal,
        dtype="float32",
    )
    check(answer)


@pytest.mark.parametrize("arch", PRODUCTS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_head_of_nan_stays_in_its_head(interpreter: Any, arch: str, causal: bool) -> None:
    assert interpreter.call("neighbour_is_nan", arch=arch, seq_len=65, causal=causal) == {
        "head_0_same": True,
        "head_1_nan": True,
    }


@pytest.mark.parametrize("arch", PRODUCTS)
@pytest.mark.parametrize("kind", ["largest", "tiny", "mixed", "one-huge-row"])
def test_extreme_scores(interpreter: Any, arch: str, kind: str) -> None:
    answer = interpreter.call("extreme", kind=kind, arch=arch, seq_len=65, causal=kind == "mixed")
    assert answer["finite"]
    assert answer["lse"] < FORWARD_LIMIT
    # tiny: the inputs are subnormal, 2^-24 lies between neighbours, so nothing relative is left.
    if kind != "tiny":
        assert answer["o"] < FORWARD_LIMIT
    # mixed: a recomputed score of 1e11 rounds elsewhere than the forward's (here: NumPy's order of sums).
    if kind in ("largest", "one-huge-row"):
        assert answer["dv"] < GRADIENT_LIMIT


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_public_function_has_gradients(interpreter: Any, causal: bool, scale: float | None) -> None:
    answer = interpreter.call("autograd", causal=causal, scale=scale)
    assert answer["o"] < FORWARD_LIMIT
    assert max(answer["dq"], answer["dk"], answer["dv"]) < GRADIENT_LIMIT


def test_bad_input_is_refused_by_name(interpreter: Any) -> None:
    shape = "legal: [batch, heads, seq_len, head_dim], each at least 1"
    expected = {
        "head_dim": "q has head_dim 96; legal values: 64, 128",
        "dtype": "q has dtype int32; legal values: float16, bfloat16, float32",
        "mixed dtype": "k has dtype float32; legal: float16",
        "empty batch": f"q has shape [0, 2, 17, 64]; {shape}",
        "no rows": f"q has shape [1, 2, 0, 64]; {shape}",
        "other shape": "k has shape [1, 2, 16, 64]; legal: [1, 2, 17, 64], as q demands",
        "three dimensions": f"q has shape [2, 17, 64]; {shape}",
        "strides": "v has strides [2176, 0, 64, 1]; legal: contiguous (v.contiguous() makes it so)",
        "device": "v is on meta; legal: cpu, where q is",
        "scale": "scale is nan; legal values: finite and above 0",
        "negative scale": "scale is -1.0; legal values: finite and above 0",
        "out": "lse has dtype float32; legal: float64",
        "workspace": "workspace is of another shape, type or configuration; "
        "legal: allocate_workspace(q, config)",
        "do": "do has dtype bfloat16; legal: float16",
        "lse": "lse has shape [1, 1, 17]; legal: [1, 2, 17], as q demands",
        "public": "head_dim is 96; legal values: 64, 128",
    }
    assert interpreter.call("refusals") == expected
