"""The document as strict JSON, field by field, as `schema/report-v1.json` publishes it.

JSON has no NaN and no infinity: where a figure is one, the string `NaN`, `Infinity` or `-Infinity` stands for
it. What is not known is null.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import resources
from typing import Any

import msgspec

from soak.report.document import SCHEMA_VERSION, Document


def as_json(document: Document) -> str:
    """The document; UTF-8 safe, without anything that a strict parser refuses."""
    text = json.dumps(strict(document), ensure_ascii=False, allow_nan=False)
    return str(msgspec.json.format(text, indent=1)) + "\n"  # json's own indent takes seconds on a large run


def schema() -> dict[str, Any]:
    """The JSON schema of the current version, as shipped with the package."""
    file = resources.files("soak.report").joinpath("schema", f"report-v{SCHEMA_VERSION}.json")
    published: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return published


def strict(value: Any) -> Any:
    """Dataclasses, mappings, sequences and scalars as what strict JSON can say."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate cannot be written
    if isinstance(value, float):
        return value if math.isfinite(value) else _named(value)
    if value is None or isinstance(value, bool | int):
        return value
    if is_dataclass(value):
        return {f.name: strict(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {strict(str(key)): strict(item) for key, item in value.items()}
    return [strict(item) for item in value]


def _named(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
