"""The six rounds, by name: each gives its cases for a subject."""

from __future__ import annotations

from collections.abc import Mapping

from soak.verify.cases import Cases
from soak.verify.rounds import bandwidth, boundary, gradient, integrity, memory, numerics


def rounds() -> Mapping[str, Cases]:
    """In the order in which they are made."""
    return {
        "numerics": numerics.cases,
        "boundary": boundary.cases,
        "gradient": gradient.cases,
        "bandwidth": bandwidth.cases,
        "memory": memory.cases,
        "integrity": integrity.cases,
    }
