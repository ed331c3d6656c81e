"""What a run finds: the forbidden things that a program did, the first few of each instruction."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

MOST_PER_INSTRUCTION = 4


@dataclass(frozen=True)
class Finding:
    """One forbidden access. kind: "read outside tensors", "write outside tensors", "missing barrier",
    "outside LDS"; text: the instruction; workgroup: its number in the launch; address: bytes (of memory, or
    in the LDS)."""

    kind: str
    text: str
    workgroup: int
    wave: int
    lane: int
    address: int


class Findings:
    """Collects findings; counts all, keeps a few."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self._texts = texts
        self._kept: list[Finding] = []
        self.counts: Counter[str] = Counter()
        self._by_instruction: Counter[int] = Counter()

    @property
    def kept(self) -> tuple[Finding, ...]:
        return tuple(self._kept)

    def add(self, kind: str, number: int, workgroup: int, wave: int, lane: int, address: int) -> None:
        self.counts[kind] += 1
        self._by_instruction[number] += 1
        if self._by_instruction[number] <= MOST_PER_INSTRUCTION:
            self._kept.append(Finding(kind, self._texts[number], workgroup, wave, lane, address))
