"""The configuration of a run: flags > environment > TOML file > profile > default, each with its source.

    request = parse(flags, os.environ)             # syntax, ranges, contradictions: all that needs no card
    config = resolve(request, devices, drawn_seed)  # the profile for these cards, and its reason
    config.protocol()                               # what core runs and judges by
    protocol_from_config(config.effective())        # the same again, from what was stored

A new option is a line in `options.py`, a field in `config.py` and, if a profile may set it, a key in
`soak/profiles/*.toml`.
"""

from soak.config.build import parse, parse_common, resolve
from soak.config.config import Common, Config, Request, protocol_from_config
from soak.config.devices import select
from soak.config.options import COMMON, OPTIONS, Option
from soak.config.profiles import load_profile, pick_profile
from soak.config.readers import format_duration

__all__ = [
    "COMMON",
    "OPTIONS",
    "Common",
    "Config",
    "Option",
    "Request",
    "format_duration",
    "load_profile",
    "parse",
    "parse_common",
    "pick_profile",
    "protocol_from_config",
    "resolve",
    "select",
]
