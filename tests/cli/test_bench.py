"""`soak bench` where there is nothing to measure; what it measures is tested beside soak_kernels.bench."""

from __future__ import annotations

import subprocess
import sys

import pytest

from soak.core.errors import EXIT_CANNOT_RUN, EXIT_USAGE


@pytest.mark.parametrize("flags", [(), ("--json", "--quick"), ("--kernels", "naive")])
def test_without_a_gpu_it_says_so(flags: tuple[str, ...]) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "soak", "bench", *flags], capture_output=True, text=True, timeout=120,
        env={"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (EXIT_CANNOT_RUN, "")
    assert done.stderr == (
        "bench: torch sees no GPU; run it on a machine with one, with a torch built for it\n"
    )


def test_bad_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "soak", "bench", "--kernels"], capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == EXIT_USAGE
    assert done.stderr.startswith("soak: Option '--kernels' requires an argument.")
