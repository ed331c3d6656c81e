"""The effective configuration of a run: what it is, how it is shown, stored, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from soak.config.layers import Setting
from soak.config.options import OPTIONS
from soak.config.profiles import Profile, criteria_rows
from soak.config.readers import format_duration, without_password
from soak.core.protocol import Limits, Protocol

_ECC_EVERY_MS = 10_000
DURATIONS = ("duration", "rotate_every", "check_every", "sample_every", "poll_every", "warmup", "linger")


@dataclass(frozen=True, slots=True)
class Common:
    """What every command takes."""

    data_dir: Path
    database: str
    log_level: str
    log_format: str
    debug: bool
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Config:
    """Every option of a run, effective, with its source. Built by `resolve`; fields are named as options."""

    duration_ms: int
    rotate_every_ms: int
    check_every_ms: int
    sample_every_ms: int
    poll_every_ms: int
    warmup_ms: int
    linger_ms: int
    kernel: str
    head_dim: int
    heads: int
    tokens: int  # a launch; 0: one sequence
    seq_len: tuple[int, int]  # lowest, highest
    seed: int
    device: tuple[str, ...]  # as `soak.config.devices` spells them
    expect_gpus: int | None
    profile: str  # never auto
    profile_reason: str
    waive: tuple[str, ...]
    accept_inconclusive: bool
    data_dir: Path
    database: str
    config: Path | None
    run_id: str | None
    on_interrupt: str  # restart-clock, continue, stop
    stop_on: str  # never, fail
    label: Mapping[str, str]
    listen: tuple[str, int]
    log_level: str
    log_format: str
    debug: bool
    # of the profile alone
    dtype: str
    compare_every: int
    work_rate_rule: bool
    limits: Limits
    sources: Mapping[str, str]  # by option
    warnings: tuple[str, ...] = ()  # what a person should know before the start

    def protocol(self) -> Protocol:
        """The plan of the run."""
        last_slot_ms = (self.duration_ms - 1) % self.sample_every_ms + 1
        return Protocol(
            duration_ms=self.duration_ms,
            rotate_ms=self.rotate_every_ms,
            check_ms=self.check_every_ms,
            sample_ms=self.sample_every_ms,
            poll_ms=self.poll_every_ms,
            warmup_ms=self.warmup_ms,
            seq_len_min=self.seq_len[0],
            seq_len_max=self.seq_len[1],
            seed=self.seed,
            limits=self.limits,
            heads=self.heads,
            head_dim=self.head_dim,
            tokens=self.tokens,
            dtype=self.dtype,
            kernel=self.kernel,
            compare_every=self.compare_every,
            work_rate_rule=self.work_rate_rule,
            # The last slot needs a reading of its own, however short it is.
            ecc_every_ms=max(min(_ECC_EVERY_MS, last_slot_ms), self.poll_every_ms),
        )

    def effective(self) -> dict[str, Any]:
        """What is stored with the run: each option as a person would write it, the protocol in numbers."""
        protocol = msgspec.to_builtins(self.protocol())
        protocol["limits"]["required"] = sorted(self.limits.required)
        return {name: self._written(name) for name in OPTIONS} | {"protocol": protocol}

    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """Key, effective value and source of everything, for `--show-config`."""
        options = [(name, _shown(self._written(name)), self.sources[name]) for name in OPTIONS]
        of_profile = {name: getattr(self, name) for name in ("dtype", "compare_every", "work_rate_rule")}
        judged = [
            (key, _shown(value), f"profile {self.profile}") for key, value in criteria_rows(self.limits)
        ]
        return (
            *options,
            *((k, _shown(v), f"profile {self.profile}") for k, v in of_profile.items()),
            *judged,
        )

    def with_seed(self, seed: int, source: str) -> Config:
        """The same with another seed: a run that is taken up again keeps the one that was drawn for it."""
        return replace(self, seed=seed, sources={**self.sources, "seed": source})

    def same_plan(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored run has this protocol; if no seed is asked for, theirs will do."""
        theirs = protocol_from_config(stored)
        ours = self.protocol()
        return theirs == (replace(ours, seed=theirs.seed) if self.sources["seed"] == "drawn" else ours)

    def _written(self, name: str) -> Any:
        """The option as a flag or a file would have it, in builtin types."""
        if name in DURATIONS:
            return format_duration(getattr(self, f"{name}_ms"))
        value = getattr(self, name)
        match name:
            case "seq_len":
                return f"{value[0]}:{value[1]}"
            case "listen":
                return f"[{value[0]}]:{value[1]}" if ":" in value[0] else f"{value[0]}:{value[1]}"
            case "database":
                return without_password(value)
            case "label":
                return dict(value)
        if isinstance(value, Path):
            return str(value)
        return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        value = [f"{key}={text}" for key, text in value.items()]
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for; all of it that needs no card is checked. `profile` is None while it is `auto`."""

    settings: Mapping[str, Setting]
    profile: Profile | None
    warnings: tuple[str, ...] = ()

    @property
    def device(self) -> tuple[str, ...]:
        """The cards asked for, as `soak.config.devices` spells them."""
        value: tuple[str, ...] = self.settings["device"].value
        return value

    @property
    def expect_gpus(self) -> int | None:
        value: int | None = self.settings["expect_gpus"].value
        return value


def protocol_from_config(stored: Mapping[str, Any]) -> Protocol:
    """The protocol of a stored run, exactly as it was: today's profile has no say in it.

    `stored` is what `Config.effective` gave, also after a passage through JSON.
    """
    return msgspec.convert(stored["protocol"], Protocol)
