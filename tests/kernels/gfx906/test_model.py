"""The throughput model, on numbers that can be worked out on paper."""

from __future__ import annotations

import pytest
from soak_kernels.gfx906 import mca, model
from soak_kernels.gfx906.emulator import LdsAccess
from soak_kernels.gfx906.parse import main_loop

from .conftest import program_of

LOOP = """
.LBB0_1:
ds_read2_b64 v[4:7], v1 offset1:1
v_dot2_f32_f16 v2, v3, v4, v2
v_dot2_f32_f16 v2, v3, v5, v2
v_exp_f32_e32 v6, v2
v_mul_lo_u32 v7, v6, v1
v_add_f64 v[8:9], v[10:11], v[12:13]
s_barrier
s_cbranch_scc0 .LBB0_2
.LBB0_2:
s_cbranch_scc1 .LBB0_1
"""


def test_the_peak_is_the_card_s() -> None:
    assert round(model.PEAK_TFLOPS, 1) == 26.5
    # which nothing but products reaches: 4 waves, 100 products of 64 lanes and 4 operations, 400 clocks
    assert model.tflops(4 * 100 * 64 * 4, 400) == pytest.approx(model.PEAK_TFLOPS)


def test_a_loop_is_counted() -> None:
    program = program_of(LOOP)
    loop = main_loop(program)
    assert loop is not None
    counts = model.loop_counts(program, loop, num_warps=8)
    assert (counts.dot2, counts.dot2_share, counts.barriers) == (2, 0.4, 1)
    assert counts.branches == 1  # but the loop's own
    assert counts.valu_clocks == (4 + 4 + 16 + 16 + 8) * 8 / 4
    assert counts.operations == 2 * 4 * 64 * 8


def test_a_read2_is_one_instruction_of_two_accesses() -> None:
    program = program_of(LOOP)
    loop = main_loop(program)
    assert loop is not None
    ran = LdsAccess(times=2 * 3 * 4, clocks=2 * 3 * 4 * 6, worst=2 * 3 * 4 * 7, conflict_free=2 * 3 * 4 * 4)
    assert model.lds_clocks(program, loop, {loop.first: ran}) == {0: model.LdsClocks(12, 14, 8)}
    assert model.read_ratios(program, {loop.first: ran}) == (1.5, 1.75)
    with pytest.raises(ValueError, match="was not executed"):
        model.lds_clocks(program, loop, {})


@pytest.mark.parametrize(
    ("vgprs", "lds_bytes", "num_warps", "waves"),
    [
        (256, 0, 4, 1),
        (129, 0, 4, 1),  # given out by fours: 132
        (128, 0, 4, 2),
        (128, 40_000, 4, 1),  # one workgroup's LDS
        (24, 0, 4, 10),  # no more than ten
        (128, 65_536, 8, 2),
        (64, 65_536, 1, 0.25),  # one wave alone: three SIMDs stay empty
    ],
)
def test_waves_of_a_simd(vgprs: int, lds_bytes: int, num_warps: int, waves: float) -> None:
    assert model.waves_per_simd(vgprs, lds_bytes, num_warps) == waves


def test_without_llvm_mca_there_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert mca.cycles(()) == (None, "none, llvm-mca-19 is not installed")
