"""The sockets of the surface, opened before anything starts, so that a refusal costs nothing."""

from __future__ import annotations

import contextlib
import errno
import socket

from soak.core.errors import CannotRun

Address = tuple[str | int | bytes, ...]

BACKLOG = 128  # connections that the kernel holds until the surface takes them


def listen_on(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address that `host` stands for. Port 0: the system chooses one.

    Raises:
        CannotRun: what is wrong with the address, and what to do.
    """
    addresses = _addresses(host, port)
    sockets: list[socket.socket] = []
    refusal: OSError | None = None
    for family, address in addresses if port else addresses[:1]:
        try:
            sockets.append(_listening(family, address))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL or len(addresses) == 1:
                for opened in sockets:
                    opened.close()
                raise CannotRun(_words(host, port, error)) from error
            refusal = error  # `localhost` may stand for an address family that this machine has switched off
    if not sockets:
        assert refusal is not None
        raise CannotRun(_words(host, port, refusal)) from refusal
    return sockets


def _addresses(host: str, port: int) -> list[tuple[int, Address]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CannotRun(
            f"{host!r} cannot be listened on, since it stands for no address ({error}); "
            "name an address of this machine with --listen."
        ) from error
    return list(dict.fromkeys((family, address) for family, _, _, _, address in found))


def _listening(family: int, address: Address) -> socket.socket:
    # The protocol by its name: asyncio turns Nagle's delay off only where it can see that this is TCP.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after a restart, not beside another
        if family == socket.AF_INET6:
            # `::` means every address, as it does for other daemons, not IPv6 alone.
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        opened.bind(address)
        opened.listen(BACKLOG)
    except OSError:
        opened.close()
        raise
    opened.setblocking(False)
    return opened


def _words(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            what, remedy = f"Port {port} of {host} is taken by another process", "choose another"
        case errno.EADDRNOTAVAIL:
            what, remedy = f"{host} is no address of this machine", "choose one that is"
        case errno.EACCES:
            what, remedy = f"Port {port} of {host} is not open to this user", "choose one from 1024 on"
        case _:
            what, remedy = (
                f"{host}:{port} cannot be listened on ({error.strerror or error})",
                "choose another",
            )
    return f"{what}; {remedy} with --listen."
