"""The kernel log as a witness: lines about the cards of the run, as they come.

Read of /dev/kmsg, else of the journal, where this user may. A corroborating witness: where it cannot be read,
that is said once and no criterion suffers. Only lines written after the start are looked at.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from soak.core.ports import Happening
from soak.telemetry.journal import lines_of
from soak.telemetry.plausible import printable
from soak.telemetry.sysfs import errno_name

RECORD_MAX = 64 * 1024  # bytes; a read of /dev/kmsg gives one record and refuses a buffer that is too small
PAUSE_MS, PAUSE_MAX_MS = 60_000, 3_600_000  # between two lines of one class about one card, doubled each time


@dataclass(frozen=True, slots=True)
class Pattern:
    """`kind`: what it means for the verdict (core.incidents); `topic`: what it is about, in one word."""

    regex: re.Pattern[str]
    kind: str
    topic: str
    meaning: str


def _p(regex: str, kind: str, topic: str, meaning: str) -> Pattern:
    return Pattern(re.compile(regex), kind, topic, meaning)


# The first that matches counts. Sources: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors); the
# format strings of amdgpu_device.c, amdgpu_job.c, amdgpu_ras.c, amdgpu_vm.c, nbio_v7_4.c, kfd_device_queue_
# manager.c; pci/pcie/aer.c; x86 mce. Errors that a counter or a criterion judges are told, not judged, here.
PATTERNS: tuple[Pattern, ...] = (
    _p(r"Xid \(.*?\): 79\b", "device_lost", "xid", "Xid 79: the card has fallen off the bus"),
    _p(r"Xid \(.*?\): (?:119|120)\b", "device_error", "xid", "Xid 119/120: the card's own processor hangs"),
    _p(r"Xid \(.*?\): 95\b", "device_error", "xid", "Xid 95: an uncontained memory error"),
    _p(r"Xid \(.*?\): 154\b.*Reset Required", "device_error", "xid", "Xid 154: the card needs a reset"),
    _p(r"Xid \(.*?\): (?:48|63|64|92|94)\b", "kernel_log", "ecc", "Xid: an ECC error or a retired row"),
    _p(r"Xid \(.*?\): 74\b", "kernel_log", "nvlink", "Xid 74: an NVLink error"),
    _p(r"Xid \(.*?\): (?:13|31|43|45)\b", "kernel_log", "xid", "Xid: a program on the card was ended"),
    _p(r"Xid \(.*?\): \d+", "kernel_log", "xid", "an Xid"),
    _p(r"NVRM: .*GPU .*fallen off the bus", "device_lost", "bus", "the card has fallen off the bus"),
    _p(r"device lost from bus", "device_lost", "bus", "the card has fallen off the bus"),
    _p(r"GPU reset begin", "device_reset", "reset", "the driver resets the card"),
    _p(
        r"GPU (?:reset|recovery) (?:end with ret = -|.*failed)|GPU Recovery Failed",
        "device_reset",
        "reset",
        "a reset failed",
    ),
    _p(r"GPU reset\(\d+\) succeeded", "kernel_log", "reset", "the reset is done"),
    _p(r"uncorrectable hardware error\(", "device_error", "ras", "a fatal hardware error interrupt"),
    _p(r"\buncorrectable hardware errors detected", "kernel_log", "ecc", "uncorrected errors"),
    _p(
        r"\b(?:correctable|deferred) hardware errors detected",
        "kernel_log",
        "ecc",
        "corrected or deferred errors",
    ),
    _p(r"ring \S+ timeout, but soft recovered", "kernel_log", "hang", "a hung queue was recovered"),
    _p(r"ring \S+ timeout", "device_error", "hang", "a queue of the card hangs"),
    _p(
        r"fence wait loop timeout|might be in unrecoverable state",
        "device_error",
        "hang",
        "a queue of the card hangs",
    ),
    _p(
        r"\bpage fault \(src_id|GPU fault detected|VM_L2_PROTECTION_FAULT",
        "kernel_log",
        "fault",
        "an access outside of memory",
    ),
    _p(r"thermal throttling temperature reached", "kernel_log", "heat", "the card slows itself for heat"),
    _p(
        r"Failed to (?:send|export SMU) message|SMU: .*response:0xFFFFFFFF",
        "kernel_log",
        "smu",
        "the card's firmware does not answer",
    ),
    _p(r"severity=Uncorrect(?:ed|able) \(Fatal\)", "kernel_log", "pcie", "a fatal PCIe error"),
    _p(r"severity=(?:Unc|C)orrect(?:ed|able)", "kernel_log", "pcie", "a PCIe error"),
    _p(
        r"\[Hardware Error\]|mce: .*Machine check|EDAC .*\b[CU]E\b",
        "kernel_log",
        "machine_check",
        "a machine check of the host",
    ),
)
_ABOUT_THE_HOST = frozenset({"machine_check"})
_ADDRESS = re.compile(r"\b([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})(\.[0-7])?\b", re.IGNORECASE)


def classified(text: str, gpus: Collection[str]) -> tuple[str | None, Pattern] | None:
    """The card that a line is about (None: the host) and what it means; None where it is neither."""
    pattern = next((pattern for pattern in PATTERNS if pattern.regex.search(text)), None)
    if pattern is None:
        return None
    if pattern.topic in _ABOUT_THE_HOST:
        return None, pattern
    for address, function in _ADDRESS.findall(text):
        for gpu in gpus:
            if gpu == (address + function).lower() or (
                not function and gpu.startswith(address.lower() + ".")
            ):
                return gpu, pattern
    return None


def message_of(record: str) -> str:
    """The text of a record of /dev/kmsg (`priority,sequence,time,flags;text`) without its dictionary. It may
    quote a program's name, which may hold anything."""
    head, separator, text = record.partition(";")
    line = text.partition("\n")[0] if separator and re.match(r"\d+,\d+,\d+,", head) else record
    return printable(line.strip())


