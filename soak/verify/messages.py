"""What parent and child say to each other: JSON lines, an order one way, events the other."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

import msgspec

from soak.core.protocol import Limits

ROUNDS = ("numerics", "boundary", "gradient", "bandwidth", "memory", "integrity")
PLANTS = ("overflow", "write-outside", "read-outside", "scale", "slow", "leak", "bit-flip", "hang", "crash")
ENGINES = ("cpu", "gpu", "interpreter")


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "FAIL"
    ERROR = "error"  # could not be completed: neither right nor wrong was shown
    SKIP = "skip"  # does not apply to this subject; the reason is said


class Order(msgspec.Struct, frozen=True):
    """What one child verifies. `case`: only cases whose name has this in it; `done`: not these, `round/name`,
    since an earlier child has them; `plant`: one of PLANTS, to show that it is found."""

    gpu: str  # PCI address, or cpu
    engine: str
    kernel: str  # auto or a name
    head_dim: int  # the load's
    dtype: str
    limits: Limits
    seed: int
    rounds: tuple[str, ...] = ROUNDS
    case: str = ""
    done: tuple[str, ...] = ()
    plant: str | None = None


class About(msgspec.Struct, frozen=True, tag="about"):
    """The subject, once it is ready: which kernel of those there are, and why."""

    gpu: str
    kernel: str
    reason: str
    dtype: str
    versions: Mapping[str, str]


class Began(msgspec.Struct, frozen=True, tag="began"):
    round: str
    case: str


class Figure(msgspec.Struct, frozen=True):
    """A number that was measured; `limit`: what it is held to, None where it is reported only. `floor`: the
    limit is the least that is allowed, not the most."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None
    floor: bool = False


class Result(msgspec.Struct, frozen=True, tag="result"):
    """How a case ended. `says`: in words, what was wrong first; "" where the figures say all."""

    round: str
    case: str
    outcome: Outcome
    says: str
    figures: tuple[Figure, ...]
    took_s: float

    @property
    def id(self) -> str:
        return f"{self.round}/{self.case}"


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """The child cannot go on. `kind`: an incident of `core.incidents`, or `usage`."""

    kind: str
    sentence: str


class Over(msgspec.Struct, frozen=True, tag="over"):
    """Every case was made."""


Event: TypeAlias = About | Began | Result | Stopped | Over
