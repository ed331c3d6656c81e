"""The emulator on small programs: what instructions do, how waves part and meet, and what it finds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from soak_kernels.gfx906.emulator import Emulator
from soak_kernels.gfx906.machine import EmulationError

from .conftest import program_of

Array = np.ndarray[Any, Any]
GENERATOR = np.random.default_rng(0)


def bits(low: int = 0, high: int = 2**32) -> Array:
    return GENERATOR.integers(low, high, 64, dtype=np.uint32)


def floats() -> Array:
    return GENERATOR.standard_normal(64).astype(np.float32)


def pairs() -> Array:
    return GENERATOR.standard_normal(128).astype(np.float16).view(np.uint32)


X, Y, Z = bits(), bits(), bits()
F, G, H = floats(), floats(), floats()
P, Q = pairs(), pairs()


def halves(x: Array) -> Array:
    return x.view(np.float16).reshape(64, 2).astype(np.float64)


@pytest.mark.parametrize(
    ("body", "inputs", "wanted"),
    [
        ("v_add_u32_e32 v10, v1, v2", (X, Y), X + Y),
        ("v_lshl_add_u32 v10, v1, 3, v2", (X, Y), (X << np.uint32(3)) + Y),
        ("v_bfe_u32 v10, v1, 4, 9", (X,), (X >> np.uint32(4)) & np.uint32(0x1FF)),
        ("v_bfe_i32 v10, v1, 28, 4", (X,), (X.view(np.int32) >> 28).view(np.uint32)),
        ("v_bfi_b32 v10, v1, v2, v3", (X, Y, Z), (X & Y) | (~X & Z)),
        ("v_perm_b32 v10, v1, v2, 0x5040100", (X, Y), None),
        ("v_min_i32_e32 v10, v1, v2", (X, Y), np.minimum(X.view(np.int32), Y.view(np.int32)).view(np.uint32)),
        ("v_mul_hi_u32 v10, v1, v2", (X, Y), ((X.astype(np.uint64) * Y) >> np.uint64(32)).astype(np.uint32)),
        ("v_add_f32_e32 v10, v1, v2", (F, G), (F + G).view(np.uint32)),
        ("v_sub_f32_e64 v10, -v1, |v2|", (F, G), (-F - np.abs(G)).view(np.uint32)),
        ("v_max3_f32 v10, v1, v2, v3", (F, G, H), np.maximum(np.maximum(F, G), H).view(np.uint32)),
        ("v_mul_f32_e32 v10, 0.5, v1", (F,), (F * np.float32(0.5)).view(np.uint32)),
        ("v_mov_b32_e32 v10, -1.0", (), np.full(64, -1, np.float32).view(np.uint32)),
        ("v_cvt_f16_f32_e32 v10, v1", (F,), F.astype(np.float16).view(np.uint16).astype(np.uint32)),
        ("v_pack_b32_f16 v10, v1, v2", (P, Q), (P & np.uint32(0xFFFF)) | (Q << np.uint32(16))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lanes_compute(
    lane_wise: Callable[..., Array], body: str, inputs: tuple[Array, ...], wanted: Array | None
) -> None:
    if wanted is None:  # the selector takes the low halves of both: first source above second
        wanted = (inputs[0] << np.uint32(16)) | (inputs[1] & np.uint32(0xFFFF))
    assert np.array_equal(lane_wise(body, *inputs), wanted)


def test_the_dot_product_of_pairs(lane_wise: Callable[..., Array]) -> None:
    result = lane_wise("v_dot2_f32_f16 v10, v1, v2, v3", P, Q, F).view(np.float32)
    exact = (halves(P) * halves(Q)).sum(axis=1) + F
    assert np.allclose(result, exact, rtol=1e-6, atol=1e-6)


def test_a_fused_product_goes_into_the_half_that_is_named(lane_wise: Callable[..., Array]) -> None:
    body = "v_mov_b32_e32 v10, v2\nv_fma_mixhi_f16 v10, v1, v1, 0"
    result = lane_wise(body, F, Q)
    assert np.array_equal(result & np.uint32(0xFFFF), Q & np.uint32(0xFFFF))
    assert np.array_equal(
        (result >> np.uint32(16)).astype(np.uint16).view(np.float16), (F * F).astype(np.float16)
    )


@pytest.mark.parametrize(
    ("pattern", "source"),
    [
        ("quad_perm:[3,2,1,0]", lambda i: i // 4 * 4 + 3 - i % 4),
        ("row_ror:4", lambda i: i // 16 * 16 + (i % 16 - 4) % 16),
        ("row_half_mirror", lambda i: i // 8 * 8 + 7 - i % 8),
        ("row_mirror", lambda i: i // 16 * 16 + 15 - i % 16),
    ],
)
def test_lanes_read_each_other(
    lane_wise: Callable[..., Array], pattern: str, source: Callable[[int], int]
) -> None:
    body = f"v_mov_b32_dpp v10, v1 {pattern} row_mask:0xf bank_mask:0xf bound_ctrl:1"
    assert np.array_equal(lane_wise(body, X), X[[source(i) for i in range(64)]])


def test_a_row_that_shifts_in_nothing_keeps_or_zeroes(lane_wise: Callable[..., Array]) -> None:
    outside = np.arange(64) % 16 < 1
    moved = np.where(outside, 0, np.roll(X, 1))
    body = "v_mov_b32_e32 v10, v2\nv_mov_b32_dpp v10, v1 row_shr:1 row_mask:0xf bank_mask:0xf"
    assert np.array_equal(lane_wise(f"{body} bound_ctrl:1", X, Y), moved)
    assert np.array_equal(lane_wise(body, X, Y), np.where(outside, Y, moved))


def test_lanes_that_are_off_keep_their_values(lane_wise: Callable[..., Array]) -> None:
    body = """
