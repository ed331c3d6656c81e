"""What the program offers is what its help and the README say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from soak.cli import app
from soak.config import COMMON, OPTIONS
from soak.core import errors

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def commands(group: click.Group, words: tuple[str, ...] = ("soak",)) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


COMMANDS = dict(commands(app))
assert COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_in_the_readme_and_has_help(name: str) -> None:
    assert f"`{name}" in README
    assert COMMANDS[name].help
    assert [
        parameter.name for parameter in COMMANDS[name].params if not getattr(parameter, "help", None)
    ] == []


def test_the_readme_names_no_command_that_is_not_there() -> None:
    table = re.findall(r"^\| .*", README, re.MULTILINE)
    named = {match for row in table for match in re.findall(r"`(soak(?: [a-z]+)+)", row)}
    assert named <= COMMANDS.keys()


def test_soak_run_takes_every_option_of_the_configuration() -> None:
    flags = {flag for parameter in COMMANDS["soak run"].params for flag in parameter.opts}
    assert flags >= {option.flag for option in OPTIONS.values()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_the_common_options(name: str) -> None:
    flags = {flag for parameter in COMMANDS[name].params for flag in parameter.opts}
    assert {OPTIONS[option].flag for option in COMMON} <= flags


def test_help_names_each_option_s_environment_variable() -> None:
    command = COMMANDS["soak run"]
    shown = command.get_help(click.Context(command, info_name="soak run", terminal_width=200))
    for option in OPTIONS.values():
        assert re.search(rf"{option.flag}\b", shown)
        assert re.search(rf"\b{option.variable}\b", shown)


def test_the_readme_lists_every_exit_code() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert {int(code) for code in re.findall(r"^\| (\d) \|", README, re.MULTILINE)} == codes
