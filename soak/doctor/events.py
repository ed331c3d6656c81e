"""What the working child says, a JSON line each."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

LOAD_S = 3.0


class Torch(msgspec.Struct, frozen=True, tag="torch"):
    version: str
    cuda: str | None
    hip: str | None


class Triton(msgspec.Struct, frozen=True, tag="triton"):
    version: str


class Imported(msgspec.Struct, frozen=True, tag="imported"):
    """Every library is there; it waits for `card`."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The kernels are compiled and have run. `offered`: the cards of the runtime, "" without an address."""

    kernel: str
    compile_s: float
    offered: tuple[str, ...]


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    n_steps: int
    begun_boot_ms: int
    ended_boot_ms: int


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """It cannot go on. `offline`: what compiling for the card without the card gave, where that was tried."""

    stage: str  # torch, triton, card, compile, load
    fault: str
    offline: str = ""


Event: TypeAlias = Torch | Triton | Imported | Ready | Loaded | Stopped
