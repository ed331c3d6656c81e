"""One subject at work: `python -m soak.verify.worker`, an order as a line on stdin, events on stdout.

The end of stdin means that the parent is gone and ends the process at once, whatever it is in.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from soak.load.failures import what_ended
from soak.load.wire import speakable
from soak.verify.messages import Began, Event, Order, Outcome, Over, Result, Stopped

_BROKEN = ("device_error", "device_lost")  # nothing runs in this process any more

Say = Callable[[Event], None]


def main() -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no event
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()

    def say(event: Event) -> None:
        os.write(out, msgspec.json.encode(speakable(msgspec.to_builtins(event))) + b"\n")

    try:
        _verify(order, say)
    except Exception as error:  # noqa: BLE001 - the loop of this process: what ends it is said
        traceback.print_exc(file=sys.stderr)
        kind, sentence = what_ended(error)
        is_usage = type(error).__name__ == "UsageError"
        say(Stopped("usage", str(error)) if is_usage else Stopped(kind, sentence))
    os._exit(0)  # a runtime's own threads are not waited for


def _end_with(parent: BinaryIO) -> None:
    while parent.readline():
        pass
    os._exit(0)


def _verify(order: Order, say: Say) -> None:
    if order.engine != "cpu":
        from soak_kernels.environment import pin_compiler

        pin_compiler(os.environ)  # before Triton is loaded
    import torch

    from soak.verify.cases import Bench, seed_of
    from soak.verify.plant import planted
    from soak.verify.rounds import rounds
    from soak.verify.subject import subject_of

    if order.engine != "gpu":
        torch.set_num_threads(
            1
        )  # two threads that wait for each other on shared cores take ten times as long
    subject = planted(subject_of(order), order.plant)
    say(subject.about)
    bench = Bench(subject, order.limits, order.seed)
    for round_, cases in rounds().items():
        if round_ not in order.rounds:
            continue
        for case in cases(bench):
            if order.case not in case.name or f"{round_}/{case.name}" in order.done:
                continue
            say(Began(round_, case.name))
            began_s = time.monotonic()
            try:
                judged = case.run(bench, seed_of(order.seed, round_, case.name))
                outcome, says, figures = judged.outcome, judged.says, judged.figures
            except Exception as error:  # noqa: BLE001 - a case's own end; the others are made all the same
                traceback.print_exc(file=sys.stderr)
                kind, says = what_ended(error)
                outcome, figures = Outcome.FAIL if kind in _BROKEN else Outcome.ERROR, ()
            else:
                kind = ""
            say(Result(round_, case.name, outcome, says, figures, time.monotonic() - began_s))
            if kind in _BROKEN:
                return  # without `Over`: the parent starts another for the rest
    say(Over())


if __name__ == "__main__":
    main()
