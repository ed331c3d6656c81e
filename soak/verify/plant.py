"""Faults put into a kernel on purpose: each is one that its round must find."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

import torch

from soak.load.gradient import Outputs
from soak.load.integrity import flip_bit_in_place
from soak.load.recipe import Inputs
from soak.verify.messages import PLANTS
from soak.verify.rounds.numerics import LARGEST
from soak.verify.subject import Subject, UsageError

_WRONG_SCALE = 1.05
_FLIP_EVERY = 3  # runs
_SLOW_FROM = 16  # sequences a launch


def planted(subject: Subject, fault: str | None) -> Subject:
    """The subject with this fault; UsageError for one that is not known."""
    if fault is None:
        return subject
    if fault not in PLANTS:
        raise UsageError(f"there is no fault {fault!r} to plant; legal: {', '.join(PLANTS)}")
    return _MAKERS[fault](subject)


def _overflow(subject: Subject) -> Subject:
    """Scores are kept in float16: those beyond 65504 are infinite."""

    def attend(inputs: Inputs, causal: bool) -> Outputs:
        outputs = subject.attend(inputs, causal)
        top = inputs.q.float().abs().amax() * inputs.k.float().abs().amax() * inputs.q.shape[3] ** 0.5
        if top > LARGEST:
            outputs.o.fill_(torch.nan)
        return outputs

    return replace(subject, attend=attend)


def _write_outside(subject: Subject) -> Subject:
    """One element is written behind the end of Q."""

    def attend(inputs: Inputs, causal: bool) -> Outputs:
        outputs = subject.attend(inputs, causal)
        if (behind := _behind(inputs.q)) is not None:
            behind[0] = 0.0
        return outputs

    return replace(subject, attend=attend)


def _read_outside(subject: Subject) -> Subject:
    """The last row of K is read from one element further on."""

    def attend(inputs: Inputs, causal: bool) -> Outputs:
        k = inputs.k.clone()
        if (behind := _behind(inputs.k)) is not None:
            k[-1, -1, -1, -1] = behind[0]
        return subject.attend(inputs._replace(k=k), causal)

    return replace(subject, attend=attend)


def _behind(x: torch.Tensor) -> torch.Tensor | None:
    """The element behind a contiguous tensor, where its storage goes on."""
    end = x.storage_offset() + x.numel()
    if (end + 1) * x.element_size() > x.untyped_storage().nbytes():
        return None
    return x.as_strided((1,), (1,), end)


def _scale(subject: Subject) -> Subject:
    """Scores are 5 % too large."""

    def attend(inputs: Inputs, causal: bool) -> Outputs:
        outputs = subject.attend(inputs._replace(q=inputs.q * _WRONG_SCALE), causal)
        return outputs._replace(dq=outputs.dq * _WRONG_SCALE)

    return replace(subject, attend=attend)


def _slow(subject: Subject) -> Subject:
    """A launch of a large batch takes twice as long as it should."""

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        if q.shape[0] >= _SLOW_FROM:
            subject.forward(q, k, v, causal)
        return subject.forward(q, k, v, causal)

    return replace(subject, forward=forward)


def _leak(subject: Subject) -> Subject:
    """Outputs are kept for ever."""
    kept: list[Outputs] = []

    def attend(inputs: Inputs, causal: bool) -> Outputs:
        kept.append(subject.attend(inputs, causal))
        return kept[-1]

    return replace(subject, attend=attend)


def _bit_flip(subject: Subject) -> Subject:
    """Every third run has one bit of dQ flipped."""
    runs = count(1)

    def attend(inputs: Inputs, causal: bool) -> Outputs:
        outputs = subject.attend(inputs, causal)
        if next(runs) % _FLIP_EVERY == 0:
            flip_bit_in_place(outputs.dq[-1, -1], outputs.dq.shape[2] // 2, 1, 3)
        return outputs

    return replace(subject, attend=attend)


def _hang(subject: Subject) -> Subject:
    def attend(inputs: Inputs, causal: bool) -> Outputs:
        del inputs, causal
        while True:
            time.sleep(1.0)

    return replace(subject, attend=attend)


def _crash(subject: Subject) -> Subject:
    def attend(inputs: Inputs, causal: bool) -> Outputs:
        os.kill(os.getpid(), signal.SIGSEGV)
        return subject.attend(inputs, causal)

    return replace(subject, attend=attend)


_MAKERS: Mapping[str, Callable[[Subject], Subject]] = {
    "overflow": _overflow,
    "write-outside": _write_outside,
    "read-outside": _read_outside,
    "scale": _scale,
    "slow": _slow,
    "leak": _leak,
    "bit-flip": _bit_flip,
    "hang": _hang,
    "crash": _crash,
}
