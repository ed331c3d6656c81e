"""The compiled code of the gfx906 kernels, executed: results, accesses outside tensors, missing barriers."""

from __future__ import annotations

from typing import Any

import pytest

KERNELS = ("mi50", "mi50_portable")
SEQ_LENS = (1, 17, 65, 127, 130, 257)
RELATIVE = {"o": 1e-3, "dq": 2e-3, "dk": 2e-3, "dv": 2e-3}
LARGEST = {"o": 1e-3, "lse": 1e-5, "dq": 1e-3, "dk": 1e-3, "dv": 5e-3}  # the product's limits, by its recipe
ZERO_GRADIENTS = 1e-6  # with one key dQ and dK are 0, and nothing is relative to that


def check(answer: dict[str, Any], *, one_key: bool = False) -> None:
    assert answer["findings"] == []
    assert answer["finite"]
    for name, limit in LARGEST.items():
        assert answer["largest"][name] < (ZERO_GRADIENTS if one_key and name in ("dq", "dk") else limit), name
    for name, limit in RELATIVE.items():
        assert (one_key and name in ("dq", "dk")) or answer["relative"][name] < limit, name


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_equals_float64(emulator: Any, kernel: str, head_dim: int, causal: bool) -> None:
    """Every product configuration: the three passes of a kernel, on two heads."""
    for seq_len in SEQ_LENS:
        answer = emulator.call("attention", kernel=kernel, head_dim=head_dim, causal=causal, seq_q=seq_len)
        check(answer, one_key=seq_len == 1)


@pytest.mark.parametrize(
    ("kernel", "head_dim", "seq_lens"),
    [("mi50", 64, (1, 17, 130)), ("mi50", 128, (257,)), ("mi50_portable", 64, (17, 130))],
)
@pytest.mark.timeout(600)
def test_equals_float64_in_short(
    emulator: Any, kernel: str, head_dim: int, seq_lens: tuple[int, ...]
) -> None:
    """Causal kernels hold the main loop and the masked one; 130 and 257 rows enter both, and leave a tail."""
    for seq_len in seq_lens:
        answer = emulator.call("attention", kernel=kernel, head_dim=head_dim, causal=True, seq_q=seq_len)
        check(answer, one_key=seq_len == 1)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(130, 17), (17, 130), (65, 66)])
@pytest.mark.timeout(600)
def test_rows_and_keys_differ_and_heads_share_keys(
    emulator: Any, kernel: str, seq_q: int, seq_k: int
) -> None:
    """Aligned at the bottom right: with 130 rows and 17 keys the first 113 rows see nothing and are 0."""
    answer = emulator.call(
        "attention", kernel=kernel, head_dim=64, causal=True, seq_q=seq_q, seq_k=seq_k, heads=4, kv_heads=2
    )
    check(answer)


def test_builds_are_shared_by_what_the_compiler_was_told(emulator: Any) -> None:
    """As on the card: it is told whether an integer is a multiple of 16."""
    assert emulator.call("same_build", pad_k=256)
    assert not emulator.call("same_build", pad_k=130)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.timeout(600)
def test_largest_scores(emulator: Any, kernel: str) -> None:
    """q = k = 65504: scores of 2.7e11, all equal, so that P is 1 / keys."""
    answer = emulator.call("attention", kernel=kernel, head_dim=64, causal=True, seq_q=130, scores="largest")
    assert answer["findings"] == []
    assert answer["finite"]
    assert answer["relative"]["o"] < RELATIVE["o"]
    assert answer["relative"]["dv"] < RELATIVE["dv"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("head_dim", [64, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_mixed_huge_scores(emulator: Any, kernel: str, head_dim: int, causal: bool) -> None:
    """Scores of 1e11 are 1e4 apart in float32: P of the backward is that of the forward only where both add
    up the products in the same order. Else it would be 0 or infinite."""
    answer = emulator.call(
        "attention", kernel=kernel, head_dim=head_dim, causal=causal, seq_q=130, scores="mixed"
    )
    assert answer["findings"] == []
    assert answer["finite"]
    assert answer["relative"]["o"] < RELATIVE["o"]
    assert answer["relative"]["dv"] < RELATIVE["dv"]


ALL_BUT_FORWARD = [pytest.param(name, marks=pytest.mark.slow) for name in ("dq", "dkv")]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("pass_", ["forward", *ALL_BUT_FORWARD])
@pytest.mark.timeout(900)
def test_a_planted_over_read_is_found(emulator: Any, kernel: str, pass_: str) -> None:
    assert emulator.call("over_read", kernel=kernel, pass_=pass_, planted=False) == []
    assert "read outside tensors" in emulator.call("over_read", kernel=kernel, pass_=pass_, planted=True)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("pass_", ["forward", *ALL_BUT_FORWARD])
@pytest.mark.timeout(900)
def test_mi50_needs_every_barrier(emulator: Any, pass_: str, head_dim: int) -> None:
    """Whichever barrier of the main loop is taken out, it is missed: the emulator sees each, and there is
    none too many."""
    answer = emulator.call("barriers", name=f"mi50-{pass_}-d{head_dim}-full")
    assert answer["untouched"] == {}
    assert answer["without"]
    assert all(found > 0 for found in answer["without"]), answer["without"]


@pytest.mark.parametrize("pass_", ["forward", "dq", "dkv"])
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_planted_missing_barrier_of_mi50_portable_is_found(emulator: Any, pass_: str) -> None:
    """There Triton places them, and carefully: some part only what one wave wrote and the same wave reads.
    Those that waves need are missed when they go."""
    answer = emulator.call("barriers", name=f"mi50_portable-{pass_}-d64-full")
    assert answer["untouched"] == {}
    assert any(found > 0 for found in answer["without"])
