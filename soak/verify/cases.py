"""What a round is made of: named cases, each with its own stream of random numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from soak.core.protocol import Limits
from soak.verify.messages import Figure, Outcome
from soak.verify.subject import Subject


@dataclass(frozen=True)
class Judged:
    """What a case came to."""

    outcome: Outcome
    figures: tuple[Figure, ...] = ()
    says: str = ""


@dataclass(frozen=True)
class Bench:
    """What a case works on. `seed`: the command's; a case draws with `seed_of`."""

    subject: Subject
    limits: Limits
    seed: int


@dataclass(frozen=True)
class Case:
    """`run`: makes it, from the seed that it is given and nothing else that is random."""

    name: str
    run: Callable[[Bench, int], Judged]


Cases = Callable[[Bench], Iterator[Case]]


def seed_of(seed: int, round_: str, case: str) -> int:
    """The seed of one case: whichever others run, it draws the same."""
    drawn = hashlib.blake2b(f"soak/verify/{seed}/{round_}/{case}".encode(), digest_size=8).digest()
    return int.from_bytes(drawn, "little") >> 1


def judge(figures: tuple[Figure, ...], *complaints: str) -> Judged:
    """FAIL where there is a complaint or a figure beyond its limit, NaN included; the first is said."""
    broken = [words for words in complaints if words] + [_beyond(f) for f in figures if not within(f)]
    return Judged(Outcome.FAIL if broken else Outcome.OK, figures, "; ".join(broken))


def within(figure: Figure) -> bool:
    """Whether the limit holds; a NaN is within none."""
    if figure.limit is None:
        return True
    return figure.value >= figure.limit if figure.floor else figure.value <= figure.limit


def _beyond(figure: Figure) -> str:
    words = "at least" if figure.floor else "at most"
    limit = f"{figure.limit:.3g}"
    return f"{figure.name} is {figure.value:.3g}{figure.unit}, {words} {limit}{figure.unit} is right"
