"""Every option of a run, once: its name, what may be written, its default and its help.

An option `rotate_every` is the flag `--rotate-every`, the environment variable `SOAK_ROTATE_EVERY` and the
key `rotate_every` of a configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from soak.config import readers
from soak.config.devices import devices
from soak.config.readers import HOUR_MS, MINUTE_MS, SECOND_MS, Reader

ENVIRONMENT_PREFIX = "SOAK_"

KERNELS: Mapping[str, str] = {
    **dict.fromkeys(("flash_v1", "flash_v2", "flash_v2_kt", "flash_v2_vt"), "gpu"),
    **dict.fromkeys(("flash_hopper", "mi50", "mi50_portable"), "gpu"),
    "torch.flash_attention_cpu": "cpu",
}
"""What `--kernel` may name besides `auto`, and where it runs."""

_LONGEST_MS = 8760 * HOUR_MS  # a year


@dataclass(frozen=True, slots=True)
class Option:
    """`default` is written as a person would write it; None: there is none, or the machine decides."""

    name: str
    read: Reader
    default: Any
    help: str
    in_profile: bool = False  # a profile's [protocol] table may set it

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def _load(name: str, read: Reader, default: Any, text: str) -> Option:
    return Option(name, read, default, text, in_profile=True)


_ALL = (
    # the protocol
    _load("duration", readers.duration(SECOND_MS, _LONGEST_MS), "48h", "How long, uninterrupted."),
    _load(
        "kernel",
        readers.choice("auto", *KERNELS),
        "auto",
        "The attention kernel, one of `soak kernels list`; auto chooses for the card and says why.",
    ),
    _load("head_dim", readers.number_of(64, 128), 128, "Size of an attention head."),
    _load("heads", readers.integer(1, 256), 16, "Attention heads."),
    _load("tokens", readers.integer(0, 1 << 22), 32768, "Tokens a launch; 0: one sequence a launch."),
    _load("seq_len", readers.seq_len, "512:4096", "Lowest and highest sequence length."),
    _load(
        "rotate_every",
        readers.duration(SECOND_MS, _LONGEST_MS),
        "10m",
        "A new shape and fresh inputs this often.",
    ),
    _load(
        "check_every",
        readers.duration(SECOND_MS, _LONGEST_MS),
        "1h",
        "A gradient check at the start and this often.",
    ),
    _load("sample_every", readers.duration(SECOND_MS, 24 * HOUR_MS), "5m", "A row per GPU this often."),
    _load("poll_every", readers.duration(SECOND_MS, MINUTE_MS), "1s", "Sensors are read this often."),
    _load(
        "warmup", readers.duration(0, _LONGEST_MS), "30m", "The start that does not count for temperature."
    ),
    Option("seed", readers.integer(0, (1 << 63) - 1), None, "Of shapes and inputs; drawn once if not given."),
    # the cards
    Option("device", devices, "all", "all, cpu, cuda:0,1, PCI addresses or UUIDs."),
    Option(
        "expect_gpus",
        readers.integer(1, 64),
        None,
        "How many GPUs are meant; any other number stops the start.",
    ),
    # how it is judged
    Option(
        "profile",
        readers.profile,
        "auto",
        "auto, mi50, generic, cpu or a file: limits, and what is required.",
    ),
    Option("waive", readers.waivers, (), "ecc: a card without it can pass; the verdict says so."),
    Option("accept_inconclusive", readers.boolean, False, "Start although PASS cannot be reached here."),
    # where it is kept
    Option("data_dir", readers.path, None, "Folder of the database; default: the user's data folder."),
    Option(
        "database",
        readers.database,
        None,
        "sqlite:/// or postgresql:// URL; default: soak.db in the data folder.",
    ),
    Option("config", readers.path, None, "A TOML file of options."),
    # one run and its end
    Option(
        "run_id", readers.run_id, None, "Create this run, resume it, or print its verdict if it is finished."
    ),
    Option(
        "on_interrupt",
        readers.choice("restart-clock", "continue", "stop"),
        "restart-clock",
        "What becomes of an interrupted run.",
    ),
    Option("stop_on", readers.choice("never", "fail"), "never", "fail: end with the first final fail."),
    Option("label", readers.labels, (), "key=value for metrics and report; may be repeated."),
    # what others see
    Option("listen", readers.host_port, "127.0.0.1:9868", "HOST:PORT of metrics and pages."),
    Option(
        "linger", readers.duration(0, 24 * HOUR_MS), "0s", "Metrics and pages stay this long after the end."
    ),
    Option(
        "log_level",
        readers.choice("debug", "info", "warning", "error"),
        "info",
        "debug, info, warning or error.",
    ),
    Option("log_format", readers.choice("text", "json"), "text", "text or json."),
    Option("debug", readers.boolean, False, "Show a traceback with an error."),
)

OPTIONS: Mapping[str, Option] = {option.name: option for option in _ALL}

COMMON = ("data_dir", "database", "config", "log_level", "log_format", "debug")
"""The options that every command takes, not only `soak run`."""
