"""Command-line options made from the one table of options in `soak.config`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from soak.config import COMMON, OPTIONS, Option

F = TypeVar("F", bound=Callable[..., Any])
_FLAGS = ("accept_inconclusive", "debug")
_REPEATED = ("label", "waive")


def options(names: Iterable[str]) -> Callable[[F], F]:
    """Adds the named options to a command, in that order; each arrives as text, or None where not given."""

    def add(command: F) -> F:
        for name in reversed(list(names)):
            command = _click_option(OPTIONS[name])(command)
        return command

    return add


def common(command: F) -> F:
    """The options that every command takes."""
    return options(COMMON)(command)


def _click_option(option: Option) -> Callable[[F], F]:
    text = f"{option.help}  [{option.variable}]"
    if option.default not in (None, (), False):
        text = f"{option.help}  [default: {option.default}; {option.variable}]"
    if option.name in _FLAGS:
        return click.option(option.flag, option.name, is_flag=True, default=None, help=text)
    if option.name in _REPEATED:
        return click.option(option.flag, option.name, multiple=True, help=text, metavar="TEXT")
    return click.option(option.flag, option.name, default=None, help=text, metavar="TEXT")


def given(values: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, by name."""
    return {name: value for name, value in values.items() if value not in (None, ())}
