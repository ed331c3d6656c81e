"""What was asked for, and where: a flag, else the environment, else a file. Profile, default come after."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.config.options import ENVIRONMENT_PREFIX, OPTIONS, Option
from soak.config.readers import Refused
from soak.core.errors import ConfigError

# A Kubernetes service called `soak` puts these into the environment of every pod beside it.
_NOT_OURS = ("SOAK_SERVICE_", "SOAK_PORT")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and its source: `flag --duration`, `environment SOAK_DURATION`, `file /etc/soak.toml`, …"""

    value: Any
    source: str


def asked_for(
    names: Collection[str], flags: Mapping[str, object | None], environ: Mapping[str, str]
) -> dict[str, Setting]:
    """The options among `names` that a person set, read and checked one by one. Raises ConfigError.

    A flag that is None, an empty list of repeated flags, and an empty variable count as not given.
    """
    unknown = flags.keys() - OPTIONS.keys()
    assert not unknown, f"flags that are no options: {unknown}"
    given = _from_flags(flags) | {
        name: setting
        for name, setting in _from_environment(environ).items()
        if flags.get(name) in (None, (), [])
    }
    file = read("config", given.pop("config")) if "config" in given else None
    settings = {} if file is None else _from_file(file.value) | {"config": file}
    settings |= {name: read(name, setting) for name, setting in given.items() if name in names}
    return {name: setting for name, setting in settings.items() if name in names}


def read(name: str, written: Setting) -> Setting:
    """What a person wrote, as the value it stands for; or the sentence that says what is wrong with it."""
    option = OPTIONS[name]
    try:
        return Setting(option.read(written.value), written.source)
    except Refused as refused:
        raise ConfigError(f"{_spot(option, written.source)}: {refused}.") from refused


def _spot(option: Option, source: str) -> str:
    kind, _, where = source.partition(" ")
    return where if kind in ("flag", "environment") else f"{option.name} of {source}"


def _from_flags(flags: Mapping[str, object | None]) -> dict[str, Setting]:
    return {
        name: Setting(value, f"flag {OPTIONS[name].flag}")
        for name, value in flags.items()
        if value is not None and value != () and value != []
    }


def _from_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    return {
        option.name: Setting(environ[option.variable], f"environment {option.variable}")
        for option in OPTIONS.values()
        if environ.get(option.variable)
    }


def _from_file(file: Path) -> dict[str, Setting]:
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The configuration file {file} is not TOML: {error}.") from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"There is no configuration file {file}; give --config the path of a TOML file."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {file} cannot be read: {error}.") from error
    legal = sorted(OPTIONS.keys() - {"config"})
    for key in raw:
        if key not in legal:
            hint = " (limits belong into a profile file)" if key == "criteria" else ""
            raise ConfigError(
                f"The configuration file {file} has an unknown key {key}{hint}; legal: {', '.join(legal)}."
            )
    return {name: read(name, Setting(value, f"file {file}")) for name, value in raw.items()}


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each variable that looks like ours and means nothing to us: likely a slip of the pen."""
    known = {option.variable for option in OPTIONS.values()}
    strange = [
        variable
        for variable in sorted(environ)
        if variable.startswith(ENVIRONMENT_PREFIX)
        and variable not in known
        and not variable.startswith(_NOT_OURS)
    ]
    return tuple(
        f"The environment variable {variable} means nothing to soak; {_hint(variable, known)}."
        for variable in strange
    )


def _hint(variable: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(variable, known, n=1)
    return f"perhaps {close[0]} is meant" if close else "`soak run --help` names those that do"
