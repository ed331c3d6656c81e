"""Small programs of gfx906 written by hand, run by the emulator; no Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from soak_kernels.gfx906.emulator import Emulator, Execution
from soak_kernels.gfx906.parse import Program, parse

_ENTRY = """
small:
{body}
	s_endpgm
.Lfunc_end0:
	.amdhsa_kernel small
		.amdhsa_user_sgpr_private_segment_buffer 1
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_system_sgpr_workgroup_id_x 1
	.end_amdhsa_kernel
amdhsa.kernels:
  - .args:
{args}
    .group_segment_fixed_size: 0
    .kernarg_segment_size: {size}
    .private_segment_fixed_size: 0
    .sgpr_count:     32
    .sgpr_spill_count: 0
    .vgpr_count:     32
    .vgpr_spill_count: 0
"""


def program_of(body: str, n_pointers: int = 1) -> Program:
    """A kernel with `n_pointers` tensors; s[4:5]: the argument segment, s6: the workgroup, v0: the lane."""
    args = "\n".join(
        f"      - .offset: {8 * i}\n        .size: 8\n        .value_kind: global_buffer"
        for i in range(n_pointers)
    )
    lines = "\n".join(
        f"{line}" if line.startswith(".L") else f"\t{line}" for line in body.strip().splitlines()
    )
    return parse(_ENTRY.format(body=lines, args=args, size=8 * n_pointers))


@pytest.fixture
def run() -> Callable[..., tuple[Execution, list[np.ndarray[Any, Any]]]]:
    """run(body, *tensors, num_warps=1, lds_bytes=0, ...): the execution and the tensors after it."""

    def run_(
        body: str,
        *tensors: np.ndarray[Any, Any],
        num_warps: int = 1,
        lds_bytes: int = 0,
        groups: int = 1,
        **options: Any,
    ) -> tuple[Execution, list[np.ndarray[Any, Any]]]:
        after: Sequence[np.ndarray[Any, Any]] = [x.copy() for x in tensors]
        done = Emulator(program_of(body, len(tensors))).run(
            list(after), grid=(groups, 1, 1), num_warps=num_warps, lds_bytes=lds_bytes, **options
        )
        return done, list(after)

    return run_


@pytest.fixture
def lane_wise(run: Callable[..., Any]) -> Callable[..., np.ndarray[Any, Any]]:
    """lane_wise(instructions, x, y, ...): uint32 [64] each in v1, v2, ...; what v10 holds afterwards."""

    def run_(body: str, *inputs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        lines = ["v_lshlrev_b32_e32 v31, 2, v0"]
        for i in range(len(inputs) + 1):
            lines.append(f"s_load_dwordx2 s[{8 + 2 * i}:{9 + 2 * i}], s[4:5], {8 * i:#x}")
        for i in range(len(inputs)):
            lines.append(f"global_load_dword v{1 + i}, v31, s[{10 + 2 * i}:{11 + 2 * i}]")
        lines += [*body.strip().splitlines(), "global_store_dword v31, v10, s[8:9]"]
        arrays = [np.ascontiguousarray(x).view(np.uint32) for x in inputs]
        _, (out, *_) = run("\n".join(lines), np.zeros(64, np.uint32), *arrays)
        result: np.ndarray[Any, Any] = out
        return result

    return run_
