"""Two steps to a configuration: `parse` checks all that needs no card, `resolve` picks the cards' profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from soak.config.config import DURATIONS, Common, Config, Request
from soak.config.layers import Setting, asked_for, read, unknown_variables
from soak.config.options import COMMON, OPTIONS
from soak.config.profiles import AUTO, Profile, load_profile, pick_profile
from soak.config.sense import refuse_nonsense, warnings
from soak.core.errors import ConfigError
from soak.core.records import Device


def parse(
    flags: Mapping[str, object | None],
    environ: Mapping[str, str],
    database_name: str = "soak.db",
    *,
    stores: bool = True,
) -> Request:
    """First step of `soak run`. `flags` by option name, None where not given; a value may be text or typed.
    stores: False for a command that writes nothing down, and so needs no folder.

    Raises ConfigError, one sentence, for whatever cannot be meant.
    """
    settings = asked_for(OPTIONS, flags, environ)
    _place(settings, environ, database_name, stores)
    for name in ("device", "expect_gpus", "profile"):
        settings.setdefault(name, _default(name))
    chosen = settings["profile"].value
    request = Request(settings, None if chosen == AUTO else load_profile(chosen), unknown_variables(environ))
    # The shipped profiles for GPUs load alike, so a shape that cannot be meant shows before cards are known.
    likely = request.profile or load_profile("cpu" if request.device == ("cpu",) else "generic")
    _assemble(request, likely, reason="", drawn_seed=0)
    return request


def parse_common(
    flags: Mapping[str, object | None],
    environ: Mapping[str, str],
    database_name: str = "soak.db",
    *,
    stores: bool = True,
) -> Common:
    """The options of every other command; the same order of precedence. Raises ConfigError."""
    settings = asked_for(COMMON, flags, environ)
    _place(settings, environ, database_name, stores)
    values = {name: settings.get(name) or _default(name) for name in COMMON if name != "config"}
    return Common(
        **{name: setting.value for name, setting in values.items()},
        sources={name: setting.source for name, setting in values.items()},
    )


def resolve(request: Request, devices: Sequence[Device], drawn_seed: int) -> Config:
    """Second step: the profile for these cards. Raises ConfigError.

    `drawn_seed` is taken where no seed was given. Without devices `auto` is `generic`, for a look at the
    configuration on a machine without a card.
    """
    if request.profile is not None:
        reason = f"asked for by {request.settings['profile'].source}"
        config = _assemble(request, request.profile, reason, drawn_seed)
    elif request.device == ("cpu",):
        config = _assemble(request, load_profile("cpu"), "the device is the CPU", drawn_seed)
    else:
        picked, reason = pick_profile(devices)
        config = _assemble(request, load_profile(picked), reason, drawn_seed)
    return config


def _default(name: str) -> Setting:
    written = Setting(OPTIONS[name].default, "default")
    return written if written.value is None else read(name, written)


def _place(
    settings: dict[str, Setting], environ: Mapping[str, str], database_name: str, stores: bool
) -> None:
    """Where data is kept, if nobody said: the XDG data folder."""
    if "data_dir" not in settings:
        settings["data_dir"] = Setting(_data_dir(environ, stores), "default")
    if "database" not in settings:
        settings["database"] = Setting(f"sqlite:///{settings['data_dir'].value / database_name}", "default")


def _data_dir(environ: Mapping[str, str], stores: bool) -> Path:
    if environ.get("XDG_DATA_HOME"):
        return Path(environ["XDG_DATA_HOME"]) / "soak"
    if environ.get("HOME"):
        return Path(environ["HOME"]) / ".local" / "share" / "soak"
    if not stores:
        return Path("/nonexistent/soak")
    raise ConfigError(
        "There is no folder for data, since HOME is not set; give --data-dir or set SOAK_DATA_DIR."
    )


def _assemble(request: Request, profile: Profile, reason: str, drawn_seed: int) -> Config:
    settings = {name: _setting(name, request, profile, drawn_seed) for name in OPTIONS}
    if request.profile is None:
        settings["profile"] = Setting(profile.name, f"{settings['profile'].source}: auto, {reason}")
    values = {
        f"{name}_ms" if name in DURATIONS else name: setting.value for name, setting in settings.items()
    }
    config = Config(
        **values,
        profile_reason=reason,
        dtype=profile.dtype,
        compare_every=profile.compare_every,
        work_rate_rule=profile.work_rate_rule,
        limits=profile.limits,
        sources={name: setting.source for name, setting in settings.items()},
    )
    refuse_nonsense(config, profile)
    return replace(config, warnings=(*request.warnings, *warnings(config)))


def _setting(name: str, request: Request, profile: Profile, drawn_seed: int) -> Setting:
    if name in request.settings:
        return request.settings[name]
    if name in profile.options:
        return read(name, Setting(profile.options[name], f"profile {profile.name}"))
    return Setting(drawn_seed, "drawn") if name == "seed" else _default(name)
