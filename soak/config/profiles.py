"""Profiles: data files that say how a kind of card is loaded and judged, ours or a person's own."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from soak.config.options import OPTIONS
from soak.config.readers import Refused
from soak.core.errors import ConfigError
from soak.core.protocol import Limits
from soak.core.records import Device

AUTO = "auto"
SHIPPED = ("mi50", "generic", "cpu")

ALWAYS_REQUIRED = ("faults", "coverage", "continuity")
"""Without these no other criterion is proven: a run that was not observed, or not finished, must not pass."""

_LIMITS = Limits(required=frozenset())
_TEMPERATURE_ONLY = {"band": ("target_c", "band_c", "outer_c"), "margin": ("margin_c", "throttle_max")}

_Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
_Most = Annotated[float, Meta(gt=0.0, le=1.0)]
_Share = Annotated[float, Meta(ge=0.5, le=1.0)]
_Degrees = Annotated[float, Meta(gt=0.0, le=120.0)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of a profile file; an unknown key is an error."""


class _Criterion(_Table, frozen=True, kw_only=True):
    required: bool


class _Utilisation(_Criterion, frozen=True, kw_only=True):
    min_pct: Annotated[float, Meta(ge=1.0, le=100.0)] = _LIMITS.utilisation_min_pct
    loss_max: _Ratio = _LIMITS.utilisation_loss_max


class _Temperature(_Criterion, frozen=True, kw_only=True):
    kind: Literal["band", "margin"]
    target_c: _Degrees = _LIMITS.temperature_target_c
    band_c: _Degrees = _LIMITS.temperature_band_c
    outer_c: _Degrees = _LIMITS.temperature_outer_c
    good_min: _Share = _LIMITS.temperature_good_min
    margin_c: _Degrees = _LIMITS.temperature_margin_c
    throttle_max: _Ratio = _LIMITS.throttle_max
    judged_min: _Share = _LIMITS.temperature_judged_min
    polls_min: _Share = _LIMITS.temperature_polls_min


class _Gradient(_Criterion, frozen=True, kw_only=True):
    max_abs_dq: _Most = _LIMITS.gradient_max_abs_dq
    max_abs_dk: _Most = _LIMITS.gradient_max_abs_dk
    max_abs_dv: _Most = _LIMITS.gradient_max_abs_dv
    relative_l2: _Most = _LIMITS.gradient_relative_l2


class _Integrity(_Criterion, frozen=True, kw_only=True):
    made_min: _Share = _LIMITS.integrity_made_min


class _Coverage(_Criterion, frozen=True, kw_only=True):
    min: _Share = _LIMITS.coverage_min


class _Criteria(_Table, frozen=True, kw_only=True):
    utilisation: _Utilisation
    temperature: _Temperature
    ecc: _Criterion
    gradient: _Gradient
    integrity: _Integrity
    faults: _Criterion
    coverage: _Coverage
    continuity: _Criterion


class _Load(_Table, frozen=True, kw_only=True):
    device: Literal["gpu", "cpu"]
    dtype: Literal["float16", "float32"]
    compare_every: Annotated[int, Meta(ge=1, le=1000)]
    work_rate_rule: bool


class _File(_Table, frozen=True, kw_only=True):
    description: str
    load: _Load
    criteria: _Criteria
    protocol: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Profile:
    """`name` is a shipped profile's, else the path as given; `options` are defaults of a run's options."""

    name: str
    description: str
    device: str  # gpu, cpu
    dtype: str
    compare_every: int
    work_rate_rule: bool
    limits: Limits
    options: Mapping[str, Any]


def pick_profile(devices: Sequence[Device]) -> tuple[str, str]:
    """The shipped profile for these cards, and why."""
    if not devices:
        return "generic", "no card is known yet"
    if all(device.gpu == "cpu" for device in devices):
        return "cpu", "the device is the CPU"
    others = [device for device in devices if device.arch != "gfx906"]
    if others:
        return "generic", f"{others[0].gpu} is {others[0].arch or 'of unknown architecture'}, not gfx906"
    return "mi50", "every card is gfx906"


