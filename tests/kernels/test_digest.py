from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from soak_kernels.digest import ROWS_PER_BLOCK, Mismatch, compare, digest, digest_weights, locate

SHAPE = (2, 2, 200, 64)


def sample(dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_shape_and_repeat(dtype: torch.dtype) -> None:
    first, second = digest(sample(dtype)), digest(sample(dtype))
    assert first.shape == (4, 2)
    assert first.dtype == torch.int64
    assert torch.equal(first, second)
    assert digest(sample(dtype)[..., 0].contiguous().double()).shape == (4, 2)


def test_the_numbers_never_change() -> None:
    """Digests are stored and compared between runs: a change here is a change of the stored format."""
    x = torch.arange(2 * 3 * 4, dtype=torch.float32).reshape(1, 2, 3, 4)
    assert digest(x).flatten().tolist() == [1667671215044558848, -3445808529590452224]


@settings(deadline=None, max_examples=60)
@given(
    element=st.integers(0, 2 * 2 * 200 * 64 - 1),
    bit=st.integers(0, 15),
    other=st.integers(0, 2 * 2 * 200 * 64 - 1),
)
def test_flips_are_seen_where_they_are(element: int, bit: int, other: int) -> None:
    x = sample()
    golden = digest(x)
    bits = x.view(torch.int16).flatten()
    mask = (1 << bit) - (1 << 16 if bit == 15 else 0)
    expected = {_block(element)}
    bits[element] ^= mask
    if (
        other != element
    ):  # a second flip of the same bit, the other way round where it can be: a plain sum may not see both
        bits[other] ^= mask
        expected.add(_block(other))
    assert {tuple(x) for x in (digest(x) != golden).nonzero().tolist()} == expected


def _block(element: int) -> tuple[int, int]:
    row = element // 64
    return row // 200, row % 200 // ROWS_PER_BLOCK


def test_compensating_changes_are_seen() -> None:
    x = torch.zeros(1, 1, 8, 64, dtype=torch.float32)
    bits = x.view(torch.int32)
    bits[0, 0, 0, 0], bits[0, 0, 0, 1] = 5, 9
    golden = digest(x)
    bits[0, 0, 0, 0], bits[0, 0, 0, 1] = 6, 8  # the same sum
    assert not torch.equal(digest(x), golden)
    bits[0, 0, 0, 0], bits[0, 0, 0, 1] = 9, 5  # the same multiset
    assert not torch.equal(digest(x), golden)


@pytest.mark.parametrize(("a", "b"), [(0, 1), (3, 150), (127, 128), (198, 199)])
def test_swapped_rows_heads_and_blocks_are_seen(a: int, b: int) -> None:
    x = sample()
    golden = digest(x)
    rows = x.clone()
    rows[0, 0, [a, b]] = rows[0, 0, [b, a]]
    assert not torch.equal(digest(rows)[0], golden[0])
    heads = x[:, [1, 0]].contiguous()
    assert not torch.equal(digest(heads), golden)
    columns = x.clone()
    columns[..., [a % 64, b % 64]] = columns[..., [b % 64, a % 64]]
    assert bool((digest(columns) != golden).all())


def test_four_flips_in_a_rectangle_are_seen() -> None:
    """Weights that add up (row + column) would be blind to this pattern."""
    x = torch.zeros(1, 1, 64, 64, dtype=torch.float32)
    golden = digest(x)
    bits = x.view(torch.int32)[0, 0]
    bits[3, 5] = bits[40, 9] = 1
    bits[3, 9] = bits[40, 5] = -1
    assert not torch.equal(digest(x), golden)


def test_zero_signs_and_nan_payloads_are_bits() -> None:
    x = torch.zeros(1, 1, 4, 64, dtype=torch.float16)
    golden = digest(x)
    x[0, 0, 1, 1] = -0.0
    assert not torch.equal(digest(x), golden)


def test_compare_accumulates_and_locate_names_the_rows() -> None:
    golden = digest(sample())
    changed = sample()
    changed[1, 0, 130, 7] += 1
    digests, mismatches = digest(changed), torch.zeros(1, dtype=torch.int64)
    for expected in (1, 2):
        compare(digests, golden, mismatches)
        assert int(mismatches) == expected
    compare(golden, golden, mismatches)
    assert int(mismatches) == 2
    assert locate(digests, golden, seq_len=200) == [Mismatch(slice=2, first_row=128, last_row=200)]


def test_one_table_of_weights_serves_every_shape() -> None:
    weights = digest_weights(4096, 64, "cpu")
    x = sample()
    assert torch.equal(digest(x, weights=weights), digest(x))
    out = torch.empty(4, 2, dtype=torch.int64)
    assert digest(x, weights=weights, out=out) is out
    every = torch.cat([weights.rows, weights.words])
    assert bool((every % 2 != 0).all())
    assert every.unique().numel() == every.numel()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((1, 2, 1, 64), "float16"),
        ((2, 1, 129, 128), "float16"),
        ((1, 1, 300, 64), "bfloat16"),
        ((1, 2, 40, 128), "float32"),
        ((1, 1, 130, 6), "float16"),
        ((2, 3, 131), "float32"),
        ((2, 2, 257), "float64"),
    ],
)
def test_kernel_and_torch_give_the_same_numbers(interpreter: Any, shape: tuple[int, ...], dtype: str) -> None:
    assert interpreter.call("digest_paths", shape=list(shape), dtype=dtype)


@pytest.mark.parametrize(("n", "differing"), [(1, 0), (1, 1), (1024, 3), (2500, 2500)])
def test_compare_kernel_counts(interpreter: Any, n: int, differing: int) -> None:
    assert interpreter.call("compare_counts", n=n, differing=differing) == 5 + 2 * differing


def test_bad_input() -> None:
    x = sample()
    for bad, message in (
        (x.int(), "x has dtype torch.int32; legal"),
        (x.transpose(1, 2), "x has strides"),
        (x[0, 0], r"x has shape \[200, 64\]; legal"),
        (x[..., :3].contiguous(), "x has rows of 6 bytes; legal: a multiple of 4"),
    ):
        with pytest.raises(ValueError, match=message):
            digest(bad)
    with pytest.raises(ValueError, match="weights cover 128 rows of 32 words; legal: at least 200 of 32"):
        digest(x, weights=digest_weights(100, 32, "cpu"))
    with pytest.raises(ValueError, match=r"out is torch\.int32"):
        digest(x, out=torch.empty(4, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="mismatches has 2 elements"):
        compare(digest(x), digest(x), torch.zeros(2, dtype=torch.int64))
