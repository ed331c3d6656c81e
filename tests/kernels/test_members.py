"""Which kernel is used for what, without a card or a tensor."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from soak_kernels.members import MEMBERS, SPLIT_KEYS, Card, Choice, choose, n_splits, refusal
from soak_kernels.shape import DTYPES, HEAD_DIMS, Shape, padded

KERNELS = Path(__file__).parents[2] / "kernels"
HOPPER = Card("sm_90", (3, 9), 132)
MI50 = Card("gfx906", (3, 9), 60)
SHAPE = Shape(8, 16, 16, 4096, 4096, 128)


def test_the_card_decides() -> None:
    chosen = choose(HOPPER, SHAPE, dtype="bfloat16")
    assert (chosen.kernel, chosen.refused, chosen.unproven) == ("flash_hopper", (), True)
    assert choose(Card("sm_80", (3, 9), 108), SHAPE, dtype="float16").kernel == "flash_v2"
    chosen = choose(MI50, SHAPE, dtype="float16")
    assert (chosen.kernel, chosen.refused, chosen.unproven) == ("mi50", (), True)


def test_what_was_preferred_and_cannot_be_is_told_with_its_reason() -> None:
    old = replace(MI50, triton=(3, 6))
    assert str(choose(old, SHAPE, dtype="float16")) == (
        "mi50_portable: written for gfx906: plain Triton for gfx906: right operands transposed beforehand; "
        "not mi50, since it needs Triton 3.9 and this is 3.6"
    )
    assert choose(MI50, SHAPE, dtype="float32") == Choice(
        "flash_v2",
        f"on gfx906: {MEMBERS['flash_v2'].summary}",
        (
            ("mi50", "it has float16 and the tensors are float32"),
            ("mi50_portable", "it has float16 and the tensors are float32"),
        ),
    )
    uneven = choose(HOPPER, replace(SHAPE, seq_q=1), dtype="float16")
    assert uneven.refused == (
        ("flash_hopper", "it needs as many keys as rows and the tensors have 4096 and 1"),
    )
    many = Shape(2**19, 32, 32, 7, 7, 64)  # padded to 128 rows a head: one more than 32 bits count
    assert choose(HOPPER, many, dtype="float16").refused == (
        ("flash_hopper", f"it takes fewer than {2**31} padded rows in all and the tensors have {2**31}"),
    )
    assert choose(HOPPER, replace(many, heads=31, kv_heads=31), dtype="float16").kernel == "flash_hopper"
    narrow = choose(MI50, replace(SHAPE, head_dim=96), dtype="float16")
    assert narrow.refused[0] == ("mi50", "it has head_dim 64, 128 and the tensors have 96")


def test_what_failed_on_the_card_is_passed_over() -> None:
    wrong = (("mi50", "its dq was wrong here"),)
    once = choose(MI50, SHAPE, dtype="float16", failed=wrong)
    assert (once.kernel, once.refused, once.unproven) == ("mi50_portable", wrong, True)
    both = (*wrong, ("mi50_portable", "it does not run here"))
    twice = choose(MI50, SHAPE, dtype="float16", failed=both)
    assert (twice.kernel, twice.refused, twice.unproven) == ("flash_v2", both, False)


def test_a_name_is_taken_or_refused_never_replaced() -> None:
    assert choose(HOPPER, SHAPE, dtype="float16", kernel="naive") == Choice("naive", "asked for by name")
    lineage = "naive, flash_v1, flash_v2, flash_v2_kt, flash_v2_vt, flash_splitkv, flash_hopper"
    with pytest.raises(
        ValueError, match=r"kernel is 'best'; legal values: auto, naive, flash_v1, .*mi50_portable"
    ):
        choose(HOPPER, SHAPE, dtype="float16", kernel="best")
    message = (
        f"kernel is 'mi50', but it is written for gfx906 and this is sm_90; legal values: auto, {lineage}$"
    )
    with pytest.raises(ValueError, match=message):
        choose(HOPPER, SHAPE, dtype="float16", kernel="mi50")
    with pytest.raises(ValueError, match="but it has float16 and the tensors are bfloat16"):
        choose(MI50, SHAPE, dtype="bfloat16", kernel="mi50_portable")


def test_long_rows_of_few_heads_are_split() -> None:
    long = Shape(1, 2, 2, 64, 32_768, 128)
    chosen = choose(HOPPER, long, dtype="float16")
    assert chosen.kernel == "flash_splitkv"
    assert chosen.reason == "2 programs are too few for 132 processors, so keys go in 16 parts"
    assert choose(replace(HOPPER, n_processors=None), long, dtype="float16").kernel == "flash_v2"
    assert choose(HOPPER, replace(long, seq_k=SPLIT_KEYS - 1), dtype="float16").kernel == "flash_v2"
    assert choose(HOPPER, replace(long, batch=64), dtype="float16").kernel == "flash_v2"


@given(
    st.builds(
        Shape, st.integers(1, 64), st.integers(1, 64), st.just(1), st.integers(1, 1 << 16),
        st.integers(1, 1 << 16), st.sampled_from(HEAD_DIMS),
    ),
    st.integers(1, 304),
)  # fmt: skip
def test_parts_have_keys_and_processors(shape: Shape, n_processors: int) -> None:
    n_parts = n_splits(shape, n_processors)
    assert 1 <= n_parts <= 16
    if n_parts > 1:
        programs = -(-shape.seq_q // 128) * shape.batch * shape.heads
        assert programs * n_parts <= n_processors
        assert shape.seq_k // n_parts >= 256


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("card", [HOPPER, MI50, Card("sm_75", (3, 6)), Card("gfx942", (3, 9), 304)])
def test_auto_always_has_an_answer_that_can(card: Card, head_dim: int, dtype: str) -> None:
    chosen = choose(card, replace(SHAPE, head_dim=head_dim), dtype=dtype)
    assert refusal(chosen.kernel, card, replace(SHAPE, head_dim=head_dim), dtype) is None
    assert chosen.reason
    assert all(name != chosen.kernel and why for name, why in chosen.refused)


def test_padding() -> None:
    assert [padded(n) for n in (32, 48, 64, 96, 128, 144, 256)] == [32, 64, 64, 128, 128, 256, 256]


def test_attention_comes_with_its_first_use() -> None:
    code = (
        "import sys, soak_kernels\n"
        "from soak_kernels import members\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules\n"
        "assert 'attention' in dir(soak_kernels)\n"
        "try:\n"
        "    soak_kernels.attentoin\n"
        "except AttributeError as error:\n"
        "    assert str(error) == \"module 'soak_kernels' has no attribute 'attentoin'\"\n"
        "else:\n"
        "    raise AssertionError\n"
        "from soak_kernels import KERNELS, attention, choose\n"
        "assert callable(attention) and KERNELS == tuple(members.MEMBERS)\n"
        "import torch\n"
        "try:\n"
        "    attention(*(torch.ones(1, 1, 4, 64).half(),) * 3)\n"
        "except ValueError as error:\n"
        "    assert str(error).startswith('q is on cpu; legal: a GPU, or the CPU with TRITON_INTERPRET=1')\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    pytest.importorskip("triton", reason="Triton is not installed")
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(KERNELS)}, timeout=120)