def load_profile(name: str) -> Profile:
    """A shipped profile by its name, else a person's file by its path. Raises ConfigError."""
    if name in SHIPPED:
        text = (resources.files("soak") / "profiles" / f"{name}.toml").read_text(encoding="utf-8")
    else:
        text = _read(name)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The profile {name} is not TOML: {error}.") from error
    return parse_profile(name, raw)


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        legal = ", ".join((AUTO, *SHIPPED))
        raise ConfigError(
            f"There is no profile {name!r}; legal: {legal}, or the path of a TOML file."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The profile {name} cannot be read: {error}.") from error


def parse_profile(name: str, raw: Mapping[str, Any]) -> Profile:
    """Checks a profile file's content against its schema, with a sentence for whatever is wrong."""
    _refuse_unknown_keys(name, "", raw, _File)
    _refuse_non_finite(name, raw)
    try:
        file = msgspec.convert(raw, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(_sentence(name, raw, str(error))) from error
    _refuse_nonsense(name, raw, file)
    return Profile(
        name=name,
        description=file.description,
        device=file.load.device,
        dtype=file.load.dtype,
        compare_every=file.load.compare_every,
        work_rate_rule=file.load.work_rate_rule,
        limits=_limits(file.criteria),
        options=dict(file.protocol),
    )


def limit_field(criterion: str, key: str) -> str:
    """The field of `Limits` that `key` of the table `[criteria.<criterion>]` sets."""
    return key if key == "throttle_max" else f"{criterion}_{key}"


def _limits(criteria: _Criteria) -> Limits:
    tables = {name: msgspec.structs.asdict(getattr(criteria, name)) for name in criteria.__struct_fields__}
    values = {
        limit_field(name, key): value
        for name, table in tables.items()
        for key, value in table.items()
        if key != "required"
    }
    return Limits(required=frozenset(name for name, table in tables.items() if table["required"]), **values)


def criteria_rows(limits: Limits) -> Iterator[tuple[str, Any]]:
    """The limits under the names that a profile file gives them: `criteria.ecc.required`, True; …"""
    values = {field.name: getattr(limits, field.name) for field in fields(limits)}
    for criterion in _Criteria.__struct_fields__:
        table = next(f.type for f in msgspec.structs.fields(_Criteria) if f.name == criterion)
        yield f"criteria.{criterion}.required", criterion in limits.required
        idle = {"band": "margin", "margin": "band"}[limits.temperature_kind]
        hidden = _TEMPERATURE_ONLY[idle] if criterion == "temperature" else ()
        for key in table.__struct_fields__:
            if key != "required" and key not in hidden:
                yield f"criteria.{criterion}.{key}", values[limit_field(criterion, key)]


def _refuse_unknown_keys(name: str, where: str, raw: Mapping[str, Any], table: type[_Table]) -> None:
    known = {field.name: field.type for field in msgspec.structs.fields(table)}
    for key, value in raw.items():
        if key not in known:
            legal = ", ".join(sorted(known))
            raise ConfigError(f"The profile {name} has an unknown key {where}{key}; legal there: {legal}.")
        inner = known[key]
        if isinstance(inner, type) and issubclass(inner, _Table) and isinstance(value, Mapping):
            _refuse_unknown_keys(name, f"{where}{key}.", value, inner)


def _refuse_non_finite(name: str, raw: Mapping[str, Any], where: str = "") -> None:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            _refuse_non_finite(name, value, f"{where}{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"The profile {name} has {where}{key} = {value}; a limit is a finite number.")


def _refuse_nonsense(name: str, raw: Mapping[str, Any], file: _File) -> None:
    legal = sorted(option.name for option in OPTIONS.values() if option.in_profile)
    for key, value in file.protocol.items():
        if key not in legal:
            raise ConfigError(
                f"The profile {name} has an unknown key protocol.{key}; legal there: {', '.join(legal)}."
            )
        try:
            OPTIONS[key].read(value)
        except Refused as refused:
            raise ConfigError(f"The profile {name}, protocol.{key}: {refused}.") from refused
    for criterion in ALWAYS_REQUIRED:
        if not getattr(file.criteria, criterion).required:
            raise ConfigError(
                f"The profile {name} does not require {criterion}, without which nothing is proven; "
                f"set criteria.{criterion}.required = true."
            )
    temperature = file.criteria.temperature
    idle = {"band": "margin", "margin": "band"}[temperature.kind]
    for key in _TEMPERATURE_ONLY[idle]:
        if key in raw["criteria"]["temperature"]:
            raise ConfigError(
                f"The profile {name} has criteria.temperature.{key}, which has no effect with "
                f'kind = "{temperature.kind}"; remove it, or set kind = "{idle}".'
            )
    if temperature.outer_c < temperature.band_c:
        raise ConfigError(
            f"The profile {name} has criteria.temperature.outer_c = {temperature.outer_c:g} inside "
            f"band_c = {temperature.band_c:g}; the outer band must be the wider one."
        )


def _sentence(name: str, raw: Mapping[str, Any], message: str) -> str:
    """msgspec's words with the key, and its value where it has one."""
    found = re.fullmatch(r"(.*?)(?: - at `\$\.?(.*)`)?", message, re.DOTALL)
    assert found is not None
    problem, key = found[1][0].lower() + found[1][1:], found[2] or "the file"
    value: Any = raw
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    given = "" if value is None or isinstance(value, Mapping) else f" = {value!r}"
    return f"The profile {name}, {key}{given}: {problem}."
