"""The sampler child: asks drivers, which may hang or crash, so that the daemon never does.

`python -m soak.telemetry.sampler PARENT_PID ROOT`: orders as JSON lines on stdin, reports on stdout (see
`wire`). It ends when stdin ends or the parent is gone.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from soak.core.ports import Happening
from soak.core.records import Device, Poll, Quantity, Reading
from soak.telemetry.beat import Beat, boot_ms
from soak.telemetry.journal import follow_command
from soak.telemetry.kernel_log import KernelLog
from soak.telemetry.sensors import Backend, CardGone, Sensor, Unavailable
from soak.telemetry.wire import (
    Detect,
    Detected,
    Happened,
    Order,
    Polled,
    Report,
    Target,
    Watch,
    line_of,
    order_of,
)

BACKENDS = {  # loaded when asked for: a driver's library is not worth its memory on another vendor's machine
    "amd": ("soak.telemetry.amd", "AmdBackend"),
    "nvidia": ("soak.telemetry.nvidia", "NvidiaBackend"),
    "cpu": ("soak.telemetry.cpu", "CpuBackend"),
}
LOOK_S = 0.5  # how often silent cards are looked for, and the parent
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serves orders until stdin ends. Never returns: a thread stuck in a driver must not hold the process."""
    parent, root = int(sys.argv[1]), Path(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the daemon's to hear
    _die_with(parent)
    child = _Child(root, _private_stdout())
    threading.Thread(target=child.keep_watch, args=(parent,), name="keep watch", daemon=True).start()
    for line in sys.stdin.buffer:
        child.obey(order_of(line))
    os._exit(0)


def _die_with(parent: int) -> None:
    """The kernel kills this process when the thread that started it ends; the end of stdin alone would not
    do, should another child of the daemon have inherited the pipe."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call
        os._exit(0)


def _private_stdout() -> int:
    """A descriptor for reports alone: what a driver's library prints goes to stderr."""
    reports = os.dup(1)
    os.dup2(2, 1)
    return reports


class _Child:
    def __init__(self, root: Path, reports: int) -> None:
        self._root = root
        self._reports = reports
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._backends: dict[str, Backend] = {}
        self._beats: tuple[Beat, ...] = ()

    def obey(self, order: Order) -> None:
        if isinstance(order, Watch):
            self._beats = tuple(self._beat(target, order) for target in order.targets)
            for beat in self._beats:
                beat.start()
            self._follow_witnesses(order.targets)
        else:
            threading.Thread(target=self._detect, args=(order,), name="detect", daemon=True).start()

    def keep_watch(self, parent: int) -> None:
        """Tells which cards are silent; ends the process when the parent is gone."""
        while os.getppid() == parent:
            for beat in self._beats:
                beat.look()
            time.sleep(LOOK_S)
        os._exit(0)

    def _follow_witnesses(self, targets: Sequence[Target]) -> None:
        """The kernel log, and what NVML announces, which speaks its language."""
        path = self._root / "dev/kmsg"
        gpus = [target.gpu for target in targets]
        log = KernelLog(path, gpus, self._tell, boot_ms, follow_command(self._root))
        if self._root == Path("/") or path.exists():  # a recorded machine may have none: nothing to say
            log.start()
        announced = [target.gpu for target in targets if target.backend == "nvidia"]
        if announced:
            from soak.telemetry.nvidia import NvidiaBackend
            from soak.telemetry.nvml_events import NvmlEvents

            backend = self._backend("nvidia")
            assert isinstance(backend, NvidiaBackend)
            NvmlEvents(backend.session, announced, log.take_in).start()

    def _beat(self, target: Target, order: Watch) -> Beat:
        def open_sensor() -> Sensor:
            return self._backend(target.backend).open(target.gpu)

        return Beat(target.gpu, open_sensor, self._tell, order.poll_ms, order.ecc_every_ms)

    def _backend(self, name: str) -> Backend:
        with self._opening:  # loads a module; asks no driver
            if name not in self._backends:
                module, cls = BACKENDS[name]
                self._backends[name] = getattr(importlib.import_module(module), cls)(self._root)
            return self._backends[name]

    def _detect(self, order: Detect) -> None:
        """Asks every card of a backend at the same time, so that a silent one costs the others nothing."""
        try:
            backend = self._backend(order.backend)
            gpus = backend.find()
        except Unavailable as absent:
            self._send(Detected(order.backend, (), str(absent)))
            return
        except Exception as fault:  # noqa: BLE001  whatever a driver's library raises costs its own cards only
            self._send(Detected(order.backend, (), f"{type(fault).__name__}: {fault}"))
            return
        devices: dict[str, Device] = {}

        def describe(gpu: str) -> None:
            try:
                devices[gpu] = backend.open(gpu).describe()
            except (CardGone, Unavailable) as error:
                devices[gpu] = _silent(gpu, order.backend, str(error))
            except Exception as fault:  # noqa: BLE001  as above
                devices[gpu] = _silent(gpu, order.backend, f"{type(fault).__name__}: {fault}")

        threads = [threading.Thread(target=describe, args=(gpu,), daemon=True) for gpu in gpus]
        for thread in threads:
            thread.start()
        deadline_s = time.monotonic() + order.answer_ms / 1000
        for thread in threads:
            thread.join(max(deadline_s - time.monotonic(), 0))
        no_answer = f"no answer in {order.answer_ms / 1000:.0f} s"
        found = tuple(devices.get(gpu) or _silent(gpu, order.backend, no_answer) for gpu in gpus)
        self._send(Detected(order.backend, found, "" if found else "no card"))

    def _tell(self, news: Poll | Happening) -> None:
        self._send(Polled(news) if isinstance(news, Poll) else Happened(news))

    def _send(self, report: Report) -> None:
        line = line_of(report)
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._reports, line) :]
            except BrokenPipeError:
                os._exit(0)


def _silent(gpu: str, backend: str, reason: str) -> Device:
    """A card that is on the bus and does not answer stays visible."""
    missing = Reading.unreadable(reason)
    return Device(gpu, backend, supported={Quantity.UTILISATION_PCT: missing}, ecc=missing, notes=(reason,))


if __name__ == "__main__":
    main()
