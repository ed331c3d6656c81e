"""The looking child: `python -m soak.doctor.look`, a Quest as a line on stdin, what it saw on stdout.

Each probe has a thread of its own, and says what it saw at once: one that hangs costs itself alone.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from soak.core.errors import SoakError
from soak.core.records import Device
from soak.doctor.facts import CardLook, Told
from soak.doctor.toolchain import c_compiler, cache_writable
from soak.telemetry import access
from soak.telemetry.journal import follow_command
from soak.telemetry.sysfs import errno_name

FREE_MIN_BYTES = 512 << 20  # a run of 48 h with eight cards takes less than a fifth of it


class Subject(msgspec.Struct, frozen=True):
    gpu: str
    vendor: str


class Quest(msgspec.Struct, frozen=True):
    """What to look at. `root`: the folder that stands for `/` when sysfs is read."""

    root: str
    data_dir: str
    database: str
    listen: tuple[str, int]
    compiles: bool  # the load needs a compiler
    cards: tuple[Subject, ...] = ()

    @property
    def is_recorded(self) -> bool:
        """The cards are those of a recorded machine, which has no device nodes."""
        return self.root != "/"


class Place(msgspec.Struct, frozen=True, tag="place"):
    """`gpu`: the card that was asked about; None: the machine."""

    name: str
    gpu: str | None
    told: Told


class Card(msgspec.Struct, frozen=True, tag="card"):
    """`fault`: why it could not be looked at."""

    gpu: str
    look: CardLook | None = None
    fault: str = ""


Seen: TypeAlias = Place | Card


def main() -> None:
    quest = msgspec.json.decode(sys.stdin.buffer.readline(), type=Quest)
    encoder, lock, out = msgspec.json.Encoder(), threading.Lock(), os.dup(1)
    os.dup2(2, 1)  # what a library prints is no message

    def run(probe: Callable[[], Seen]) -> None:
        line = encoder.encode(probe()) + b"\n"
        with lock:
            os.write(out, line)

    threads = [threading.Thread(target=run, args=(probe,), daemon=True) for probe in probes(quest)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)  # a library's own threads are not waited for


def probes(quest: Quest) -> list[Callable[[], Seen]]:
    """One function an answer."""

    def place(name: str, gpu: str | None, ask: Callable[[], Told]) -> Callable[[], Seen]:
        return lambda: Place(name, gpu, _told(ask))

    def card(subject: Subject) -> Callable[[], Seen]:
        return lambda: _card(Path(quest.root), subject)

    asked = [place(*name, ask) for name, ask in places_of(quest).items()]
    return asked + [card(subject) for subject in quest.cards]


def places_of(quest: Quest) -> dict[tuple[str, str | None], Callable[[], Told]]:
    """What is asked, by name and card."""
    root = Path(quest.root)
    places: dict[tuple[str, str | None], Callable[[], Told]] = {
        ("data folder", None): lambda: data_folder(Path(quest.data_dir)),
        ("database", None): lambda: database(quest.database),
        ("port", None): lambda: port(*quest.listen),
    }
    if not quest.is_recorded or (root / "dev/kmsg").exists():
        places["kernel log", None] = lambda: kernel_log(root / "dev/kmsg", follow_command(root))
    if quest.compiles:
        places["C compiler", None] = lambda: c_compiler(os.environ)
        places["cache folder", None] = lambda: cache_writable(os.environ)
    if not quest.is_recorded and not quest.cards:
        places["access", None] = lambda: Told(fault=access.none_found(root))
    for subject in quest.cards:
        if not quest.is_recorded:
            places["access", subject.gpu] = functools.partial(access_to, root, subject)
        places["held", subject.gpu] = functools.partial(held, subject.gpu)
    return places


def _told(ask: Callable[[], Told]) -> Told:
    try:
        return ask()
    except SoakError as error:
        return Told(fault=str(error))
    except Exception as error:  # noqa: BLE001 - the loop of this probe: what went wrong is its answer
        return Told(fault=f"{type(error).__name__}: {error}")


def data_folder(folder: Path) -> Told:
    """As `soak run` prepares it; a folder that is full soon counts as one that is."""
    from soak.store.folder import prepare_folder
    from soak.store.host import HOST_ID_FILE, host_id

    folder = prepare_folder(folder)
    if (folder / HOST_ID_FILE).exists():
        host_id(folder)
    free = shutil.disk_usage(folder).free
    if free < FREE_MIN_BYTES:
        has = f"{folder} has {free >> 20} MiB free, a run wants {FREE_MIN_BYTES >> 20}"
        return Told(fault=f"{has}: free some, or choose another with --data-dir")
    return Told(says=f"{folder}, {free / (1 << 30):.0f} GiB free")


def database(url: str) -> Told:
    """Opened as `soak run` does, where it is there; nothing is made and nothing upgraded."""
    from sqlalchemy import make_url

    from soak.store.db import Database

    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
        return Told(says=f"{parsed.database} will be made")
    with Database.open(url) as opened:
        version = opened.current()
        if version.is_current:
            return Told(says=f"{opened.where}, version {version.current}")
        if version.current is None:
            return Told(says=f"{opened.where}, empty: will be made version {version.head}")
        return Told(says=f"{opened.where}, version {version.current}: will be raised to {version.head}")


def port(host: str, number: int) -> Told:
    """Opened as `soak run` does, and closed."""
    from soak.web.listening import listen_on

    for opened in listen_on(host, number):
        opened.close()
    return Told(says=f"{host}:{number} is free" if number else f"{host}, a port of the system's choice")


def kernel_log(path: Path, journal: Sequence[str] = ()) -> Told:
    """Whether the sampler will hear it, from the log itself or from the journal."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        closed = f"{path} cannot be read ({errno_name(error)})"
        return Told(says=f"{closed}, its messages are read of the journal") if journal else Told(fault=closed)
    os.close(descriptor)
    return Told(says=f"{path} can be read")


def access_to(root: Path, subject: Subject) -> Told:
    """Whether this process may compute on the card."""
    why = access.closed([Device(subject.gpu, subject.vendor)], root)
    return Told(says="its device nodes are open", fault=why.get(subject.gpu, ""))


def held(gpu: str) -> Told:
    """Whether another soak of this machine has the card, whatever its database."""
    from soak.store.lease import holder_of_card

    holder = holder_of_card(gpu)
    return Told(says="by no other soak", fault=f"by another soak: {holder}" if holder else "")


def _card(root: Path, subject: Subject) -> Card:
    try:
        if subject.vendor == "amd":
            from soak.doctor.look_amd import look_at_amd

            return Card(subject.gpu, look_at_amd(root, subject.gpu))
        if subject.vendor == "nvidia":
            from soak.doctor.look_nvidia import look_at_nvidia

            return Card(subject.gpu, look_at_nvidia(root, subject.gpu))
    except Exception as error:  # noqa: BLE001 - the loop of this probe: what went wrong is its answer
        return Card(subject.gpu, fault=f"{type(error).__name__}: {error}")
    return Card(subject.gpu, CardLook())


if __name__ == "__main__":
    main()
