"""What is said about an output that differs from the golden one, the same for a CPU and a GPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from soak.core.ports import Happening
from soak.core.protocol import Shape
from soak.load.integrity import Difference

MISMATCHES_TOLD = 16  # a rotation; more are counted only


@dataclass(frozen=True, slots=True)
class Place:
    """Where it happened: one (batch, head) of one output of one step."""

    shape: Shape
    step: int
    tensor: str
    batch: int
    head: int


def mismatch(
    gpu: str, boot_ms: int, place: Place, found: Difference, replay: str, golden_intact: bool | None
) -> Happening:
    """`golden_intact`: whether the golden outputs in memory still have their own digest."""
    detail = (
        f"step {place.step} of rotation {place.shape.index}: {place.tensor} of batch {place.batch}, "
        f"head {place.head} differs from the golden output in {found.n_bits} bits of {found.n_elements} "
        f"elements, first in row {found.first[0]}; the replay says {replay}"
    )
    data: dict[str, Any] = {
        "tensor": place.tensor,
        "batch": place.batch,
        "head": place.head,
        **asdict(found),
        "replay": replay,
        "rotation": place.shape.index,
        "step": place.step,
        "seq_len": place.shape.seq_len,
        "causal": place.shape.causal,
        "golden_intact": golden_intact,
    }
    return Happening("mismatch", boot_ms, gpu, detail, data)
