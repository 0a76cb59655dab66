"""A line to a server that is cut at a COMMIT, in one of five ways, between whole messages.

=========  =========================================================================================
before     COMMIT never reaches the server, which sees the connection end
after      the server has carried COMMIT out, and its answer is lost
between    COMMIT is sent, and nobody waits for the answer
late       the client's connection ends first; COMMIT arrives a moment later
half open  the client's connection ends; the server hears neither COMMIT nor the end for a while
=========  =========================================================================================

A COMMIT is PostgreSQL's simple query that ends in the word, or its Parse up to the Sync; and
MariaDB's COM_QUERY that ends in it, or the compound statement that has it at its end.
"""

from __future__ import annotations

import random
import select
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import URL

__all__ = ["WAYS", "Choose", "CommitCutter", "seeded"]

WAYS = ("before", "after", "between", "late", "half open")
#: Gives the way of the next COMMIT; ``None``: it passes.
Choose = Callable[[], str | None]
_SSL, _GSS = 80877103, 80877104


def seeded(share: float, seed: int, ways: tuple[str, ...] = WAYS) -> Choose:
    """Cut so many of all COMMITs, in ways at random."""
    chance = random.Random(seed)
    return lambda: chance.choice(ways) if chance.random() < share else None


class CommitCutter:
    """The line; ``url`` leads over it."""

    def __init__(self, url: URL, choose: Choose, *, late: float = 0.05, hold: float = 0.3) -> None:
        self._to, self._family = (url.host, url.port), url.get_backend_name()
        self._choose, self._late, self._hold = choose, late, hold
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = url.set(port=self._listener.getsockname()[1], host="127.0.0.1")
        if url.drivername == "postgresql+psycopg":
            self.url = self.url.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
        #: How often each way was taken.
        self.cuts: Counter[str] = Counter()
        #: Connects are refused, as by a server that is away.
        self.refuses = False
        #: Connects are taken and never answered, as by a server that is frozen.
        self.hangs = False
        self._hanging: list[socket.socket] = []
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._start(self._accept)

    def to(self, url: URL) -> None:
        """From here on, new connections lead to another server."""
        self._to = (url.host, url.port)

    def _start(self, run: Any, *args: Any) -> None:
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(threading.Thread(target=run, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.hangs:
                self._hanging.append(client)
                continue
            try:
                if self.refuses:
                    raise ConnectionRefusedError
                server = socket.create_connection(self._to)
            except OSError:
                client.close()
                continue
            self._ends = [end for end in self._ends if end.fileno() >= 0] + [client, server]
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._pass_on, client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        messages = (_OfPostgreSQL if self._family == "postgresql" else _OfMariaDB)()
        try:
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if server in ready:
                    data = server.recv(65536)
                    if not data:
                        break
                    client.sendall(data)
                if client in ready:
                    data = client.recv(65536)
                    if not data:
                        break
                    passes, commit = messages.split(data)
                    way = self._choose() if commit else None
                    if commit and way is not None:
                        server.sendall(passes)
                        self.cuts[way] += 1
                        return self._cut(way, client, server, commit, messages)
                    server.sendall(passes + commit)
        except OSError:
            pass
        _close(client, server)

    def _cut(
        self, way: str, client: socket.socket, server: socket.socket, commit: bytes, messages: Any
    ) -> None:
        try:
            if way == "after":
                server.sendall(commit)
                seen = b""
                while not messages.is_answer(seen) and (data := server.recv(65536)):
                    seen += data
            elif way == "between":
                server.sendall(commit)
            elif way == "late":
                _close(client)
                self._closed.wait(self._late)
                server.sendall(commit)
                self._closed.wait(self._late)
            elif way == "half open":
                _close(client)
                self._closed.wait(self._hold)
        except OSError:
            pass
        _close(client, server)

    def close(self) -> None:
        self._closed.set()
        _close(self._listener, *self._hanging)  # which wakes who waits for a client
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for one in self._threads:
            one.join(5)


def _close(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):  # or who reads it in another thread goes on reading
            end.shutdown(socket.SHUT_RDWR)
        end.close()


def _ends_in_commit(text: bytes) -> bool:
    last = text.upper().rstrip(b"\0; ")
    return last.endswith((b"COMMIT", b"COMMIT; END"))


class _OfPostgreSQL:
    def __init__(self) -> None:
        self._rest = b""
        self._begun = False

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """The whole messages before a COMMIT, and COMMIT; what follows it is COMMIT's."""
        self._rest += data
        passes = commit = b""
        while (length := self._length()) and len(self._rest) >= length:
            message, self._rest = self._rest[:length], self._rest[length:]
            if not self._begun:
                self._begun = int.from_bytes(message[4:8], "big") not in (_SSL, _GSS)
            elif commit or self._is_commit(message):
                commit += message
                continue
            passes += message
        if commit and commit[:1] == b"P" and b"S" not in _kinds(commit):
            self._rest = commit + self._rest  # up to its Sync
            commit = b""
        return passes, commit

    def _length(self) -> int:
        at = 1 if self._begun else 0
        if len(self._rest) < at + 4:
            return 0
        return at + int.from_bytes(self._rest[at : at + 4], "big")

    def _is_commit(self, message: bytes) -> bool:
        kind = message[:1]
        if kind == b"Q":
            return _ends_in_commit(message[5:])
        return kind == b"P" and message[5:].split(b"\0")[1].upper() == b"COMMIT"

    def is_answer(self, seen: bytes) -> bool:
        return len(seen) >= 6 and seen[-6:-1] == b"Z\0\0\0\x05"


def _kinds(messages: bytes) -> set[bytes]:
    found = set()
    while messages:
        found.add(messages[:1])
        messages = messages[1 + int.from_bytes(messages[1:5], "big") :]
    return found


class _OfMariaDB:
    def __init__(self) -> None:
        self._rest = b""

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        self._rest += data
        passes = commit = b""
        while len(self._rest) >= 4:
            length = 4 + int.from_bytes(self._rest[:3], "little")
            if len(self._rest) < length:
                break
            message, self._rest = self._rest[:length], self._rest[length:]
            if message[3] == 0 and message[4:5] == b"\x03" and _ends_in_commit(message[5:]):
                commit += message
            else:
                passes += message
        return passes, commit

    def is_answer(self, seen: bytes) -> bool:
        return len(seen) >= 4 and len(seen) >= 4 + int.from_bytes(seen[:3], "little")
