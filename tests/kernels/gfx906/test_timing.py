"""The model of time, on loops whose clocks can be counted on paper."""

from __future__ import annotations

import pytest
from soak_kernels.gfx906.timing import Latencies, clocks_a_trip

from .conftest import program_of

LATENCIES = Latencies(lds=100, memory=500, barrier=20)


def clocks(body: str, lds_clocks: dict[int, float] | None = None, num_warps: int = 1) -> float:
    instructions = program_of(f".LBB0_1:\n{body}\ns_cbranch_scc1 .LBB0_1").instructions
    return clocks_a_trip(instructions[:-1], lds_clocks or {}, num_warps, LATENCIES)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("v_add_f32_e32 v1, v2, v3", 4 + 4),
        ("v_exp_f32_e32 v1, v2", 16 + 4),
        ("s_nop 3", 16 + 4),
        # 64 lanes of 16 bytes take 16 clocks, then 500 go by; the load itself was issued in the first 4
        ("buffer_load_dwordx4 v[4:7], v1, s[8:11], 0 offen\ns_waitcnt vmcnt(0)", 16 + 500 + 4),
        ("buffer_load_dwordx4 v[4:7], v1, s[8:11], 0 offen\ns_waitcnt lgkmcnt(0)", 4 + 4),  # another counter
    ],
)
def test_one_wave(body: str, wanted: float) -> None:
    assert clocks(body) == wanted


def test_the_lds_serves_one_wave_after_the_other() -> None:
    body = "ds_read_b128 v[4:7], v1\ns_waitcnt lgkmcnt(0)"
    assert clocks(body, {0: 8}) == 8 + 100 + 4
    assert clocks(body, {0: 200}, num_warps=4) == 4 * 200  # 800 clocks of data hide the latency


def test_a_load_before_its_barrier_is_waited_for_there() -> None:
    """What the order of instructions is worth: the same work, the load behind the barrier or before it."""
    work = "\n".join(["v_dot2_f32_f16 v2, v3, v4, v2"] * 200)
    load, barrier = "buffer_load_dword v4, v1, s[8:11], 0 offen", "s_waitcnt vmcnt(0)\ns_barrier"
    behind = clocks(f"{barrier}\n{load}\n{work}")
    before = clocks(f"{load}\n{barrier}\n{work}")
    assert behind == 4 + 800 + 4 + 20
    assert before == 4 + 500 + 20 + 800 + 4


def test_waves_meet_at_barriers() -> None:
    assert clocks("s_barrier\nv_exp_f32_e32 v1, v2", num_warps=4) == 20 + 16 + 4
