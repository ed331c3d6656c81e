"""Made-up names for what would tell whose machine it is: the same for the same, of the same form."""

from __future__ import annotations

import re
from collections.abc import Iterable

_HEX = "0123456789abcdef"
_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{1,62}[0-9A-Za-z]")
# What has a form that nothing else has.
_BY_FORM = (
    re.compile(r"(?<![0-9a-f])[0-9a-f]{8}([-_])(?:[0-9a-f]{4}\1){3}[0-9a-f]{12}(?![0-9a-f])", re.IGNORECASE),
    re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-f])"),  # a container, a machine
    re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE),  # a network card
)
_BY_PLACE = (  # in a log: what stands at these places
    (re.compile(r"(?<=name=)[^,\s]+"), "program"),
    (re.compile(r"(?<=process )(?!\d+\b)\S+(?= pid)"), "program"),
    (re.compile(r"(?<=thread )(?!\d+\b)\S+(?= pid)"), "thread"),
    (re.compile(r"(?<=/home/)[^/\s]+"), "user"),
    (re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"), "192.0.2.1"),
)


class Pseudonyms:
    """`learn` what is to be hidden, then `hide` it in every text and path."""

    def __init__(self) -> None:
        self._made: dict[str, str] = {}

    def learn(self, names: Iterable[str]) -> None:
        """Names that look like nothing special: a host, a serial number. Of one with blanks or other odd
        characters the parts with a digit; those too short to be told apart from ordinary words are not taken.
        """
        parts = {part for name in names for part in _parts(name.strip())}
        for part in sorted(parts, key=len, reverse=True):
            self._pseudonym(part)

    def hide(self, text: str) -> str:
        """The text without what was learned, and without what shows itself by its form or place."""
        for pattern in _BY_FORM:
            text = pattern.sub(lambda found: self._pseudonym(found[0]), text)
        for name, made in sorted(self._made.items(), key=lambda pair: -len(pair[0])):
            text = re.sub(rf"(?<![0-9A-Za-z]){re.escape(name)}(?![0-9A-Za-z])", made, text)
        return text

    def hide_in_log(self, line: str) -> str:
        """As `hide`, and without programs, users and network addresses: free text may name them."""
        line = self.hide(line)
        for pattern, word in _BY_PLACE:
            line = pattern.sub(word, line)
        return line

    def _pseudonym(self, name: str) -> str:
        if name in self._made.values():
            return name
        return self._made.setdefault(name, _made_up(name, len(self._made) + 1))


def _parts(name: str) -> list[str]:
    found = [name] if _NAME.fullmatch(name) else [p for p in _NAME.findall(name) if re.search(r"\d", p)]
    return [part for part in found if set(part) - set("0.-_")]


def _made_up(name: str, number: int) -> str:
    """Digits stay digits, hexadecimal stays hexadecimal, punctuation stays: the form is what parsers meet."""
    bare = re.sub(r"[^0-9A-Za-z]", "", name)
    if set(bare.lower()) <= set(_HEX):
        digits = f"{number:0{len(bare)}x}" if not bare.isdigit() else f"{number:0{len(bare)}d}"
    else:
        stem = "host"[: len(bare)]
        digits = (stem + f"{number:0{max(len(bare) - len(stem), 1)}d}")[: max(len(bare), 5)]
    made = iter(digits[-len(bare) :] if set(bare.lower()) <= set(_HEX) else digits)
    shaped = "".join(next(made, "") if char.isalnum() else char for char in name)
    return shaped + "".join(made)
