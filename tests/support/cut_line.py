"""A line to a server that is cut when a certain text goes over it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sqlalchemy import make_url

__all__ = ["Cut", "cut"]


class Cut:
    """A line to the server that is cut when something goes over it."""

    def __init__(self, url) -> None:
        self._to = (url.host, url.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = url.set(port=self._listener.getsockname()[1], host="127.0.0.1")
        if "psycopg" in url.drivername:
            self.url = self.url.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
        #: What is looked for, and whether it still reaches the server.
        self.at: bytes | None = None
        self.passes = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._to)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            deaf = threading.Event()  # of this connection: the client makes another one at once
            for pair in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pass_on, args=(*pair, deaf), daemon=True).start()

    def _pass_on(self, source, target, asks, deaf) -> None:
        seen = b""
        try:
            while data := source.recv(65536):
                seen = seen[-100:] + data
                if asks and self.at is not None and self.at in seen:
                    self.at = None
                    if self.passes:
                        deaf.set()
                        target.sendall(data)
                        threading.Event().wait(0.3)
                    break
                if asks or not deaf.is_set():
                    target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def cut(database) -> Iterator[Cut]:
    made = Cut(make_url(database.url))
    yield made
    made.close()
