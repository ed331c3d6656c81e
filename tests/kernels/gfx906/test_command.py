"""`soak kernels`: the command over what is tested beside it."""

from __future__ import annotations

import json

import pytest

from soak.cli import main
from soak.core.errors import EXIT_PASS, EXIT_USAGE

COLUMNS = {
    "name", "arch", "role", "pass", "head_dim", "causal", "vgprs", "spills", "scratch_bytes", "lds_bytes",
    "waves_per_simd", "dot2",
}  # fmt: skip
OF_GFX906 = {
    "dot2_share", "valu_clocks", "lds_clocks", "barriers", "branches_in_loop", "mca", "mca_cycles",
    "bound_tflops", "modelled_tflops", "assumptions",
}  # fmt: skip


def test_list_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "list", "--json"]) == EXIT_PASS
    rows = json.loads(capsys.readouterr().out)
    assert {"gfx906", "sm_90"} <= {row["arch"] for row in rows}
    assert {"mi50", "mi50_portable"} <= {row["kernel"] for row in rows}
    assert {"product", "negative"} == {row["role"] for row in rows}
    assert all(row["reason"] for row in rows)


def test_an_unknown_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "inspect", "--arch", "gfx9000"]) == EXIT_USAGE
    assert capsys.readouterr().err == "soak: --arch 'gfx9000' is not known; choose one of gfx906, sm_90.\n"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("arch", "more"), [("gfx906", OF_GFX906), ("sm_90", {"wgmma"})])
def test_inspect_gives_rows(capsys: pytest.CaptureFixture[str], arch: str, more: set[str]) -> None:
    assert main(["kernels", "inspect", "--arch", arch, "--json"]) == EXIT_PASS
    rows = json.loads(capsys.readouterr().out)
    assert rows
    for row in rows:
        assert COLUMNS | more <= row.keys()
        assert row["arch"] == arch
        assert isinstance(row["spills"], int)
