"""The image's HEALTHCHECK: exit 0 while `/healthz` answers 200, else 1; prints what it answered.

Plain sockets, since it runs every half minute beside a load that wants the cores, and an HTTP library takes
longer to load than the daemon to answer. `SOAK_LISTEN` says where; an address that means "every one" is asked
on the loopback.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping

DEFAULT = "127.0.0.1:9868"
TIMEOUT_S = 4.0
ANSWER_MAX = 4096  # bytes
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def address(environ: Mapping[str, str]) -> tuple[str, int]:
    """Host and port to ask."""
    host, _, port = (environ.get("SOAK_LISTEN") or DEFAULT).rpartition(":")
    host = host.strip("[]")
    return _LOOPBACK_OF.get(host, host), int(port)


def ask(host: str, port: int) -> tuple[bool, str]:
    """Whether the daemon is well, and its own words. OSError where nobody answers."""
    with socket.create_connection((host, port), timeout=TIMEOUT_S) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        while len(answer) < ANSWER_MAX and (more := connection.recv(ANSWER_MAX)):
            answer += more
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    return len(words) > 1 and words[1] == b"200", body.decode("utf-8", "replace").strip()


def main(environ: Mapping[str, str]) -> int:
    try:
        is_well, words = ask(*address(environ))
    except (OSError, ValueError) as error:
        is_well, words = False, f"no answer: {error}"
    print(words)
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(os.environ))
