"""The command line: wiring and exit codes only."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence

import click

from soak import __version__
from soak.cli.db import db
from soak.cli.report import report, runs
from soak.cli.run import run
from soak.cli.simulate import simulate
from soak.core.errors import EXIT_CANNOT_RUN, EXIT_INCONCLUSIVE, EXIT_USAGE, SoakError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="soak")
def app() -> None:
    """Soaks GPUs with real attention kernels, and judges them by what was observed.

    Exit codes: 0 PASS, 1 FAIL, 2 bad usage, 3 INCONCLUSIVE or stopped, 4 could not run.
    """


for command in (run, report, runs, simulate, db):
    app.add_command(command)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code. An error is one sentence on stderr, with `--debug` also a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = app.main(args=arguments, prog_name="soak", standalone_mode=False)
    except click.UsageError as error:
        where = f" (see `{error.ctx.command_path} --help`)" if error.ctx is not None else ""
        return _fail(f"{error.format_message()}{where}", EXIT_USAGE, arguments)
    except SoakError as error:
        return _fail(str(error), error.exit_code, arguments)
    except (click.Abort, KeyboardInterrupt):
        return _fail("Stopped before anything was started.", EXIT_INCONCLUSIVE, arguments)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; nobody is left to tell
        return EXIT_CANNOT_RUN
    except Exception as error:  # noqa: BLE001 - the last catch: a person gets a sentence, not a traceback
        sentence = f"{type(error).__name__}: {error}; this is a fault of soak itself, --debug shows where."
        return _fail(sentence, EXIT_CANNOT_RUN, arguments)
    return int(code or 0)


def _fail(sentence: str, code: int, arguments: Sequence[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exc()
    click.echo(f"soak: {sentence}", err=True)
    return code
