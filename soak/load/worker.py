"""One card at work: `python -m soak.load.worker`, started by `soak.load.pool`, orders on stdin, events on
stdout.

    main thread     reads orders that have come, says what happened and how far it is, twice a second
    order thread    waits on stdin; its end means that the parent is gone, and ends the process at once
    engine threads  compute (`engine_cpu`, `engine_gpu`); an error of theirs ends the worker with a reason

Options: `--parent PID` (ends when that process is not the parent any more); `--inject-bit-flip ROTATION:STEP`
damages an output on purpose, for tests; `Ready.facts["injected"]` then says so.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import platform
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

from soak.core.ports import Checked, Happening, Progress, Ready
from soak.load import wire
from soak.load.engine import BitFlip, Engine, LoadError, boot_ms
from soak.load.failures import what_ended

BEAT_S = 0.5
_PR_SET_PDEATHSIG = 1
_NICE_CPU = 5


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    _end_with_parent(options.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    mouth = _Mouth(_take_stdout())
    orders: queue.SimpleQueue[wire.Order] = queue.SimpleQueue()
    first = sys.stdin.buffer.readline(wire.MAX_LINE_BYTES)
    start = wire.decode_order(first) if first else None
    if not isinstance(start, wire.Start):
        return wire.EXIT_PARENT_GONE
    threading.Thread(target=_listen, args=(sys.stdin.buffer, orders), name="orders", daemon=True).start()
    try:
        engine = _engine(start, options.inject_bit_flip)
        mouth.say(engine.begin(start.rotation))
        _serve(engine, orders, mouth)
    except Exception as error:  # noqa: BLE001 - the loop of the process: what ends it becomes a record
        traceback.print_exc(file=sys.stderr)
        kind, sentence = what_ended(error)
        mouth.say(Happening(kind, boot_ms(), start.gpu, sentence))
        sys.stderr.flush()
        os._exit(wire.EXIT_CODES[kind])  # a native call of a thread may never return
    os._exit(wire.EXIT_STOPPED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="soak.load.worker", description="one card at work; started by the daemon"
    )
    parser.add_argument("--parent", type=int, default=None, metavar="PID")
    parser.add_argument("--inject-bit-flip", type=BitFlip.parse, default=None, metavar="ROTATION:STEP")
    return parser


def _engine(start: wire.Start, inject: BitFlip | None) -> Engine:
    if start.engine == "cpu":
        os.nice(_NICE_CPU)  # the daemon and its sampler get a core at once
        from soak.load.engine_cpu import EngineCpu

        return EngineCpu(start.gpu, start.protocol, inject)
    if start.engine == "gpu":
        return _engine_gpu(start, inject)
    raise LoadError("worker_error", f"there is no engine {start.engine!r}; legal: cpu, gpu")


def _engine_gpu(start: wire.Start, inject: BitFlip | None) -> Engine:
    from soak_kernels.environment import pin_compiler

    pinned = pin_compiler(os.environ)  # before Triton is loaded
    try:
        from soak.load.rig_gpu import engine_of_card
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        sentence = "Triton is not installed, and the GPU's kernels need it; install gpu-soak[gpu]"
        raise LoadError("compile_error", sentence) from error
    return engine_of_card(start.gpu, start.protocol, inject, pinned)


def _serve(engine: Engine, orders: queue.SimpleQueue[wire.Order], mouth: _Mouth) -> None:
    """Until the order to stop."""
    while True:
        order: wire.Order | None = None
        with contextlib.suppress(queue.Empty):
            order = orders.get(timeout=BEAT_S)
        match order:
            case wire.Rotate(index):
                engine.rotate(index)
            case wire.Check(index):
                engine.check(index)
        for event in engine.take():
            mouth.say(event)
        mouth.say(*engine.progress())
        if isinstance(order, wire.Stop):
            return


def _listen(ear: BinaryIO, orders: queue.SimpleQueue[wire.Order]) -> None:
    """Hands on what the parent says; without a parent the process ends here, whatever its main thread is
    in."""
    while line := ear.readline(wire.MAX_LINE_BYTES):
        try:
            orders.put(wire.decode_order(line))
        except msgspec.DecodeError as error:
            print(f"an order that is none: {error}", file=sys.stderr, flush=True)
    os._exit(wire.EXIT_PARENT_GONE)


class _Mouth:
    """Says one message at a time."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def say(
        self, event: Ready | Progress | Checked | Happening, in_step_since_boot_ms: int | None = None
    ) -> None:
        self._out.write(wire.encode(wire.said(event, in_step_since_boot_ms)))
        self._out.flush()


def _take_stdout() -> BinaryIO:
    """The pipe to the parent; what libraries print to stdout goes to stderr from here on."""
    pipe = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(pipe, "wb")


def _end_with_parent(parent: int | None) -> None:
    """The kernel kills this process when its parent dies, however that happens (Linux)."""
    if platform.system() == "Linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent is not None and os.getppid() != parent:  # it died before that took effect
        os._exit(wire.EXIT_PARENT_GONE)


if __name__ == "__main__":
    sys.exit(main())
