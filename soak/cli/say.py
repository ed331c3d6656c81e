"""What a command says on standard output; an output that takes nothing changes no verdict and ends no run."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import TextIO

from soak.core.errors import CannotRun

# What someone put where a short value belongs would bury the sentence; a path is never that long.
_LONG_VALUE = re.compile(r"'([^']{100})([^']{400,})([^']{20})'", re.DOTALL)


def say(text: str) -> None:
    """Writes a text and a line end to standard output; nothing, where its reader has gone (`| head`).

    CannotRun where it cannot be written: the disk behind it is full, or it was closed from the start.
    """
    if sys.stdout is None:
        raise CannotRun("Standard output is closed; open it, or send it to a file.")
    try:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _leave(sys.stdout)
    except OSError as error:
        _leave(sys.stdout)
        raise CannotRun(f"Standard output cannot be written ({error.strerror}); choose another.") from error


def say_error(sentence: str) -> None:
    """Writes `soak: ` and a sentence to standard error, where somebody may read it."""
    if sys.stderr is None:
        return
    shown = _LONG_VALUE.sub(_shortened, sentence)
    try:
        sys.stderr.write(f"soak: {shown}\n")
        sys.stderr.flush()
    except OSError:
        _leave(sys.stderr)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a standard stream is a terminal; one that was closed before the start is none."""
    return stream is not None and stream.isatty()


def prepare_standard_streams() -> None:
    """Makes all three safe to use: a closed one gets no file of ours in its place, and a character that the
    locale does not have is shown as `?`."""
    with suppress(OSError):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
            pass  # the lowest free number: it stays open in place of the closed one
        os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _shortened(value: re.Match[str]) -> str:
    return f"'{value[1]}[…{len(value[2])} characters…]{value[3]}'"


def _leave(stream: TextIO) -> None:
    """What still waits in the stream goes nowhere, so that the end of the process does not try it again."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
