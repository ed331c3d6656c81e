"""The product configurations compiled for cards that are not here: what decides on them are registers."""

from __future__ import annotations

from typing import Any

import pytest
from soak_kernels.compile import loop_spills, main
from soak_kernels.members import MEMBERS

LDS_LIMIT = {"gfx906": 64 * 1024, "sm_90": 227 * 1024}
N_ATTENTION = 3 * 2 * 2  # passes, head dims, masks


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", ["gfx906", "sm_90"])
def test_product_kernels_fit_the_registers(compiler: Any, arch: str) -> None:
    rows = compiler.call("rows", arch=arch)
    float16 = [row for row in rows if row["pass"] in ("forward", "dq", "dkv") and row["dtype"] == "float16"]
    of_hopper = [row for row in float16 if row["name"].startswith("flash_hopper")]
    assert len(of_hopper) == (N_ATTENTION if arch == "sm_90" else 0)
    assert len(float16) == N_ATTENTION + len(of_hopper)
    for row in rows:
        assert row["arch"] == arch
        assert row["role"] == "product"
        assert not row["loop_spills"], row
        if row in of_hopper:  # has every register of a processor, and saves some between two tiles
            assert row["scratch_bytes"] <= 128, row
        else:
            assert row["spills"] == 0, row
            assert row["scratch_bytes"] == 0, row
        assert row["lds_bytes"] <= LDS_LIMIT[arch], row
    for row in float16:
        assert not row["reason"].startswith("fallback"), row
        assert row["dot2" if arch == "gfx906" else "wgmma"] > 0, "the products are not on the fast path"


def test_a_spill_in_a_loop_is_told_from_one_around_it() -> None:
    instructions = ["MOV R1, R2", "STL [R1], R3", "HGMMA.64x128x16.F32 R24", "NOP", "@P0 BRA 0x20", "LDL R3",
                    "BRA 0x30", "@P2 BRA 0x10"]  # fmt: skip
    code = "\n".join(
        f"        /*{16 * i:04x}*/    {text} ;   /* 0x0 */" for i, text in enumerate(instructions)
    )
    assert loop_spills(code) == 0
    assert loop_spills(code.replace("NOP", "LDL.LU R3, [R1]")) == 1
    assert loop_spills(code.replace("HGMMA.64x128x16.F32 R24", "LDL R3, [R1]")) == 1


@pytest.mark.parametrize("arch", ["gfx", "hopper", ""])
def test_an_architecture_that_cannot_exist(compiler: Any, arch: str) -> None:
    assert compiler.call("refusal", arch=arch) == f"arch is {arch!r}; legal: sm_<number> or gfx<number>"


def test_the_program_refuses_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bogus"]) == 2
    assert capsys.readouterr().err == "compile: arch is 'bogus'; legal: sm_<number> or gfx<number>\n"
    with pytest.raises(SystemExit, match="2"):
        main(["--bogus"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kernel", [name for name, member in MEMBERS.items() if member.arch is None])
@pytest.mark.parametrize(
    ("seq", "heads", "head_dim", "causal", "dtype"),
    [((130, 70), (4, 2), 96, True, "bfloat16"), ((70, 130), (2, 2), 256, False, "float32")],
)
def test_every_kernel_compiles_for_what_only_some_shapes_need(
    compiler: Any, kernel: str, seq: Any, heads: Any, head_dim: int, causal: bool, dtype: str
) -> None:
    """The interpreter takes what the compiler does not."""
    rows = compiler.call(
        "lineage", kernel=kernel, arch="sm_90", seq=seq, heads=heads, head_dim=head_dim, causal=causal,
        dtype=dtype,
    )  # fmt: skip
    assert len(rows) >= 4
    for row in rows:
        assert row["lds_bytes"] <= LDS_LIMIT["sm_90"], row
        assert row["scratch_bytes"] < 512, row
