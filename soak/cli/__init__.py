"""The command line: wiring and exit codes only."""

from __future__ import annotations

import errno
import importlib
import resource
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence

import click

from soak import __version__
from soak.cli.say import prepare_standard_streams, say_error
from soak.core.errors import EXIT_CANNOT_RUN, EXIT_INCONCLUSIVE, EXIT_USAGE, SoakError

COMMANDS: Mapping[str, str] = {
    "run": "soak.cli.run:run",
    "report": "soak.cli.report:report",
    "runs": "soak.cli.report:runs",
    "simulate": "soak.cli.simulate:simulate",
    "watch": "soak.cli.watch:watch",
    "doctor": "soak.cli.doctor:doctor",
    "verify": "soak.cli.verify:command",
    "bench": "soak.cli.bench:bench",
    "kernels": "soak.cli.kernels:kernels",
    "db": "soak.cli.db:db",
}


class _Commands(click.Group):
    """Loads a command when it is asked for: bad usage is told without waiting for a database library."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


@click.group(
    cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="soak")
def app() -> None:
    """Soaks GPUs with real attention kernels, and judges them by what was observed.

    Exit codes: 0 PASS, 1 FAIL, 2 bad usage, 3 INCONCLUSIVE or stopped, 4 could not run.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; its exit code. An error is one sentence on stderr, with `--debug` also a traceback."""
    if argv is None:  # as PID 1 of a container a signal without a handler is ignored, also while we start
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = list(sys.argv[1:] if argv is None else argv)
    prepare_standard_streams()
    try:
        code = app.main(args=arguments, prog_name="soak", standalone_mode=False)
    except click.UsageError as error:
        where = f" (see `{error.ctx.command_path} --help`)" if error.ctx is not None else ""
        return _fail(f"{error.format_message()}{where}", EXIT_USAGE, arguments)
    except SoakError as error:
        return _fail(str(error), error.exit_code, arguments)
    except (click.Abort, KeyboardInterrupt):
        return _fail("Stopped before anything was started.", EXIT_INCONCLUSIVE, arguments)
    except Exception as error:  # noqa: BLE001 - the last catch: a person gets a sentence, not a traceback
        return _fail(_out_of_files(error) or _our_fault(error), EXIT_CANNOT_RUN, arguments)
    return int(code or 0)


def _out_of_files(error: Exception) -> str:
    """What to do where this process may open no more files; "" for any other error."""
    if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"{error.strerror}: this process may have {allowed} open; allow it more "
        "(`ulimit -n 1024`, LimitNOFILE= of systemd, `--ulimit nofile=1024` of docker)."
    )


def _our_fault(error: Exception) -> str:
    return f"{type(error).__name__}: {error}; this is a fault of soak itself, --debug shows where."


def _fail(sentence: str, code: int, arguments: Sequence[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exc()
    say_error(sentence)
    return code
