"""Every incident that the program can tell of is one that the judge knows."""

from __future__ import annotations

import ast
from pathlib import Path

import soak
from soak.core.incidents import KINDS

# Calls that name a kind, and where in their arguments.
_NAMED_IN = {"Happening": 0, "LoadError": 0, "happening": 0, "_happening": 1, "_tell": 0, "Doubt": 0}


def kinds_told() -> set[str]:
    told = set()
    for path in Path(soak.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            place = _NAMED_IN.get(name)
            if place is None or len(node.args) <= place:
                continue
            kind = node.args[place]
            if isinstance(kind, ast.Constant) and isinstance(kind.value, str) and " " not in kind.value:
                told.add(kind.value)
    return told


def test_what_is_told_is_known() -> None:
    told = kinds_told()
    assert len(told) > 25
    assert told - set(KINDS) == set()


def test_what_is_known_has_a_meaning_and_one_effect() -> None:
    for kind, effect in KINDS.items():
        assert effect.meaning, kind
        assert (effect.criterion is None) == (effect.state is None), kind
