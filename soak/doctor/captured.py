"""What the capturing child says, a JSON line a vendor."""

from __future__ import annotations

import msgspec


class Captured(msgspec.Struct, frozen=True):
    """One folder. `absence`: why there is none; `differing`: what is read otherwise of the capture."""

    vendor: str
    folder: str = ""
    cards: tuple[str, ...] = ()
    n_files: int = 0
    n_answers: int = 0
    n_log_lines: int = 0
    log: str = ""  # why there is no kernel log
    differing: tuple[str, ...] = ()
    absence: str = ""
