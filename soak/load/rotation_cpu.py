"""One rotation on the CPU: who computes which head of which step, the golden outputs, and what was
compared."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from soak_kernels.digest import DigestWeights, digest

from soak.core.protocol import Shape
from soak.load.gradient import Outputs
from soak.load.integrity import golden_name, same_bits
from soak.load.recipe import Inputs


class Unit(NamedTuple):
    """A lane's piece of work: one head of one step."""

    step: int
    head: int


@dataclass
class _Step:
    heads_left: int
    began_boot_ms: int
    made_golden: bool = False
    wrong: bool = False


@dataclass(frozen=True, slots=True)
class Tally:
    """What a rotation has come to."""

    n_steps: int
    n_due: int
    n_compared: int
    mismatches: int
    golden: str


@dataclass
class RotationCpu:
    """Shared by the lanes. A step is the whole sequence, `copies` times over; its heads are handed out one by
    one, and the next step's follow without a pause, so that no core waits for another."""

    shape: Shape
    inputs: Inputs  # each [1, heads, seq_len, head_dim]
    heads: int
    weights: DigestWeights
    copies: int = 1
    n_steps: int = 0
    n_due: int = 0
    n_compared: int = 0
    mismatches: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)
    _next: int = field(default=0, init=False)
    _steps: dict[int, _Step] = field(default_factory=dict, init=False)
    _golden: dict[int, Outputs] = field(default_factory=dict, init=False, repr=False)
    _digests: dict[int, tuple[torch.Tensor, ...]] = field(default_factory=dict, init=False, repr=False)
    _name: str = field(default="", init=False)

    def next_unit(self, now_boot_ms: int) -> Unit:
        with self._lock:
            step, head = divmod(self._next, self.heads)
            self._next += 1
            if head == 0:
                self._steps[step] = _Step(self.heads, now_boot_ms)
            return Unit(step, head)

    def settle(self, unit: Unit, outputs: Outputs) -> Outputs | None:
        """Keeps the head's first outputs as golden, compares the others; the golden ones where they differ.

        outputs: [copies, …]; golden is the first copy of the first step, as often as there are copies.
        """
        with self._lock:
            golden = self._golden.get(unit.head)
            made = golden is None
            if golden is None:
                golden = self._golden[unit.head] = Outputs(*(_repeated(each) for each in outputs))
                self._steps[unit.step].made_golden = True
        if made:
            self._name_golden(unit.head, self._digest(one_copy(golden, 0)))
        return None if all(same_bits(a, b) for a, b in zip(golden, outputs, strict=True)) else golden

    def finish(self, unit: Unit, *, wrong: bool) -> bool:
        """Whether this was the last head of its step. A step that made a golden output is no comparison."""
        with self._lock:
            step = self._steps[unit.step]
            step.heads_left -= 1
            step.wrong = step.wrong or wrong
            if step.heads_left:
                return False
            del self._steps[unit.step]
            self.n_steps += 1
            self.n_due += not step.made_golden
            self.n_compared += not step.made_golden
            self.mismatches += step.wrong
            return True

    def carries_golden(self, head: int, outputs: Outputs) -> bool | None:
        """Whether these outputs of one copy have the golden digest; None where the head has none yet."""
        with self._lock:
            golden = self._digests.get(head)
        if golden is None:
            return None
        return all(torch.equal(a, b) for a, b in zip(self._digest(outputs), golden, strict=True))

    def golden_intact(self, head: int, copy: int) -> bool | None:
        """Whether the golden outputs in memory still have their digest: if not, it is they that changed."""
        with self._lock:
            golden = self._golden[head]
        return self.carries_golden(head, one_copy(golden, copy))

    def in_step_since(self) -> int | None:
        with self._lock:
            return min((step.began_boot_ms for step in self._steps.values()), default=None)

    def tally(self) -> Tally:
        with self._lock:
            return Tally(self.n_steps, self.n_due, self.n_compared, self.mismatches, self._name)

    def _digest(self, outputs: Outputs) -> tuple[torch.Tensor, ...]:
        """Of one head: int64 [1, row blocks] a tensor."""
        return tuple(digest(tensor.contiguous()[None, None], weights=self.weights) for tensor in outputs)

    def _name_golden(self, head: int, digests: tuple[torch.Tensor, ...]) -> None:
        with self._lock:
            self._digests[head] = digests
            if len(self._digests) == self.heads:
                self._name = golden_name(each for h in range(self.heads) for each in self._digests[h])


def one_copy(outputs: Outputs, copy: int) -> Outputs:
    """Of [copies, …]: that one, [seq_len, …]."""
    return Outputs(*(each[copy] for each in outputs))


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    """The first copy in the place of every copy."""
    return tensor[:1].expand_as(tensor).contiguous()
