"""`soak bench`: how fast and how exact the kernels are on the card that is here."""

from __future__ import annotations

import os
from typing import Any

import click

from soak.cli.kernels import in_child
from soak.cli.options import common, given
from soak.cli.say import say
from soak.config import parse_common
from soak.core.errors import EXIT_CANNOT_RUN, EXIT_FAIL, EXIT_PASS, EXIT_USAGE, CannotRun


@click.command()
@click.option("--kernels", metavar="NAMES", help="Of ours, with commas.  [default: all that carry a load]")
@click.option("--quick", is_flag=True, help="The shortest and the longest sequences only.")
@click.option("--tune", is_flag=True, help="Time the candidate tiles of flash_v2 instead.")
@click.option("--json", "as_json", is_flag=True, help="As JSON: what runs where, and a list of rows.")
@common
def bench(kernels: str | None, quick: bool, tune: bool, as_json: bool, **flags: Any) -> int:
    """Time the kernels against each other and the framework's own attention, on the first GPU.

    Each of ours is checked first, against float64 and for the same bits twice. All take turns. Minutes, of a
    card that does nothing else.

    Exit codes: 0, 1 a kernel is wrong here and nothing was timed, 2 bad usage, 4 could not run."""
    parse_common(given(flags), os.environ, stores=False)
    wanted = {"--quick": quick, "--tune": tune, "--json": as_json}
    arguments = [flag for flag, is_given in wanted.items() if is_given]
    if kernels is not None:
        arguments += ["--kernels", kernels]
    done = in_child(["soak_kernels.bench", *arguments], stderr=None)
    if done.returncode not in (EXIT_PASS, EXIT_FAIL, EXIT_USAGE, EXIT_CANNOT_RUN):
        raise CannotRun(f"The measurement ended with {done.returncode}; what it said is above.")
    if done.stdout:
        say(done.stdout.rstrip("\n"))
    return done.returncode
