"""What the parent and a worker say to each other: one JSON object a line, `type` first.

    parent -> worker (stdin)    start    once, before anything else: what to run, on which card
                                rotate   go over to rotation `index`, prepared before
                                check    make gradient check `index` on the current rotation, the load going
                                on stop     say the last progress and end with exit code 0
    worker -> parent (stdout)   ready, progress, checked, happening: an event of `core.ports` in `event`

Every line of a worker is a heartbeat; after `ready` there is at least one a second, also inside a long step
(`progress` then says since when its oldest step is running). The end of stdin means that the parent is gone.
JSON has no NaN: a number that is not finite crosses as a string ("nan", "inf", "-inf").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from soak.core.ports import Checked, Happening, Progress, Ready
from soak.core.protocol import Protocol

MAX_LINE_BYTES = 1 << 20  # a longer line is no line of this protocol

EXIT_STOPPED = 0
EXIT_PARENT_GONE = 75
EXIT_CODES: Mapping[str, int] = {  # of a worker that said this happening last
    "worker_error": 70,
    "compile_error": 71,
    "out_of_device_memory": 72,
    "device_error": 73,
    "device_lost": 74,
}


class Start(msgspec.Struct, frozen=True, tag="start"):
    """`engine`: cpu or gpu. `gpu`: the card's name in every event, its PCI address; `rotation`: the one to
    begin with."""

    gpu: str
    engine: str
    protocol: Protocol
    rotation: int = 0


class Rotate(msgspec.Struct, frozen=True, tag="rotate"):
    index: int


class Check(msgspec.Struct, frozen=True, tag="check"):
    index: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    pass


class ReadySaid(msgspec.Struct, frozen=True, tag="ready"):
    event: Ready


class ProgressSaid(msgspec.Struct, frozen=True, tag="progress"):
    event: Progress
    in_step_since_boot_ms: int | None = None  # when the oldest step now running began


class CheckedSaid(msgspec.Struct, frozen=True, tag="checked"):
    event: Checked


class HappeningSaid(msgspec.Struct, frozen=True, tag="happening"):
    event: Happening


Order: TypeAlias = Start | Rotate | Check | Stop
Said: TypeAlias = ReadySaid | ProgressSaid | CheckedSaid | HappeningSaid


def encode(message: Order | Said) -> bytes:
    """One line, its end included."""
    return msgspec.json.encode(speakable(msgspec.to_builtins(message))) + b"\n"


def decode_order(line: bytes) -> Order:
    """Raises msgspec.DecodeError for anything that is no order."""
    return msgspec.json.decode(line, type=Order, strict=False)


def decode_said(line: bytes) -> Said:
    """Raises msgspec.DecodeError for anything that a worker does not say."""
    return msgspec.json.decode(line, type=Said, strict=False)


def said(event: Ready | Progress | Checked | Happening, in_step_since_boot_ms: int | None = None) -> Said:
    """An event in its envelope."""
    match event:
        case Ready():
            return ReadySaid(event)
        case Progress():
            return ProgressSaid(event, in_step_since_boot_ms)
        case Checked():
            return CheckedSaid(event)
        case Happening():
            return HappeningSaid(event)


def speakable(value: Any) -> Any:
    """The same with every number that JSON cannot say as a string."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: speakable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [speakable(inner) for inner in value]
    return value
