"""The network of ``delay.py`` where no compiler is: the same protocol, spoken by Python.

Its threads wait for the interpreter and for the scheduler, so it is late by more than the program
in C, and by more on a busy machine. It says by how much.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

__all__ = ["main"]

_CHUNK = 1 << 16


@dataclass
class Counts:
    """What is told when it is asked for: threads only add to it."""

    #: By how many microseconds each reply was late.
    late: list[int] = field(default_factory=list)
    trips: int = 0

    def line(self) -> str:
        """Replies, round trips, lateness (median, p99), and no real-time priority."""
        late = sorted(self.late)
        median, most = (late[int(len(late) * part)] if late else 0 for part in (0.5, 0.99))
        return f"{len(late)} {self.trips} {median} {most} 0"


@dataclass
class Pair:
    """A connection, and who spoke last on it."""

    client: socket.socket
    server: socket.socket
    seconds: float
    counts: Counts
    replies: queue.SimpleQueue[tuple[float, bytes]] = field(default_factory=queue.SimpleQueue)
    server_spoke: bool = True

    def serve(self) -> None:
        """Start what forwards in both directions."""
        for end in (self.client, self.server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for target in (self._forward, self._collect, self._deliver):
            threading.Thread(target=target, daemon=True).start()

    def _forward(self) -> None:
        while chunk := _received(self.client):
            self.counts.trips += self.server_spoke
            self.server_spoke = False
            self.server.sendall(chunk)
        self.server.close()

    def _collect(self) -> None:
        while True:
            chunk = _received(self.server)
            self.replies.put((time.perf_counter() + self.seconds, chunk))
            if not chunk:
                return

    def _deliver(self) -> None:
        while True:
            due, chunk = self.replies.get()
            time.sleep(max(0.0, due - time.perf_counter()))
            if not chunk:
                self.client.close()
                return
            self.server_spoke = True
            if self.seconds:
                self.counts.late.append(int((time.perf_counter() - due) * 1e6))
            self.client.sendall(chunk)


def main(host: str, port: str, microseconds: str) -> None:
    """Serve until standard input ends."""
    counts = Counts()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = (listener, (host, int(port)), int(microseconds) / 1e6, counts)
        threading.Thread(target=_accept, args=accepting, daemon=True).start()
        print(listener.getsockname()[1], flush=True)
        for _ in sys.stdin:
            print(counts.line(), flush=True)


def _accept(
    listener: socket.socket, target: tuple[str, int], seconds: float, counts: Counts
) -> None:
    while True:
        client, _ = listener.accept()
        Pair(client, socket.create_connection(target), seconds, counts).serve()


def _received(end: socket.socket) -> bytes:
    """What came in; nothing when either side has hung up."""
    try:
        return end.recv(_CHUNK)
    except OSError:
        return b""


if __name__ == "__main__":
    main(*sys.argv[1:])
