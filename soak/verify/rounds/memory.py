"""memory: after many shapes, allocated, run and freed, everything is free again."""

from __future__ import annotations

import random
from collections.abc import Iterator

from soak.verify.cases import Bench, Case, Judged, judge
from soak.verify.device import Device, device_of
from soak.verify.messages import Figure, Outcome

N_SHAPES = 24
LONGEST = {"gpu": 4096, "cpu": 384}
HEADS_MOST = {"gpu": 16, "cpu": 4}
N_PASSES = 2
KEPT_MOST = 16 << 20  # bytes; the runtime's own rounding, and what a library keeps for next time
_MIB = float(1 << 20)


def cases(bench: Bench) -> Iterator[Case]:
    del bench
    yield Case("many-shapes", _many_shapes)


def _many_shapes(bench: Bench, seed: int) -> Judged:
    """The first pass brings in machine code, threads and scratch, which stay; what others leave is lost."""
    if bench.subject.is_interpreted:
        return Judged(Outcome.SKIP, says="the memory of an interpreter is Python's")
    device = device_of(bench.subject.device)
    draw = random.Random(seed)
    longest, heads_most = LONGEST[bench.subject.engine], HEADS_MOST[bench.subject.engine]
    shapes = [(draw.randint(1, longest), draw.randint(1, heads_most), i % 2 == 1) for i in range(N_SHAPES)]
    _pass(bench, shapes, seed, device)
    device.settle()
    before, size_before = device.in_use(), device.size()
    worst = 0.0
    for _ in range(N_PASSES):
        worst = max(worst, _pass(bench, shapes, seed, device))
    fragmentation = device.fragmentation()
    device.settle()
    kept, size = device.in_use() - before, device.size()
    figures = [
        Figure("kept", kept / _MIB, " MiB", limit=KEPT_MOST / _MIB),
        Figure("most in use", worst / _MIB, " MiB"),
    ]
    if fragmentation is not None:
        figures.append(Figure("fragmentation", 100.0 * fragmentation, " % of the allocator's memory"))
    changed = f"the card's memory was {size_before} bytes and is {size}" if size != size_before else ""
    return judge(tuple(figures), changed)


def _pass(bench: Bench, shapes: list[tuple[int, int, bool]], seed: int, device: Device) -> float:
    """Every shape once; the most bytes that were in use."""
    subject, most = bench.subject, 0
    for seq_len, heads, causal in shapes:
        inputs = subject.draw(seed, batch=1, heads=heads, seq_len=seq_len)
        outputs = subject.attend(inputs, causal)
        most = max(most, device.in_use())
        del inputs, outputs
    return float(most)
