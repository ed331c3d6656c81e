from __future__ import annotations

import pytest
import torch
from soak_kernels import bench
from soak_kernels.tuning import PASSES, plan


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main([]) == 4
    assert (
        capsys.readouterr().err
        == "bench: torch sees no GPU; run it on a machine with one, with a torch built for it\n"
    )


def test_a_red_check_shows_no_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(bench, "_check", lambda *_: ["sm_90 float16: dq has other bits in a repeat"])
    monkeypatch.setattr(bench, "_contenders", lambda _: ["flash_v2"])
    monkeypatch.setattr(bench, "compare", lambda *_: pytest.fail("measured"))
    assert bench.main([]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert "1 checks are red, so nothing is measured" in written.err


def test_an_unknown_kernel(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert bench.main(["--kernels", "flash_v2,flash_v9"]) == 2
    assert capsys.readouterr().err.startswith("bench: --kernels has 'flash_v9'; choose from naive, flash_v1,")


def test_a_table_of_everybody(capsys: pytest.CaptureFixture[str]) -> None:
    error = dict.fromkeys(bench.TENSORS, 3e-4)
    rows = [
        bench.Row("flash_v2", True, 512, True, 4096, 200.0, 150.0, 1.0, 1.0, error, {**error, "lse": 1.0}),
        bench.Row("flash", False, 512, True, None, 100.0, 120.0, 2.0, 1.25, error, error),
        bench.Row("cudnn", False, 512, True, failed="RuntimeError: No available kernel."),
    ]
    bench._print({"arch": "sm_90"}, rows)
    assert [line.split() for line in capsys.readouterr().out.splitlines()[-3:]] == [
        ["512", "causal", "flash_v2", "4096", "200.0", "(1.00)", "150.0", "(1.00)", "3.0e-04", "3.0e-04"],
        ["512", "causal", "flash", "100.0", "(2.00)", "120.0", "(1.25)", "3.0e-04", "3.0e-04"],
        ["512", "causal", "cudnn", "RuntimeError:", "No", "available", "kernel."],
    ]


def test_who_does_not_run_has_a_row_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timed by no card's clock; the tensors, the attention and the reference are real, and tiny."""
    x = torch.randn(1, 1, 4, 64).half()
    monkeypatch.setattr(bench, "_inputs", lambda *_: (x, x, x, x))
    monkeypatch.setattr(bench, "milliseconds", lambda launches: dict(zip(launches, (2.0, 5.0), strict=True)))

    def contender(
        name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object
    ) -> bench.Contender:
        if name == "flex":
            raise RuntimeError("no compiler here\nand more")
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return bench.Contender(lambda: None, lambda: None, {"o": o})

    monkeypatch.setattr(bench, "ours", contender)
    monkeypatch.setattr(bench, "peer", contender)
    first, second, third = bench.compare(["flash_v2"], ["flex", "flash"], 4096, True)
    assert (first.name, first.is_ours, first.forward_ratio) == ("flash_v2", True, 1.0)
    assert second.failed == "RuntimeError: no compiler here"
    assert (third.is_ours, third.forward_ratio, third.backward_ratio) == (False, 2.5, 2.5)
    assert third.error["o"] < 1e-3
    assert 0 < third.largest_difference["o"] < 1e-2


def test_the_product_tile_is_a_candidate() -> None:
    for arch in ("gfx906", "sm_90"):
        for pass_ in PASSES:
            tiles = bench.candidates(arch, pass_)
            assert tiles[0] == getattr(plan(arch, head_dim=128, seq_len=4096, causal=True), pass_)
            assert len(tiles) == len(set(tiles))
