"""What a request gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TEXT = "text/plain; charset=utf-8"
JSON = "application/json; charset=utf-8"
HTML = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    kind: str  # Content-Type
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def text(status: int, words: str, headers: Mapping[str, str] | None = None) -> Reply:
    """A line of plain text."""
    return Reply(status, TEXT, f"{words}\n".encode("utf-8", "replace"), headers or {})
