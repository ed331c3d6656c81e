"""The capturing child: `python -m soak.doctor.capture ROOT DIR VENDOR…` writes a replayable machine a vendor.

    DIR/<vendor>__<model>__<driver>/root/          what stands for `/`
                                    root/nvml.json what NVML answers, call by call
                                    kernel.log     lines about cards, machine checks and the PCI bus
                                    expected.json  what is read of it now
                                    README.md      where it is from

Serial numbers, UUIDs, container and host names are replaced by made-up ones, the same for the same.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from soak.core.errors import CannotRun
from soak.core.records import Device
from soak.doctor.capture_files import FileCopies
from soak.doctor.captured import Captured
from soak.doctor.pseudonyms import Pseudonyms
from soak.doctor.replay import EXPECTED, LOG, ROOT, made_of, opened
from soak.telemetry.journal import lines_of, past_command
from soak.telemetry.nvidia import NvidiaBackend, library
from soak.telemetry.nvml_record import ANSWERS, Recorder
from soak.telemetry.sensors import Unavailable
from soak.telemetry.sysfs import errno_name, text_or_none

LOG_LINES_MAX = 2000
_LOG_BYTES_MAX = 16 << 20
_KEPT = re.compile(r"amdgpu|\[drm|kfd|NVRM|nvidia|mce:|EDAC|Hardware Error|AER:|pcieport", re.IGNORECASE)
_SAMPLES, _SAMPLE_PAUSE_S = 3, 1.0


def main() -> None:
    root, folder, vendors = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), sys.argv[3:]
    for vendor in vendors:
        try:
            captured = capture(vendor, root, folder)
        except (Unavailable, CannotRun) as error:
            captured = Captured(vendor, absence=str(error))
        os.write(1, msgspec.json.encode(captured) + b"\n")
    os._exit(0)  # a library's own threads are not waited for


def capture(vendor: str, root: Path, folder: Path) -> Captured:
    """Writes one vendor's cards of the machine below `root`. Raises Unavailable where there are none,
    CannotRun where the folder cannot be written or is there already."""
    pseudonyms = Pseudonyms()
    nvml = Recorder(library(root), pseudonyms.hide) if vendor == "nvidia" else None
    backend = opened(vendor, root) if nvml is None else NvidiaBackend(root, nvml)
    devices = [backend.open(gpu).describe() for gpu in backend.find()]
    if not devices:
        raise Unavailable("no card")
    machine = folder / folder_name(devices[0])
    try:
        machine.mkdir(parents=True)
        (machine / ROOT).mkdir()
        copies = FileCopies(root, machine / ROOT, pseudonyms)
        if vendor == "amd":
            copies.copy_amd()
        elif vendor == "cpu":
            copies.copy_cpu()
        live = {gpu: _statuses(backend, gpu) for gpu in backend.find()}
        if nvml is not None:
            _sample(backend)
            (machine / ROOT / ANSWERS).write_text(json.dumps(nvml.answers, indent=1) + "\n")
        lines, no_log = _kernel_log(root / "dev/kmsg", past_command(root), pseudonyms)
        if lines:
            (machine / LOG).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        made = made_of(machine)
        (machine / EXPECTED).write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        (machine / "README.md").write_text(_readme(devices, copies, no_log), encoding="utf-8")
    except OSError as error:
        raise CannotRun(f"{machine} cannot be written ({error.strerror}); name another folder.") from error
    return Captured(
        vendor,
        str(machine),
        tuple(live),
        copies.n_files,
        sum(len(told) for told in nvml.answers.values()) if nvml is not None else 0,
        len(lines),
        no_log,
        tuple(_differing(live, made)),
    )


def folder_name(device: Device) -> str:
    """`<vendor>__<model>__<driver>`, in small letters."""
    model = re.sub(r"^(NVIDIA|AMD)\s+", "", device.model or device.arch or "unknown")
    driver = re.sub(r"^amdgpu (of )?", "", device.driver or "unknown")
    return "__".join([device.vendor, _slug(model), _slug(driver)])


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "unknown"


def _sample(backend: Any) -> None:
    """A few polls, so that the recording has more than one answer a call."""
    sensors = [backend.open(gpu) for gpu in backend.find()]
    for _ in range(_SAMPLES):
        time.sleep(_SAMPLE_PAUSE_S)
        for sensor in sensors:
            sensor.read()
            sensor.read_ecc()


def _statuses(backend: Any, gpu: str) -> dict[str, str]:
    return {str(q): str(reading.status) for q, reading in backend.open(gpu).read().items()}


def _differing(live: dict[str, dict[str, str]], made: dict[str, Any]) -> Iterator[str]:
    """Quantities that gave a value of the machine and give none of its capture. A rate needs two moments, and
    a capture is one."""
    for gpu, statuses in live.items():
        readings = made.get(gpu, {}).get("readings", {})
        for quantity, status in statuses.items():
            replayed = readings.get(quantity)
            if status == "ok" and not isinstance(replayed, float | int):
                yield f"{gpu} {quantity}: {replayed}"


def _kernel_log(path: Path, journal: Sequence[str], pseudonyms: Pseudonyms) -> tuple[list[str], str]:
    """Its lines so far about cards, machine checks and the PCI bus; why there are none. Read of `path`, else
    of what the command `journal` prints."""
    try:
        said = list(_records(path))
    except OSError as error:
        if not journal:
            return [], f"the kernel log could not be read ({errno_name(error)})"
        said = list(lines_of(journal))
    names = [os.uname().nodename, text_or_none(Path("/etc/machine-id")) or ""]
    pseudonyms.learn(names)
    kept = [line for line in said if _KEPT.search(line)]
    return [pseudonyms.hide_in_log(line) for line in kept[-LOG_LINES_MAX:]], ""


def _records(path: Path) -> Iterator[str]:
    """First lines of records, up to now. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield from _lines_up_to_now(descriptor)
    finally:
        os.close(descriptor)


def _lines_up_to_now(descriptor: int) -> Iterator[str]:
    n_bytes, rest = 0, ""
    while n_bytes < _LOG_BYTES_MAX:
        try:
            data = os.read(descriptor, 64 * 1024)
        except BlockingIOError:
            break
        except BrokenPipeError:
            continue  # records were overwritten before they were read; the next read goes on
        if not data:
            break
        n_bytes += len(data)
        *lines, rest = (rest + data.decode("utf-8", "replace")).split("\n")
        yield from (line for line in lines if line and not line.startswith(" "))
    if rest:
        yield rest


def _readme(devices: list[Device], copies: FileCopies, no_log: str) -> str:
    device = devices[0]
    lines = [
        f"# {len(devices)} x {device.model or device.arch or device.vendor}",
        "",
        f"Written by `soak doctor --capture`: what the machine's driver ({device.driver}) answered at one",
        "moment. Serial numbers, UUIDs, container and host names are made up, the same for the same.",
        "",
        "Before you pass it on, read it through, and say here: what the machine is, whether it was at rest",
        "or under load, and that anybody may use these files under the licence of this repository.",
    ]
    if no_log:
        lines += ["", f"There is no `{LOG}`: {no_log}."]
    if copies.unreadable:
        lines += ["", "There, and could not be read:", ""]
        lines += [f"- `{path}`: {name}" for path, name in copies.unreadable]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
