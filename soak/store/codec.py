"""Maps and lists of a record as JSON text that any JSON reader takes, and back without loss.

JSON has no NaN and no infinities: such a float is written as `{"$float": "nan"}`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec

_TAG = "$float"


def to_json(value: Any) -> str:
    """A part of a record as JSON. Keys become strings, tuples lists, records objects of their fields.

    TypeError for what is neither a JSON value nor a record (or Mapping) of such.
    """
    plain = msgspec.to_builtins(value, enc_hook=_plain_mapping)
    try:
        return _dumps(plain)
    except ValueError:  # somewhere in it is a float that JSON cannot say
        return _dumps(_tagged(plain))


def from_json(text: str) -> Any:
    """What `to_json` was given, as JSON values; `msgspec.convert` makes the typed parts of it again."""
    return json.loads(text, object_hook=_untagged if _TAG in text else None)


def _dumps(plain: Any) -> str:
    return json.dumps(plain, allow_nan=False, separators=(",", ":"))


def _plain_mapping(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _tagged(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_TAG: repr(value)}
    if isinstance(value, dict):
        return {key: _tagged(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in value]
    return value


def _untagged(found: dict[str, Any]) -> Any:
    tagged = found.get(_TAG)
    if len(found) == 1 and tagged in ("nan", "inf", "-inf"):
        return float(tagged)
    return found
