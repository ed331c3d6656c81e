"""`soak kernels`: which kernels there are, and what the compiler makes of them, without their card."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import click

from soak.cli.options import common, given
from soak.cli.say import say
from soak.config import parse_common
from soak.core.errors import EXIT_FAIL, EXIT_PASS, CannotRun, ConfigError

# A module of soak_kernels for each card: they run in a child, since nothing of soak but the worker imports
# Triton.
_INSPECTORS = {
    "gfx906": ("soak_kernels.gfx906.inspect",),
    "sm_90": ("soak_kernels.compile", "sm_90"),
}
_TIMEOUT_S = 3600.0  # compiling for a card that is not there takes minutes


@click.group()
def kernels() -> None:
    """The attention kernels: what there is, and what the compiler makes of each."""


@kernels.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON: a list of configurations.")
@common
def list_(as_json: bool, **flags: Any) -> int:
    """List the kernels, and every configuration of every card and why it was chosen."""
    parse_common(given(flags), os.environ, stores=False)
    return _child(("soak_kernels.catalogue",), as_json)


@kernels.command()
@click.option(
    "--arch", default="gfx906", metavar="ARCH", help="Of which card: gfx906 or sm_90.  [default: gfx906]"
)
@click.option("--json", "as_json", is_flag=True, help="As JSON: a list of rows.")
@common
def inspect(arch: str, as_json: bool, **flags: Any) -> int:
    """Compile each configuration, without that card, and say what came of it; minutes the first time.

    For gfx906 the machine code is executed too, for its LDS conflicts, and a bound in TFLOP/s follows from a
    model.

    Exit codes: 0, 1 where a kernel of the product spills registers (sm_90: in a loop that multiplies)."""
    parse_common(given(flags), os.environ, stores=False)
    if arch not in _INSPECTORS:
        raise ConfigError(f"--arch {arch!r} is not known; choose one of {', '.join(_INSPECTORS)}.")
    return _child(_INSPECTORS[arch], as_json)


def _child(module: Sequence[str], as_json: bool) -> int:
    """Runs a module of soak_kernels and says what it says; 0 or 1 as it ended, CannotRun where it could
    not."""
    done = in_child([*module, *(["--json"] if as_json else [])], stderr=subprocess.PIPE)
    if done.returncode not in (EXIT_PASS, EXIT_FAIL) or not done.stdout:
        lines = done.stderr.strip().splitlines() or [f"the compiler ended with {done.returncode}"]
        raise CannotRun(f"The kernels cannot be compiled here ({lines[-1]}); see `soak doctor`.")
    say(done.stdout.rstrip("\n"))
    return done.returncode


def in_child(module: Sequence[str], *, stderr: int | None) -> subprocess.CompletedProcess[str]:
    """A module of soak_kernels with its arguments, in a process of its own, to its end; stderr: None lets a
    person see it at once. Raises CannotRun after _TIMEOUT_S."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_DEFAULT_FP_FUSION": "1"}
    try:
        return subprocess.run(
            [sys.executable, "-m", *module],
            env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise CannotRun(
            f"`{module[0]}` took longer than {_TIMEOUT_S:.0f} s; see what else this machine does."
        ) from error