class KernelLog:
    """Follows a log in a thread of its own and tells what it says about `gpus`.

    `journal`: the command that prints the same messages, for where `path` cannot be read; empty: none.
    `take_in` is for every witness that speaks the log's language, from any thread.
    """

    def __init__(
        self,
        path: Path,
        gpus: Collection[str],
        tell: Callable[[Happening], None],
        boot_ms: Callable[[], int],
        journal: Sequence[str] = (),
    ) -> None:
        self._journal = journal
        self._path = path
        self._gpus = tuple(gpus)
        self._tell = tell
        self._boot_ms = boot_ms
        self._lock = threading.Lock()
        self._quiet: dict[tuple[str | None, str], tuple[int, int, int]] = {}  # until, pause, lines kept back

    def start(self) -> None:
        threading.Thread(target=self._follow, name="kernel log", daemon=True).start()

    def take_in(self, record: str) -> None:
        """Tells a record that matters, unless its like was told a moment ago."""
        text = message_of(record)
        found = classified(text, self._gpus)
        if found is None:
            return
        with self._lock:
            happening = self._news(text, *found)
        if happening is not None:
            self._tell(happening)

    def _news(self, text: str, gpu: str | None, pattern: Pattern) -> Happening | None:
        now_ms = self._boot_ms()
        until_ms, pause_ms, n_kept = self._quiet.get((gpu, pattern.meaning), (0, PAUSE_MS, 0))
        if now_ms < until_ms:
            self._quiet[gpu, pattern.meaning] = (until_ms, pause_ms, n_kept + 1)
            return None
        self._quiet[gpu, pattern.meaning] = (now_ms + pause_ms, min(2 * pause_ms, PAUSE_MAX_MS), 0)
        data = {"topic": pattern.topic, "line": text[:500], "kept_back": n_kept}
        return Happening(pattern.kind, now_ms, gpu, pattern.meaning, data)

    def _follow(self) -> None:
        try:
            for record in _records(self._path):
                self.take_in(record)
        except OSError as error:
            why = errno_name(error)
        else:
            return  # the end of a recorded log
        if self._journal:
            try:
                for line in lines_of(self._journal):
                    self.take_in(line)
                why += ", and journalctl has ended"
            except OSError as error:
                why += f", journalctl: {errno_name(error)}"
        detail = f"the kernel log cannot be read ({why}): one witness less"
        data = {"source": "kernel_log", "once": True}
        self._tell(Happening("sensor_error", self._boot_ms(), None, detail, data))


def _records(path: Path) -> Iterator[str]:
    """Records written from now on; waits for each. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a pipe that stands in for the log has no past
            os.lseek(fd, 0, os.SEEK_END)
        while True:
            try:
                data = os.read(fd, RECORD_MAX)
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next read goes on
            if not data:
                return  # the end of an ordinary file; /dev/kmsg has none
            yield data.decode("utf-8", "replace")
    finally:
        os.close(fd)
