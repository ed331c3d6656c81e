"""Clients that hold connections: `crowd_clients.py PORT IDLE SLOW`. Says "ready", goes on until stdin ends.

Idle ones never send a byte and come again when they are put out, twenty a second. Half of the slow ones send
a byte of a request a second, half ask for /metrics and take a byte of it a second.
"""

from __future__ import annotations

import select
import socket
import sys
import time

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * 4000 + b"\r\n\r\n"


def connected(port: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    return client


def main() -> None:
    port, n_idle, n_slow = map(int, sys.argv[1:])
    idle = [connected(port) for _ in range(n_idle)]
    slow = [connected(port) for _ in range(n_slow)]
    sent = [0] * n_slow
    for client in slow[::2]:
        client.send(REQUEST)
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        began_s = time.monotonic()
        for i, client in enumerate(slow):
            try:
                if i % 2:
                    client.send(REQUEST[sent[i] : sent[i] + 1])
                    sent[i] += 1
                elif client.recv(1) == b"":
                    raise ConnectionResetError
            except BlockingIOError:
                pass
            except OSError:
                client.close()
                slow[i], sent[i] = connected(port), 0
                if i % 2 == 0:
                    slow[i].send(REQUEST)
        gone = select.poll()
        numbers = {client.fileno(): i for i, client in enumerate(idle)}
        for number in numbers:
            gone.register(number, select.POLLIN | select.POLLHUP)
        for number, _ in gone.poll(0)[:20]:
            idle[numbers[number]].close()
            idle[numbers[number]] = connected(port)
        time.sleep(max(1 - (time.monotonic() - began_s), 0))


main()
