"""Why a worker ended, from its wait status and the evidence around it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from soak.load import wire

_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS}
_FAULTS = {signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP}


@dataclass(frozen=True, slots=True)
class Death:
    """`kind`: an incident, or "" where the worker has said itself what ended it."""

    kind: str
    detail: str


def explain(returncode: int, *, n_oom_kills: int, last_words: str) -> Death:
    """Of a worker that ended although nobody here wanted it.

    `returncode` as of subprocess: -N for signal N. `n_oom_kills`: processes that the kernel killed for memory
    in this cgroup since the worker started. `last_words`: the last line that it wrote to stderr.
    """
    if returncode >= 0:
        if returncode in wire.EXIT_CODES.values():
            return Death("", "")
        return Death("worker_error", _sentence(f"the worker ended with exit code {returncode}", last_words))
    name = _name(-returncode)
    if -returncode in _CRASHES:
        return Death("worker_crashed", _sentence(f"the worker died by {name}", last_words))
    if -returncode == signal.SIGKILL and n_oom_kills > 0:
        return Death("worker_out_of_memory", f"the kernel killed the worker for memory ({name})")
    if -returncode in _FAULTS:
        return Death("worker_error", _sentence(f"the worker died by {name}", last_words))
    return Death("worker_killed", f"the worker was killed from outside by {name}")


def _sentence(what: str, last_words: str) -> str:
    return f"{what}; its last words: {last_words[:300]}" if last_words else what


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
