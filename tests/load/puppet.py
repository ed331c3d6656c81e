"""A worker without a GPU stack, for tests of its parent: a real process that speaks the protocol, then does
`mode`."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from soak.core.ports import Happening, Progress, Ready
from soak.load import wire
from soak.load.engine import boot_ms

BEATS_BEFORE = 3  # of finished steps, before the mode begins


def say(event: Ready | Progress | Happening) -> None:
    sys.stdout.buffer.write(wire.encode(wire.said(event)))
    sys.stdout.buffer.flush()


def misbehave(mode: str, gpu: str) -> None:
    match mode:
        case "abort":
            os.abort()
        case "exit":
            print("ValueError: a reason", file=sys.stderr, flush=True)
            os._exit(1)
        case "babble":
            print("this is no message", flush=True)
        case "error":
            say(Happening("out_of_device_memory", boot_ms(), gpu, "no memory left on the card"))
            os._exit(wire.EXIT_CODES["out_of_device_memory"])
        case "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def main() -> None:
    mode = sys.argv[1]
    start = wire.decode_order(sys.stdin.buffer.readline())
    assert isinstance(start, wire.Start)
    orders: list[wire.Order] = []

    def listen() -> None:
        while line := sys.stdin.buffer.readline():
            orders.append(wire.decode_order(line))
            if isinstance(orders[-1], wire.Stop):
                os._exit(0)
        os._exit(wire.EXIT_PARENT_GONE)

    threading.Thread(target=listen, daemon=True).start()
    if mode == "unready":
        os._exit(1)
    say(Ready(start.gpu, boot_ms(), "puppet", "a test", step_ms=1.0))
    rotation, last_step, beats = start.rotation, boot_ms(), 0
    while True:
        time.sleep(0.05)
        rotation = max([rotation, *(order.index for order in orders if isinstance(order, wire.Rotate))])
        beats += 1
        golden = f"golden {rotation}" if mode != "other-golden" else f"golden of {os.getpid()}"
        hangs = mode in ("hang", "stubborn", "starve") and beats > BEATS_BEFORE
        if not hangs:
            last_step = boot_ms()
        say(
            Progress(
                start.gpu,
                boot_ms(),
                rotation,
                beats,
                10 * beats,
                last_step,
                1.0,
                None,
                False,
                golden,
                beats,
                beats,
            )
        )
        if beats == BEATS_BEFORE:
            misbehave(mode, start.gpu)


if __name__ == "__main__":
    main()
