"""What LLVM's scheduling model says of a loop: cycles a trip of one wave alone, by llvm-mca, where that is
installed.

It knows issue and dependencies but no memory stalls, so it is one more lower bound, good for comparing two
builds.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable

from soak_kernels.gfx906.parse import Instruction

TOOL = "llvm-mca-19"  # older ones know less of gfx906
ITERATIONS = 10
TIMEOUT_S = 120


def cycles(body: Iterable[Instruction]) -> tuple[float | None, str]:
    """Cycles a trip and the tool's name, or None and why there is no number."""
    tool = shutil.which(TOOL)
    if tool is None:
        return None, f"none, {TOOL} is not installed"
    text = "\n".join(line for line in map(_acceptable, body) if line is not None)
    run = subprocess.run(
        [tool, "-mtriple=amdgcn-amd-amdhsa", "-mcpu=gfx906", f"-iterations={ITERATIONS}"],
        input=text, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    found = re.search(r"Total Cycles:\s+(\d+)", run.stdout)
    if found is None:
        return None, f"none, {TOOL} did not take the text"
    return int(found.group(1)) / ITERATIONS, TOOL


def _acceptable(instruction: Instruction) -> str | None:
    """The instruction as llvm-mca 19 takes it: it crashes on waits, branches and buffer instructions, so
    loads become global ones and the others are left out."""
    opcode = instruction.opcode
    if opcode.startswith(("s_cbranch", "s_branch", "s_waitcnt", "s_barrier", "s_endpgm")):
        return None
    load = re.fullmatch(r"buffer_load_(\w+)", opcode)
    if load:
        lane = min(int(re.sub(r"\D", "", instruction.operands[1]) or 0), 252)
        return f"global_load_{load.group(1)} {instruction.operands[0]}, v[{lane}:{lane + 1}], off"
    return None if opcode.startswith("buffer_") else instruction.text
