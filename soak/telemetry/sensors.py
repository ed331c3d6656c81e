"""What a backend offers the sampler: which cards there are, and one object a card that reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from soak.core.records import Device, Quantity, Reading


class Unavailable(Exception):
    """A backend cannot work here at all: no driver, no library. The message says why."""


class CardGone(Exception):
    """A card that should be there is not: fallen off the bus, or gone from its driver."""


class Sensor(Protocol):
    """One card. Every call may hang for ever; it runs in a thread of its own."""

    def describe(self) -> Device:
        """Who the card is, what can be read of it, and its error counters now. Raises CardGone."""

    def read(self) -> Mapping[Quantity, Reading]:
        """Every quantity of the card. Raises CardGone."""

    def read_ecc(self) -> Mapping[str, Reading] | None:
        """Raw error counters keyed `view/block/kind`; None where the card has none. Raises CardGone."""


class Backend(Protocol):
    """One kind of card."""

    def find(self) -> Sequence[str]:
        """The cards' addresses in the order of their numbers, without asking a card. Raises Unavailable."""

    def open(self, gpu: str) -> Sensor:
        """The card at this address. Raises Unavailable, CardGone."""
