"""How fast this card works: measured at a few lengths and both masks before t0, interpolated between."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Calibration:
    """`rates`: (seq_len, causal) -> operations a millisecond, forward and backward together; at least one."""

    rates: Mapping[tuple[int, bool], float]

    def rate(self, seq_len: int, causal: bool) -> float:
        """Interpolated over seq_len; outside the measured lengths the nearest holds, an unmeasured mask uses
        the other's."""
        mask = causal if any(c == causal for _, c in self.rates) else not causal
        lengths = sorted(length for length, c in self.rates if c == mask)
        place = bisect_left(lengths, seq_len)
        below, above = lengths[max(place - 1, 0)], lengths[min(place, len(lengths) - 1)]
        share = (seq_len - below) / (above - below) if above > below and place > 0 else 0.0
        return self.rates[below, mask] * (1.0 - share) + self.rates[above, mask] * share

    def step_ms(self, seq_len: int, causal: bool, work: float) -> float:
        """Of a step that takes `work` operations."""
        return work / self.rate(seq_len, causal)


def lengths_between(smallest: int, largest: int, n: int) -> list[int]:
    """`n` lengths from smallest to largest, equally far apart; fewer where there are not so many."""
    return sorted({smallest + (largest - smallest) * i // (n - 1) for i in range(n)})
