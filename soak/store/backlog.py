"""Rows that wait for the store, bounded, and what is told of its outages. The owner does the locking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from soak.core.ports import Clock, Happening
from soak.core.records import Attempt, IntegrityCheck, Rotation, Slot
from soak.store.keys import Key, Record, key_of

_NEVER_DROPPED, _KEPT_LONG, _ORDINARY = range(3)
_RANKS = {"run": _NEVER_DROPPED, "attempt": _NEVER_DROPPED, "finding": _NEVER_DROPPED}  # few by their nature
_RANKS |= {"incident": _KEPT_LONG, "gradient_check": _KEPT_LONG}


class Backlog:
    """One record a key, the latest; what was taken and did not arrive comes back, unless it was replaced.

    Beyond `limit` records the oldest slot, rotation or integrity row goes; where there is none, the newest
    incident or gradient check, since the first ones say what went wrong. What goes is counted by attempt.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: tuple[dict[Key, Record], ...] = ({}, {}, {})  # by rank, each in the order of arrival
        self._taken: dict[Key, Record] = {}
        self._attempt = 0
        self.dropped: Counter[int] = Counter()  # by attempt

    def __len__(self) -> int:
        return len(self._taken) + sum(len(rank) for rank in self._waiting)

    def put(self, record: Record) -> int:
        """Lets it wait, in the place of an earlier one with its key. Returns how many rows went for it."""
        key = key_of(record)
        if isinstance(record, Attempt):
            self._attempt = record.number
        self._waiting[_RANKS.get(key[0], _ORDINARY)][key] = record
        n_dropped = 0
        while len(self) > self._limit and self._drop_one():
            n_dropped += 1
        return n_dropped

    def _drop_one(self) -> bool:
        if self._waiting[_ORDINARY]:
            oldest = next(iter(self._waiting[_ORDINARY]))
            self.count_dropped(self._waiting[_ORDINARY].pop(oldest))
        elif self._waiting[_KEPT_LONG]:
            self.count_dropped(self._waiting[_KEPT_LONG].popitem()[1])
        else:
            return False
        return True

    def count_dropped(self, record: Record) -> None:
        """This record never reaches the store."""
        self.dropped[getattr(record, "attempt", self._attempt)] += 1

    def take(self, n: int) -> Sequence[Record]:
        """Up to n records, those that are never dropped first; they count as waiting until settled."""
        assert not self._taken, "the records taken before are not settled"
        for rank in self._waiting:
            while rank and len(self._taken) < n:
                key = next(iter(rank))
                self._taken[key] = rank.pop(key)
        return list(self._taken.values())

    def arrived(self) -> None:
        """The records taken are in the store."""
        self._taken.clear()

    def failed(self) -> None:
        """The records taken are not in the store: they wait again, before the others."""
        for index, rank in enumerate(self._waiting):
            older = {key: r for key, r in self._taken.items() if _RANKS.get(key[0], _ORDINARY) == index}
            older.update(rank)  # a later record with the same key has replaced the one that was taken
            rank.clear()
            rank.update(older)
        self._taken.clear()


def is_final(record: Record) -> bool:
    """Whether nothing will replace the record soon: it should be in the store without delay."""
    match record:
        case Slot():
            return record.closed
        case Attempt():
            return record.end != "running"
        case Rotation() | IntegrityCheck():
            return False
        case _:
            return True


class Outages:
    """Tells each outage of the store once, its end once, and the first loss in it."""

    def __init__(self, clock: Clock, where: str) -> None:
        self._clock = clock
        self._where = where
        self._since_ms: int | None = None
        self._n_dropped = 0  # in this outage
        self._told: list[Happening] = []

    @property
    def is_away(self) -> bool:
        return self._since_ms is not None

    def failed(self, reason: str, n_waiting: int) -> None:
        """A write was refused."""
        if self._since_ms is None:
            self._since_ms = self._clock.boot_ms()
            self._tell("store_error", f"{self._where}: {reason}", reason=reason, rows_waiting=n_waiting)

    def worked(self, n_written: int) -> None:
        """A write went through."""
        if self._since_ms is None:
            return
        away_ms = self._clock.boot_ms() - self._since_ms
        self._tell(
            "store_recovered",
            f"{self._where} takes writes again after {away_ms / 1000:.0f} s, {self._n_dropped} rows lost",
            away_ms=away_ms,
            rows_written=n_written,
            rows_dropped=self._n_dropped,
        )
        self._since_ms, self._n_dropped = None, 0

    def dropped(self, n: int, limit: int) -> None:
        """More rows waited than may wait."""
        if n and not self._n_dropped:
            self._tell("rows_dropped", f"more than {limit} rows wait for {self._where}", limit=limit)
        self._n_dropped += n

    def refused(self, record: Record, reason: str) -> None:
        """The store works and cannot hold this row."""
        table, key = key_of(record)
        self._tell("rows_dropped", f"{self._where} cannot hold {table} {key}: {reason}", reason=reason)

    def lost_lease(self, names: Sequence[str]) -> None:
        """Another daemon holds what this one held."""
        self._tell("lease_lost", f"another daemon took {', '.join(names)}", names=list(names))

    def take(self) -> list[Happening]:
        """What was told since the last call."""
        told, self._told = self._told, []
        return told

    def _tell(self, kind: str, detail: str, **data: object) -> None:
        self._told.append(Happening(kind, self._clock.boot_ms(), detail=detail, data=data))