v_mov_b32_e32 v10, v2
v_cmp_gt_u32_e32 vcc, 5, v0
s_and_saveexec_b64 s[30:31], vcc
v_mov_b32_e32 v10, v1
s_or_b64 exec, exec, s[30:31]
"""
    assert np.array_equal(lane_wise(body, X, Y), np.where(np.arange(64) < 5, X, Y))


def test_waves_part_and_meet_again(run: Callable[..., Any]) -> None:
    """Each wave loops as often as its number says; after a barrier, wave 0 sees what the last one wrote."""
    body = """
s_load_dwordx2 s[8:9], s[4:5], 0x0
v_readfirstlane_b32 s10, v0
s_lshr_b32 s10, s10, 6
s_mov_b32 s11, 0
s_cmp_eq_u32 s10, 0
s_cbranch_scc1 .LBB0_2
.LBB0_1:
s_add_i32 s11, s11, 10
s_add_i32 s10, s10, -1
s_cmp_lg_u32 s10, 0
s_cbranch_scc1 .LBB0_1
.LBB0_2:
v_lshlrev_b32_e32 v1, 2, v0
v_mov_b32_e32 v2, s11
ds_write_b32 v1, v2
s_barrier
v_xor_b32_e32 v3, 0x300, v1
ds_read_b32 v4, v3
global_store_dword v1, v4, s[8:9]
"""
    done, (out,) = run(body, np.zeros(256, np.uint32), num_warps=4, lds_bytes=1024)
    assert done.findings == ()
    assert np.array_equal(out.reshape(4, 64), np.repeat([[30], [20], [10], [0]], 64, axis=1))


EXCHANGE = """
s_load_dwordx2 s[8:9], s[4:5], 0x0
v_lshlrev_b32_e32 v1, 2, v0
ds_write_b32 v1, v0
{between}
v_xor_b32_e32 v3, {other:#x}, v1
ds_read_b32 v4, v3
global_store_dword v1, v4, s[8:9]
"""


@pytest.mark.parametrize(
    ("between", "other", "found"),
    [("s_nop 0", 0x100, {"missing barrier": 2}), ("s_barrier", 0x100, {}), ("s_nop 0", 0x4, {})],
    ids=["another wave's bytes", "with a barrier", "its own bytes"],
)
def test_a_missing_barrier(run: Callable[..., Any], between: str, other: int, found: dict[str, int]) -> None:
    body = EXCHANGE.format(between=between, other=other)
    done, _ = run(body, np.zeros(128, np.uint32), num_warps=2, lds_bytes=512)
    assert set(done.n_findings) == set(found)


def test_a_write_over_what_another_wave_still_reads(run: Callable[..., Any]) -> None:
    body = """
v_lshlrev_b32_e32 v1, 2, v0
ds_write_b32 v1, v0
s_barrier
v_xor_b32_e32 v3, 0x100, v1
ds_read_b32 v4, v3
ds_write_b32 v1, v4
"""
    done, _ = run(body, np.zeros(1, np.uint32), num_warps=2, lds_bytes=512)
    assert set(done.n_findings) == {"missing barrier"}
    assert all(finding.text.startswith("ds_write") for finding in done.findings)


STORE_AND_LOAD = """
s_load_dwordx4 s[8:11], s[4:5], 0x0
v_lshlrev_b32_e32 v1, 2, v0
global_load_dword v2, v1, s[8:9] offset:{offset}
global_store_dword v1, v2, s[10:11]
"""


def test_a_read_outside_is_found_and_gives_all_ones(run: Callable[..., Any]) -> None:
    x = np.arange(64, dtype=np.uint32)
    done, (_, out) = run(STORE_AND_LOAD.format(offset=8), x, np.zeros(64, np.uint32))
    assert done.n_findings == {"read outside tensors": 1}
    assert (done.findings[0].lane, done.findings[0].wave) == (62, 0)
    assert np.array_equal(out, [*range(2, 64), 0xFFFFFFFF, 0xFFFFFFFF])


def test_a_write_outside_is_found_and_dropped(run: Callable[..., Any]) -> None:
    done, (_, out) = run(
        STORE_AND_LOAD.format(offset=0), np.arange(64, dtype=np.uint32), np.zeros(60, np.uint32)
    )
    assert done.n_findings == {"write outside tensors": 1}
    assert np.array_equal(out, np.arange(60))


def test_a_buffer_reads_zero_beyond_its_records(run: Callable[..., Any]) -> None:
    body = """
s_load_dwordx2 s[8:9], s[4:5], 0x0
s_load_dwordx2 s[12:13], s[4:5], 0x8
s_mov_b32 s10, 128
s_mov_b32 s11, 0x27000
v_lshlrev_b32_e32 v1, 2, v0
buffer_load_dword v2, v1, s[8:11], 0 offen
global_store_dword v1, v2, s[12:13]
"""
    done, (_, out) = run(body, np.arange(1, 65, dtype=np.uint32), np.zeros(64, np.uint32))
    assert done.findings == ()
    assert np.array_equal(out, [*range(1, 33), *[0] * 32])


def test_lds_outside_its_size(run: Callable[..., Any]) -> None:
    done, _ = run("v_lshlrev_b32_e32 v1, 3, v0\nds_write_b32 v1, v0", np.zeros(1, np.uint32), lds_bytes=256)
    assert done.n_findings == {"outside LDS": 1}
    assert done.findings[0].address == 256


def test_lds_clocks_are_counted(run: Callable[..., Any]) -> None:
    body = "v_lshlrev_b32_e32 v1, 7, v0\nds_read_b32 v2, v1"
    done, _ = run(body, np.zeros(1, np.uint32), lds_bytes=8192, num_warps=1, count_lds=True)
    (access,) = done.lds.values()
    assert (access.times, access.clocks, access.conflict_free) == (1, 64, 2)  # every lane in bank 0


@pytest.mark.parametrize(
    "text", ["v_mfma_f32_4x4x4f16 v1, v2, v3, v4", "global_atomic_add v1, v2, off", "s_sendmsg 1"]
)
def test_what_is_not_known_is_refused(text: str) -> None:
    with pytest.raises(EmulationError, match="unknown"):
        Emulator(program_of(text))


@pytest.mark.parametrize("within", ["s_nop 0", "s_barrier"])
def test_a_program_without_an_end(run: Callable[..., Any], within: str) -> None:
    """A barrier in the loop does not start the count anew."""
    with pytest.raises(EmulationError, match="does not end within"):
        run(f".LBB0_1:\n{within}\ns_branch .LBB0_1", np.zeros(1, np.uint32), num_warps=2, steps_most=100)


def test_a_launch_that_cannot_be(run: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="lds_bytes is 70000"):
        run("s_nop 0", np.zeros(1, np.uint32), lds_bytes=70_000)
