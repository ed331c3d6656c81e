"""bandwidth: bytes per second of a copy, then of attention as the batch grows.

On the CPU a second is one of processor time, of all threads together: neighbours do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import torch

from soak.verify.cases import Bench, Case, Judged, judge
from soak.verify.device import Device, device_of
from soak.verify.messages import Figure, Outcome
from soak.verify.subject import Subject

SEQ_LEN = 2048
BATCHES = (1, 2, 4, 8, 16, 32, 64)
HEADS, HEADS_CPU = 16, 1
SHARE_LEAST = 0.8  # of the best rate of a smaller batch; less is a fall, the rest is clocks and neighbours
ROUNDS = {"gpu": 3, "cpu": 1}  # the best of them counts: the first warms up, others share the machine
MORE_ROUNDS = 4  # of the batches where a fall was seen
COPIES = 5
POINT_S = 0.05  # of work a measured point
PIECES_MOST = 500
_GB = 1e9


def cases(bench: Bench) -> Iterator[Case]:
    del bench
    yield Case("growing-batch", _growing_batch)


def _growing_batch(bench: Bench, seed: int) -> Judged:
    subject = bench.subject
    if subject.is_interpreted:
        return Judged(Outcome.SKIP, says="an interpreter has no speed")
    device = device_of(subject.device)
    ceiling = _copy_rate(subject, device)
    heads = HEADS_CPU if subject.device.type == "cpu" else HEADS
    inputs = subject.draw(seed, batch=BATCHES[-1], heads=heads, seq_len=SEQ_LEN)
    rates = dict.fromkeys(BATCHES, 0.0)

    def measure(batches: Iterable[int]) -> None:
        for batch in batches:
            q, k, v = (x[:batch] for x in inputs[:3])
            n_bytes = 4 * q.numel() * q.element_size()  # Q, K, V read, O written, each once
            seconds = _seconds(partial(subject.forward, q, k, v, False), device)
            rates[batch] = max(rates[batch], n_bytes / seconds)

    for _ in range(ROUNDS[subject.engine]):
        measure(BATCHES)
    for _ in range(MORE_ROUNDS):
        measure(_fallen(rates))
    figures = [Figure("copy", ceiling / _GB, " GB/s")]
    best = 0.0
    for batch, rate in rates.items():
        figures.append(
            Figure(f"batch {batch}", rate / _GB, " GB/s", limit=SHARE_LEAST * best / _GB, floor=True)
        )
        best = max(best, rate)
    figures.append(Figure("of the copy's rate", 100.0 * best / ceiling, " %"))
    return judge(tuple(figures))


def _fallen(rates: Mapping[int, float]) -> list[int]:
    """Batches that are slower than a smaller one."""
    return [
        batch
        for batch, rate in rates.items()
        if rate < SHARE_LEAST * max((rates[b] for b in rates if b < batch), default=0.0)
    ]


def _copy_rate(subject: Subject, device: Device) -> float:
    """Bytes read and written per second by the device's own copy of more than its caches hold."""
    source = torch.ones(device.cache_bytes(), dtype=torch.uint8, device=subject.device)
    target = torch.zeros_like(source)
    seconds = min(_seconds(lambda: target.copy_(source), device) for _ in range(COPIES))
    return 2.0 * source.numel() / seconds


def _seconds(work: Callable[[], object], device: Device) -> float:
    """Of one piece of work; short ones are queued, many at once, to be measured at all."""
    once = _timed(work, 1, device)
    n_more = min(int(POINT_S / max(once, 1e-6)), PIECES_MOST)
    return min(once, _timed(work, n_more, device)) if n_more > 1 else once


def _timed(work: Callable[[], object], n: int, device: Device) -> float:
    device.finish()
    began = device.now_s()
    for _ in range(n):
        work()
    device.finish()
    return (device.now_s() - began) / n
