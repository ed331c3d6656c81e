"""Combinations of options that cannot be meant, and those that can but lead nowhere."""

from __future__ import annotations

from collections.abc import Iterator

from soak.config.config import Config
from soak.config.options import KERNELS
from soak.config.profiles import Profile
from soak.config.readers import format_duration
from soak.core.errors import ConfigError
from soak.core.records import Stretch

_BYTES = {"float16": 2, "float32": 4}
_ROWS_MOST = 200_000  # per card and table; a year of slots of five minutes is 105,120


def refuse_nonsense(config: Config, profile: Profile) -> None:
    """Raises ConfigError for options that contradict each other."""
    _refuse_cadences(config)
    _refuse_cards(config, profile)
    if 0 < config.tokens < config.seq_len[1]:
        raise ConfigError(
            f"--tokens {config.tokens} holds no whole sequence of --seq-len "
            f"{config.seq_len[0]}:{config.seq_len[1]}; give at least {config.seq_len[1]}, or 0 for one "
            "sequence a launch."
        )


def _refuse_cadences(config: Config) -> None:
    poll_ms = config.poll_every_ms
    for flag, length_ms in (("--sample-every", config.sample_every_ms), ("--duration", config.duration_ms)):
        if length_ms % poll_ms:
            raise ConfigError(
                f"{flag} {format_duration(length_ms)} is not a multiple of --poll-every "
                f"{format_duration(poll_ms)}; make it one."
            )
    for flag, every_ms in (
        ("--sample-every", config.sample_every_ms),
        ("--rotate-every", config.rotate_every_ms),
        ("--check-every", config.check_every_ms),
    ):
        n_rows = -(-config.duration_ms // every_ms)
        if n_rows > _ROWS_MOST:
            raise ConfigError(
                f"{flag} {format_duration(every_ms)} makes {n_rows} rows a card over --duration "
                f"{format_duration(config.duration_ms)}; at most {_ROWS_MOST}, so make it longer."
            )


def _refuse_cards(config: Config, profile: Profile) -> None:
    on_cpu = config.device == ("cpu",)
    if on_cpu != (profile.device == "cpu"):
        wanted = "the CPU" if profile.device == "cpu" else "GPUs"
        raise ConfigError(
            f"The profile {profile.name} is for {wanted}, and --device is {','.join(config.device)}; "
            "leave --profile at auto, or give one that fits."
        )
    if KERNELS.get(config.kernel, profile.device) != profile.device:
        raise ConfigError(
            f"The kernel {config.kernel} does not run on {','.join(config.device)}; leave --kernel at auto."
        )
    if config.expect_gpus is None:
        return
    if on_cpu:
        raise ConfigError(
            f"--expect-gpus {config.expect_gpus} makes no sense with --device cpu; leave it out."
        )
    if config.device != ("all",) and config.expect_gpus != len(config.device):
        raise ConfigError(
            f"--expect-gpus is {config.expect_gpus} and --device names {len(config.device)}; "
            "make them agree, or leave --expect-gpus out."
        )


def warnings(config: Config) -> Iterator[str]:
    """Sentences for what can be meant, but will not end as one might hope."""
    protocol = config.protocol()
    from_the_start = (Stretch(start_ms=0, utc_ms=0),)
    if "temperature" in config.limits.required and not protocol.is_warm(protocol.n_slots - 1, from_the_start):
        yield (
            f"No sample of --duration {format_duration(config.duration_ms)} lies after --warmup "
            f"{format_duration(config.warmup_ms)}, so temperature cannot be judged and the run cannot pass."
        )
