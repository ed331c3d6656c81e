"""The messages between the daemon and its sampler child: JSON lines on the child's stdin and stdout."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from soak.core.ports import Happening
from soak.core.records import Device, Poll

LINE_MAX = 1 << 20  # bytes; a longer line is no message of ours


class Detect(msgspec.Struct, frozen=True, tag="detect"):
    """Which cards does this backend have? A card that is silent for `answer_ms` is reported as silent."""

    backend: str
    answer_ms: int


class Target(msgspec.Struct, frozen=True):
    gpu: str
    backend: str


class Watch(msgspec.Struct, frozen=True, tag="watch"):
    """Poll these cards from now on. Given once to a child."""

    targets: tuple[Target, ...]
    poll_ms: int
    ecc_every_ms: int


class Detected(msgspec.Struct, frozen=True, tag="detected"):
    """The answer to Detect; `absence` says why there is no card, if there is none."""

    backend: str
    devices: tuple[Device, ...]
    absence: str = ""


class Polled(msgspec.Struct, frozen=True, tag="polled"):
    poll: Poll


class Happened(msgspec.Struct, frozen=True, tag="happened"):
    happening: Happening


Order: TypeAlias = Detect | Watch
Report: TypeAlias = Detected | Polled | Happened

_encoder = msgspec.json.Encoder()


def line_of(message: Order | Report) -> bytes:
    """A message as one line."""
    return _encoder.encode(message) + b"\n"


def order_of(line: bytes) -> Order:
    """A line of the daemon. Raises msgspec.DecodeError."""
    order: Order = msgspec.json.decode(line, type=Order)
    return order


def reports_decoder() -> msgspec.json.Decoder[Report]:
    """Decodes lines of the child; raises msgspec.DecodeError."""
    return msgspec.json.Decoder(Report)
