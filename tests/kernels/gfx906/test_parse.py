"""Reading assembly: operands, modifiers, loops, what the hardware sets up."""

from __future__ import annotations

import pytest
from soak_kernels.gfx906.parse import loops, main_loop, parse

from .conftest import program_of

NESTED = """
.LBB0_1:
v_mov_b32_e32 v1, 0
.LBB0_2:
v_dot2_f32_f16 v2, v3, v4, v2
v_cmp_gt_u32_e32 vcc, 5, v0
s_cbranch_scc1 .LBB0_2
.LBB0_3:
v_dot2_f32_f16 v2, v3, v4, v2
s_cbranch_scc0 .LBB0_3
s_cbranch_scc1 .LBB0_1
"""


def test_instructions() -> None:
    program = program_of(
        "buffer_load_dwordx4 v[14:17], v7, s[36:39], 0 offen offset:16\n"
        "v_add_f32_dpp v1, v2, v3 quad_perm:[3,2,1,0] row_mask:0xf bank_mask:0xf bound_ctrl:1\n"
        "ds_read2_b32 v[1:2], v3 offset0:4 offset1:36 ; a comment"
    )
    load, add, read, end = program.instructions
    assert (load.opcode, load.operands) == ("buffer_load_dwordx4", ("v[14:17]", "v7", "s[36:39]", "0"))
    assert load.modifiers == {"offen": "", "offset": "16"}
    assert (add.opcode, add.encoding, add.operands) == ("v_add_f32", "dpp", ("v1", "v2", "v3"))
    assert add.modifiers["quad_perm"] == "[3,2,1,0]"
    assert (read.integer("offset1"), read.integer("offset")) == (36, 0)
    assert end.opcode == "s_endpgm"


def test_the_kernel_s_own_words() -> None:
    program = program_of("s_nop 0", n_pointers=2)
    assert (program.name, program.vgprs, program.spills, program.scratch_bytes) == ("small", 32, 0, 0)
    assert [argument.offset for argument in program.arguments] == [0, 8]
    assert (program.kernarg_sgpr, program.group_sgprs) == (4, (6, None, None))


def test_the_main_loop_is_the_innermost_that_compares_least() -> None:
    program = program_of(NESTED)
    assert [(loop.first, loop.last) for loop in loops(program)] == [(1, 3), (4, 5)]
    loop = main_loop(program)
    assert loop is not None
    assert loop.first == 4


def test_a_program_without_products_has_no_main_loop() -> None:
    assert main_loop(program_of(".LBB0_1:\ns_nop 0\ns_branch .LBB0_1")) is None


def test_no_kernel() -> None:
    with pytest.raises(ValueError, match=r"no \.amdhsa_kernel"):
        parse("s_nop 0")
