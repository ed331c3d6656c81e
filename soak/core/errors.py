"""What a person is told when something cannot be done: one sentence, and an exit code."""

from __future__ import annotations

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_CANNOT_RUN = 4


class SoakError(Exception):
    """A sentence for a person: what is wrong, with which value, what to do."""

    exit_code = EXIT_CANNOT_RUN


class ConfigError(SoakError):
    """Bad usage or configuration; nothing was started."""

    exit_code = EXIT_USAGE


class CannotRun(SoakError):
    """The machine, the card, the store or a lease does not allow it."""

    exit_code = EXIT_CANNOT_RUN
