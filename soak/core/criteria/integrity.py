"""integrity: every rotation was compared with its golden digests, often enough, and was bit-equal.

A gradient check compares too: outputs that do not carry the golden digest of the same inputs are a mismatch.
"""

from __future__ import annotations

from typing import ClassVar

from soak.core.criteria.base import Card, Conclusion, Evidence, Standing, earliest
from soak.core.records import Cause, GradientCheck, IntegrityCheck, State


class Integrity:
    name: ClassVar[str] = "integrity"

    def __init__(self, card: Card) -> None:
        self._card = card
        self._compared = 0  # bit k: rotation k was compared often enough
        self._n = 0
        self._mismatches = 0
        self._n_unproved = 0  # gradient checks whose outputs did not carry the golden digest
        self._first_ms: int | None = None

    def fold(self, record: Evidence) -> None:
        if isinstance(record, GradientCheck) and record.golden_proved is False:
            self._n_unproved += 1
            self._first_ms = earliest(self._first_ms, record.at_ms)
        if not isinstance(record, IntegrityCheck):
            return
        made_min = self._card.protocol.limits.integrity_made_min
        if record.n >= 1 and record.n >= made_min * record.n_due:
            self._compared |= 1 << record.rotation
        self._n += record.n
        if record.mismatches:
            self._mismatches += record.mismatches
            self._first_ms = earliest(self._first_ms, record.at_ms)

    def conclude(self, standing: Standing) -> Conclusion:
        protocol = self._card.protocol
        over = protocol.n_rotations(protocol.duration_ms)
        if not standing.is_complete(protocol):
            over = min(over, standing.elapsed_ms // protocol.rotate_ms)
        compared = (self._compared & ((1 << over) - 1)).bit_count()
        if self._n_unproved and not self._mismatches:
            state = State.FAIL
            reason = f"the outputs of {self._n_unproved} gradient checks did not carry the golden digest"
        elif self._mismatches:
            state, reason = State.FAIL, f"{self._mismatches} of {self._n} comparisons were not bit-equal"
        elif compared < over:
            state, reason = State.UNKNOWN, f"{compared} of {over} rotations were compared often enough"
        elif not self._compared:
            state, reason = State.UNKNOWN, "no comparison was made yet"
        else:
            state, reason = State.PASS, f"{self._n} comparisons, all bit-equal"
        return Conclusion(
            state,
            reason,
            value=float(self._mismatches) if self._n else None,
            threshold=0.0,
            unit="mismatches",
            cause=Cause.HARDWARE if state is State.FAIL else None,
            at_ms=self._first_ms,
        )
