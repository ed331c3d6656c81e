"""The connections that are open, bounded; when one more comes, the one that is worth least goes."""

from __future__ import annotations

from typing import Protocol


class Member(Protocol):
    @property
    def is_busy(self) -> bool:
        """A reply is on its way."""

    def drop(self) -> None:
        """Ends at once."""


class Crowd:
    """Refusing the newcomer would let a thousand idle connections keep the scraper out; so the oldest that
    was never served goes first, then the one that was served longest ago."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: dict[Member, None] = {}  # in the order of their coming
        self._served: dict[Member, None] = {}  # in the order of their last reply

    def __len__(self) -> int:
        return len(self._new) + len(self._served)

    @property
    def members(self) -> tuple[Member, ...]:
        return (*self._new, *self._served)

    def admit(self, member: Member) -> None:
        """Takes one in, and drops another where that is one too many."""
        if len(self) >= self._most:
            oldest = next(iter(self._new or self._served))
            self.leave(oldest)
            oldest.drop()
        self._new[member] = None

    def served(self, member: Member) -> None:
        """A reply has been taken; one that was dropped meanwhile stays out."""
        if member in self._new or member in self._served:
            self.leave(member)
            self._served[member] = None

    def leave(self, member: Member) -> None:
        self._new.pop(member, None)
        self._served.pop(member, None)
