"""Error counts since t0, from raw counters that may be reset, wrap, or vanish for a while."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from soak.core.records import ECC_KINDS, Reading, ReadingStatus


def readable(raw: Mapping[str, Reading]) -> dict[str, int] | None:
    """The counters as integers, or None where one of them could not be read (or there is none)."""
    values = {
        key: int(r.value) for key, r in raw.items() if r.status is ReadingStatus.OK and r.value is not None
    }
    supported = [key for key, r in raw.items() if r.status is not ReadingStatus.UNSUPPORTED]
    return values if values and len(values) == len(supported) else None


@dataclass(slots=True)
class EccLedger:
    """Sums the increases of every counter over resets; a reset counts what the counter says afterwards.

    `raw`: each counter's last value, at first the baseline; `since_t0`: its increases so far; `before`:
    errors by kind of an earlier part of the attempt. What was counted cannot be known where a counter goes
    back inside a gap (readings further apart than they should be), or appears with errors and without a
    baseline: `doubt` says so, for good.
    """

    raw: dict[str, int]
    since_t0: dict[str, int] = field(default_factory=dict)
    doubt: str = ""
    before: Mapping[str, int] = field(default_factory=dict)

    def read(self, raw: Mapping[str, int], *, after_gap: bool) -> list[str]:
        """Takes a reading of all counters; the keys that went back."""
        went_back = []
        for key, value in raw.items():
            last = self.raw.get(key)
            if last is None and value > 0:
                self._doubt(f"{key} appeared with {value} and was not there at t0")
            elif last is not None and value < last:
                went_back.append(key)
                if after_gap:
                    self._doubt(f"{key} went back from {last} to {value} while nobody was reading")
            rise = 0 if last is None else value - last if value >= last else value
            self.since_t0[key] = self.since_t0.get(key, 0) + rise
            self.raw[key] = value
        return went_back

    def _doubt(self, why: str) -> None:
        self.doubt = self.doubt or why

    def covers(self, raw: Mapping[str, int]) -> bool:
        """Whether a reading has every counter of the baseline."""
        return self.raw.keys() <= raw.keys()

    def risen(self, raw: Mapping[str, Reading]) -> dict[str, int]:
        """Of an incomplete reading: the counters that are higher than they were last."""
        told = {key: int(r.value) for key, r in raw.items() if r.status is ReadingStatus.OK and r.value}
        return {key: value for key, value in told.items() if value > self.raw.get(key, value)}

    def totals(self) -> dict[str, int]:
        """Errors since t0 by kind. Views (volatile, aggregate) show the same errors: the largest counts;
        blocks of one view are summed."""
        views: dict[str, dict[str, int]] = {}
        for key, rise in self.since_t0.items():
            view, _, kind = key.split("/")
            by_kind = views.setdefault(view, {})
            by_kind[kind] = by_kind.get(kind, 0) + rise
        known = {*self.before, *(kind for by_kind in views.values() for kind in by_kind)}
        return {
            kind: self.before.get(kind, 0) + max((v.get(kind, 0) for v in views.values()), default=0)
            for kind in ECC_KINDS
            if kind in known
        }
