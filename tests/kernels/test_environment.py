from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from soak_kernels.environment import FP_FUSION, pin_compiler

KERNELS = Path(__file__).parents[2] / "kernels"


def test_fusion_is_pinned_and_a_choice_is_kept() -> None:
    environ: dict[str, str] = {}
    assert pin_compiler(environ) == {FP_FUSION: "1"} == environ
    chosen = {FP_FUSION: "0"}
    assert pin_compiler(chosen) == {FP_FUSION: "0"} == chosen


def test_importing_the_package_imports_no_framework() -> None:
    code = (
        "import sys, soak_kernels, soak_kernels.environment, soak_kernels.tuning, soak_kernels.flops\n"
        "assert 'torch' not in sys.modules and 'triton' not in sys.modules\n"
        "import soak_kernels.reference, soak_kernels.digest\n"
        "assert 'triton' not in sys.modules or 'torch' in sys.modules\n"
        "assert not any(name == 'soak' or name.startswith('soak.') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(KERNELS)}, timeout=120)
