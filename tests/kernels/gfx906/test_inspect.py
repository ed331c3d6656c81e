"""What is promised of the gfx906 kernels, asserted on what the compiler makes of them."""

from __future__ import annotations

import re
from typing import Any

import pytest

PEAK_TFLOPS = 26.5
LDS_LIMIT = 64 * 1024
FORWARD_SHARE = {"mi50": 0.80, "mi50_portable": 0.65}  # of the peak
BACKWARD_SHARE = {"mi50": 0.62, "mi50_portable": 0.50}  # counted with 5 of the 7 products
DOT2_SHARE = 0.86
LDS_RATIO = 1.3
MODELLED_SHARE = 0.60  # of the peak, by the careful latencies
N_OF_EACH = 12  # passes, head dims, masks


@pytest.fixture(scope="module")
def rows(emulator: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = emulator.call("rows", only="mi50")
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kernel", ["mi50", "mi50_portable"])
def test_promises(rows: list[dict[str, Any]], kernel: str) -> None:
    mine = {(row["pass"], row["head_dim"], row["causal"]): row for row in rows if row["kernel"] == kernel}
    assert len(mine) == N_OF_EACH
    for (pass_, _, _), row in mine.items():
        assert row["role"] == "product"
        assert (row["spills"], row["scratch_bytes"]) == (0, 0), row["name"]
        assert row["lds_bytes"] <= LDS_LIMIT
        assert row["waves_per_simd"] >= 1
        assert row["branches_in_loop"] == 0, "a load under a mask"
        assert row["lds_read_ratio"] <= LDS_RATIO, row["name"]
        if pass_ == "forward":
            assert row["bound_tflops"] >= FORWARD_SHARE[kernel] * PEAK_TFLOPS, row["name"]
    for head_dim in (64, 128):
        for causal in (False, True):
            dq, dkv = (mine[pass_, head_dim, causal]["bound_tflops"] for pass_ in ("dq", "dkv"))
            assert 5 / (3 / dq + 4 / dkv) >= BACKWARD_SHARE[kernel] * PEAK_TFLOPS, (head_dim, causal)


@pytest.mark.timeout(900)
def test_mi50_has_no_conflict_however_lanes_are_grouped(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["kernel"] == "mi50":
            assert row["lds_read_ratio_worst"] <= LDS_RATIO, row["name"]
            assert row["bound_tflops_worst"] == row["bound_tflops"]
            if row["pass"] == "forward":
                assert row["dot2_share"] >= DOT2_SHARE, row["name"]


@pytest.mark.timeout(900)
def test_mi50_hides_its_loads(rows: list[dict[str, Any]]) -> None:
    """By the model with waits and barriers, of which mi50_portable reaches half."""
    for row in rows:
        assert 0 < row["modelled_tflops_careful"] <= row["modelled_tflops"] <= row["bound_tflops"]
        if row["kernel"] == "mi50":
            assert row["modelled_tflops_careful"] >= MODELLED_SHARE * PEAK_TFLOPS, row["name"]


@pytest.mark.timeout(900)
def test_rows_are_plain(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["arch"] == "gfx906"
        assert isinstance(row["spills"], int)
        assert row["reason"]
        assert (row["mca_cycles"] is None) == row["mca"].startswith("none, ")  # absent is said, and no 0
        assert row["mca_cycles"] is None or row["mca_cycles"] > 0
        assert "never measured on a card" in row["assumptions"]
        assert re.fullmatch(r"\d+\.\d+.*", row["triton"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_document_s_tiles_are_no_product(emulator: Any) -> None:
    negatives = emulator.call("rows", only="document")
    assert {row["name"].removeprefix("document-") for row in negatives} == {
        "short", "middle", "long", "checklist", "fastest",
    }  # fmt: skip
    for row in negatives:
        assert row["role"] == "negative"
        assert row["spills"] > 0, row["name"]
        assert row["bound_tflops"] is None
