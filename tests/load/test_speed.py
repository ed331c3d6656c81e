"""How fast a card is, how fast it works now, and which machine code a range of lengths needs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from soak.load.calibration import Calibration, lengths_between
from soak.load.engine import LoadError
from soak.load.failures import what_ended
from soak.load.rate import WorkRate


def test_rates_are_interpolated_between_lengths() -> None:
    calibration = Calibration(
        {(512, False): 100.0, (1024, False): 200.0, (4096, False): 260.0, (1024, True): 80.0}
    )
    assert calibration.rate(512, False) == 100.0
    assert calibration.rate(768, False) == 150.0
    assert calibration.rate(1024, False) == 200.0
    assert calibration.rate(100, False) == 100.0
    assert calibration.rate(9999, False) == 260.0
    assert calibration.rate(2000, True) == 80.0
    assert Calibration({(64, True): 5.0}).step_ms(64, False, 50.0) == 10.0


def test_lengths_are_spread_and_not_repeated() -> None:
    assert lengths_between(512, 4096, 5) == [512, 1408, 2304, 3200, 4096]
    assert lengths_between(64, 64, 5) == [64]


def test_the_rate_is_work_over_time() -> None:
    rate = WorkRate(work=1000.0)
    for step in range(4):
        assert rate.rate(step * 10.0, 10.0) is None
        rate.finished(step * 10.0)
    assert rate.rate(30.0, 10.0) == pytest.approx(100.0)


def test_only_the_last_seconds_count() -> None:
    rate = WorkRate(work=1000.0)
    for step in range(100):
        rate.finished(step * 10.0)
    for step in range(1, 60):
        rate.finished(1000.0 + step * 100.0)
    assert rate.rate(6900.0, 100.0) == pytest.approx(10.0, rel=0.01)


def test_a_step_that_does_not_come_lowers_the_rate() -> None:
    rate = WorkRate(work=1000.0)
    for step in range(11):
        rate.finished(step * 10.0)
    assert rate.rate(115.0, 10.0) == pytest.approx(100.0)
    assert rate.rate(215.0, 10.0) == pytest.approx(50.0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LoadError("compile_error", "no kernel"), "compile_error"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_device_memory"),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "device_error"),
        (RuntimeError("HIP error: the operation cannot be performed"), "device_error"),
        (type("AcceleratorError", (RuntimeError,), {})("device-side assert"), "device_error"),
        (type("CompilationError", (Exception,), {})("at 3:4"), "compile_error"),
        (type("OutOfResources", (Exception,), {})("shared memory"), "compile_error"),
        (ValueError(), "worker_error"),
        (MemoryError(), "worker_error"),
    ],
)
def test_what_ended_a_worker(error: Exception, kind: str) -> None:
    found, sentence = what_ended(error)
    assert found == kind
    assert "\n" not in sentence
    assert sentence


def test_every_configuration_and_mask_is_compiled_once() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from soak_kernels.tuning import plan

    from soak.load.kernel_gpu import TritonKernel

    class Hopper(TritonKernel):
        def __init__(self) -> None:
            super().__init__(torch.device("cpu"), head_dim=128, dtype="float16", seq_len_max=4096)
            self._card = replace(self._card, arch="sm_90")

    lengths = range(512, 4097)
    variants = Hopper().variants(lengths)
    needed = {(plan("sm_90", head_dim=128, seq_len=s, causal=c), c) for s in lengths for c in (False, True)}
    compiled = {(plan("sm_90", head_dim=128, seq_len=s, causal=c), c) for s, c in variants}
    assert compiled == needed
    assert len(variants) == len(needed)
