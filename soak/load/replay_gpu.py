"""After a comparison that found a difference: where it is, bit by bit, and what the same inputs give
again."""

from __future__ import annotations

import torch
from soak_kernels.digest import digest, locate

from soak.core.ports import Happening
from soak.load.buffers_gpu import Buffers, Slot
from soak.load.gradient import Outputs
from soak.load.integrity import Difference, difference, replay_says
from soak.load.kernel_gpu import Kernel
from soak.load.mismatch import Place, mismatch
from soak.load.rotation_gpu import RotationGpu
from soak.load.streams import Streams

HEADS_TOLD = 4  # a tensor and step


def explain(
    gpu: str,
    boot_ms: int,
    streams: Streams,
    kernel: Kernel,
    buffers: Buffers,
    rotation: RotationGpu,
    step: int,
    slot: Slot,
) -> list[Happening]:
    """Lets the queue run empty, replays the step, and compares the heads whose digests differ on the host.

    Takes a pause of the load; at a mismatch that is no loss. On the load's stream, from the launching thread.
    """
    size, golden = rotation.size, buffers.golden[rotation.place]
    streams.drain()
    replayed = buffers.plain.outputs(size)
    kernel.run(rotation.prepared, rotation.inputs, replayed, rotation.shape.causal)
    streams.drain()
    happened = []
    got_digests, golden_digests = slot.digests(size), golden.digests(size)
    for number, name in enumerate(Outputs._fields):
        ours, theirs = got_digests[number].cpu(), golden_digests[number].cpu()
        if torch.equal(ours, theirs):
            continue
        expected, got, again = (
            getattr(outputs, name) for outputs in (golden.outputs(size), slot.outputs(size), replayed)
        )
        intact = torch.equal(digest(expected, weights=buffers.weights).cpu(), theirs)
        blocks = locate(ours, theirs, seq_len=size.seq_len)
        for index in list(dict.fromkeys(block.slice for block in blocks))[:HEADS_TOLD]:
            batch, head = divmod(index, size.heads)
            heads = [tensor[batch, head].cpu() for tensor in (expected, got, again)]
            found = difference(heads[0], heads[1])
            replay = replay_says(*heads)
            if found is None:  # the bits are right when they are read again: the digest was not
                rows = tuple((b.first_row, b.last_row) for b in blocks if b.slice == index)
                found, replay = Difference(0, 0, rows, (rows[0][0], 0), 0), "transient"
            place = Place(rotation.shape, step, name, batch, head)
            happened.append(mismatch(gpu, boot_ms, place, found, replay, intact))
    return happened
