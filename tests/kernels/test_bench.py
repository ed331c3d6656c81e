from __future__ import annotations

import pytest
import torch
from soak_kernels import bench
from soak_kernels.tuning import PASSES, plan


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main([]) == 2
    assert (
        capsys.readouterr().err
        == "bench: torch sees no GPU; run it on a machine with one, with a torch built for it\n"
    )


def test_a_red_check_shows_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "_check", lambda *_: ["sm_90 float16: dq has other bits in a repeat"])
    monkeypatch.setattr(bench, "_measure", lambda *_: pytest.fail("measured"))
    assert bench.main([]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert "1 checks are red, so nothing is measured" in written.err


def test_the_table_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    error = dict.fromkeys(bench.TENSORS, 3e-4)
    row = bench.Row(512, True, 200.0, 150.0, 100.0, None, error, None, 0.2, 2500.0)
    bench._print({"arch": "sm_90"}, [row])
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        "512",
        "causal",
        "200.0",
        "2.00x",
        "150.0",
        "3.0e-04",
        "2500",
        "GB/s",
    ]


def test_the_product_tile_is_a_candidate() -> None:
    for arch in ("gfx906", "sm_90"):
        for pass_ in PASSES:
            tiles = bench.candidates(arch, pass_)
            assert tiles[0] == getattr(plan(arch, head_dim=128, seq_len=4096, causal=True), pass_)
            assert len(tiles) == len(set(tiles))
