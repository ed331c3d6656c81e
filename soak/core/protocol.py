"""What a run is: cadences, shapes, and what is due when. Pure arithmetic on milliseconds of elapsed time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from soak.core.records import Stretch

SHORTEST_ROTATION_MS = 60_000  # of a last one, where the interval does not divide the length


@dataclass(frozen=True, slots=True)
class Shape:
    """One rotation of the load: sequence length, mask, and the seed of its inputs."""

    index: int
    seq_len: int
    causal: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of the criteria, from the profile's `[criteria.*]` tables; ratios are fractions of 1."""

    required: frozenset[str]
    utilisation_min_pct: float = 95.0
    utilisation_loss_max: float = 0.02  # of the time
    temperature_kind: str = "band"  # band, margin
    temperature_target_c: float = 72.0
    temperature_band_c: float = 3.0
    temperature_outer_c: float = 6.0
    temperature_margin_c: float = 5.0  # to the card's own slow-down limit
    temperature_good_min: float = 0.98  # of the judged slots
    temperature_judged_min: float = 0.99  # of the due slots
    temperature_polls_min: float = 0.90  # of a slot's polls
    throttle_max: float = 0.001  # of the time
    gradient_max_abs_dq: float = 1e-3
    gradient_max_abs_dk: float = 1e-3
    gradient_max_abs_dv: float = 5e-3
    gradient_relative_l2: float = 2e-3
    integrity_made_min: float = 0.90  # of the comparisons due in a rotation
    coverage_min: float = 0.99


@dataclass(frozen=True, slots=True)
class Protocol:
    """The plan of a run, the same for every card. Durations in milliseconds."""

    duration_ms: int
    rotate_ms: int
    check_ms: int
    sample_ms: int
    poll_ms: int
    warmup_ms: int
    seq_len_min: int
    seq_len_max: int
    seed: int
    limits: Limits
    heads: int = 16
    head_dim: int = 128
    tokens: int = 32768
    dtype: str = "float16"
    kernel: str = "auto"
    compare_every: int = 10  # steps
    work_rate_rule: bool = True
    ecc_every_ms: int = 10_000

    def shape(self, index: int) -> Shape:
        """The rotation `index`: a function of the seed and the index alone, so any process can know it."""
        drawn = hashlib.blake2b(f"soak/rotation/{self.seed}/{index}".encode(), digest_size=24).digest()
        span = self.seq_len_max - self.seq_len_min + 1
        return Shape(
            index=index,
            seq_len=self.seq_len_min + int.from_bytes(drawn[:8], "little") % span,
            causal=bool(drawn[8] & 1),
            seed=int.from_bytes(drawn[16:], "little") >> 1,  # fits a signed 64-bit integer
        )

    def rotation_index(self, at_ms: int) -> int:
        """The rotation in progress at `at_ms`; at the end of the run, the last one."""
        return min(at_ms // self.rotate_ms, self._n_rotations - 1)

    def n_rotations(self, elapsed_ms: int) -> int:
        """Rotations begun by `elapsed_ms`."""
        return min(_begun(elapsed_ms, self.rotate_ms, self.duration_ms), self._n_rotations)

    @property
    def _n_rotations(self) -> int:
        """A rest at the end in which hardly a comparison could be made belongs to the rotation before it."""
        whole, rest_ms = divmod(self.duration_ms, self.rotate_ms)
        own = rest_ms >= min(self.rotate_ms // 2, SHORTEST_ROTATION_MS)
        return max(whole + (rest_ms > 0 and own), 1)

    def n_checks(self, elapsed_ms: int) -> int:
        """Gradient checks due by `elapsed_ms`: k * interval in [0, duration)."""
        return _begun(elapsed_ms, self.check_ms, self.duration_ms)

    def n_checks_settled(self, elapsed_ms: int) -> int:
        """Checks whose own interval is over: one that is still at work is late, not missing."""
        return min(max(elapsed_ms, 0) // self.check_ms, self.n_checks(elapsed_ms))

    def slot_index(self, at_ms: int) -> int:
        """The slot that a poll done at `at_ms` belongs to: slot k covers (k * sample, (k + 1) * sample]."""
        return max(min(at_ms, self.duration_ms) - 1, 0) // self.sample_ms

    def slot_in_progress(self, at_ms: int) -> int:
        """The slot that the time right after `at_ms` belongs to; after the end, one that does not exist."""
        return at_ms // self.sample_ms if at_ms < self.duration_ms else self.n_slots

    def slot_start_ms(self, index: int) -> int:
        return index * self.sample_ms

    def slot_end_ms(self, index: int) -> int:
        return min((index + 1) * self.sample_ms, self.duration_ms)

    @property
    def n_slots(self) -> int:
        return -(-self.duration_ms // self.sample_ms)

    def n_slots_closed(self, elapsed_ms: int) -> int:
        """Slots that are over by `elapsed_ms`."""
        return self.n_slots if elapsed_ms >= self.duration_ms else max(elapsed_ms, 0) // self.sample_ms

    def n_polls(self, slot: int) -> int:
        """Polls due in a slot; at least one."""
        return max((self.slot_end_ms(slot) - self.slot_start_ms(slot)) // self.poll_ms, 1)

    def is_warm(self, slot: int, stretches: tuple[Stretch, ...]) -> bool:
        """Whether the whole slot lies after the warm-up of its stretch."""
        start, end = self.slot_start_ms(slot), self.slot_end_ms(slot)
        begun = [s.start_ms for s in stretches if s.start_ms < end] or [0]
        return start >= max(begun) + self.warmup_ms

    def n_slots_warm(self, n_slots: int, stretches: tuple[Stretch, ...]) -> int:
        """How many of the first `n_slots` slots lie after warm-up; arithmetic, not a loop over slots."""
        starts = sorted({0, *(s.start_ms for s in stretches)})
        warm = 0
        for start, following in zip(starts, [*starts[1:], None], strict=True):
            first = -(-(start + self.warmup_ms) // self.sample_ms)
            beyond = n_slots if following is None else min(n_slots, following // self.sample_ms)
            warm += max(beyond - first, 0)
        return warm


def _begun(elapsed_ms: int, every_ms: int, duration_ms: int) -> int:
    last_ms = min(elapsed_ms, duration_ms - 1)
    return 0 if last_ms < 0 else last_ms // every_ms + 1
