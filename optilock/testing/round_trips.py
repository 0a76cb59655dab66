"""Count round trips where they happen: on the wire between the driver and its server.

::

    from optilock.testing import wire

    with wire("postgresql+psycopg://me@127.0.0.1/app") as line:
        engine = create_engine(line.url)
        ...
        with line.counting() as trips:
            session.flush()
        assert trips.count == 1

Between the two stands a small proxy on the loopback interface. It passes everything on as it is,
and counts what the client sends and then waits for: a query or a Sync of PostgreSQL, a command of
MariaDB or MySQL. A driver that pipelines sends many statements and waits once, and one that sends
the rows of an ``executemany`` singly waits once for each: both are seen here, and nowhere above the
driver. BEGIN, COMMIT and savepoints count, logging in does not.

The line must be readable: encryption is switched off where the driver's URL can say so (psycopg).
``ConfigurationError`` is raised for a URL without a host, and for other databases.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import URL, make_url

from optilock.errors import ConfigurationError
from optilock.testing.protocols import PROTOCOLS, Protocol

__all__ = ["Trips", "Wire", "wire"]

_CHUNK = 1 << 16


@dataclass
class Trips:
    """Round trips so far; it can be read inside the block and after it."""

    count: int = 0


class Wire:
    """A counted line to a server."""

    def __init__(self, url: str) -> None:
        #: SQLAlchemy URL of the database, by way of the line.
        self.url = url
        self._listeners: list[Trips] = []

    @contextmanager
    def counting(self) -> Iterator[Trips]:
        """Count the round trips of all connections of the line until the block is left."""
        trips = Trips()
        self._listeners.append(trips)
        try:
            yield trips
        finally:
            self._listeners.remove(trips)

    def add(self, requests: int) -> None:
        """Called by the line, before the requests are passed on."""
        for trips in self._listeners:
            trips.count += requests


@contextmanager
def wire(url: str | URL) -> Iterator[Wire]:
    """A counted line to the server of ``url``, which is cut when the block is left."""
    asked = make_url(url)
    protocol, server = _protocol(asked), (asked.host or "", asked.port or _port(asked))
    if not asked.host:
        raise ConfigurationError(
            f"wire() got a URL of {asked.get_backend_name()} without a host: name one, because only"
            " what goes over TCP can be counted."
        )
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as ends:
        line = Wire(_by_way_of(asked, listener.getsockname()[1]))
        accepting = threading.Thread(
            target=_accept, args=(listener, server, line, protocol, ends), daemon=True
        )
        accepting.start()
        try:
            yield line
        finally:
            with suppress(OSError):  # close() alone leaves accept() waiting on Linux
                listener.shutdown(socket.SHUT_RDWR)
            accepting.join(timeout=5)


def _protocol(url: URL) -> Callable[[], Protocol]:
    found = PROTOCOLS.get(url.get_backend_name())
    if found is None:
        known = ", ".join(PROTOCOLS)
        raise ConfigurationError(
            f"wire() cannot read the protocol of {url.get_backend_name()!r}: it knows {known}."
        )
    return found


def _port(url: URL) -> int:
    return 5432 if url.get_backend_name() == "postgresql" else 3306


def _by_way_of(url: URL, port: int) -> str:
    near = url.set(host="127.0.0.1", port=port)
    if near.get_driver_name() in ("psycopg", "psycopg2"):
        near = near.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
    return near.render_as_string(hide_password=False)


def _accept(
    listener: socket.socket,
    server: tuple[str, int],
    line: Wire,
    protocol: Callable[[], Protocol],
    ends: ExitStack,
) -> None:
    with suppress(OSError):  # the listener is closed: the line is cut
        while True:
            client, _ = listener.accept()
            ends.callback(_cut, client)
            far = socket.create_connection(server)
            ends.callback(_cut, far)
            for end in (client, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _pass_on(client, far, _counted_by(line, protocol()))
            _pass_on(far, client, _not_read)


def _counted_by(line: Wire, reader: Protocol) -> Callable[[bytes], None]:
    return lambda data: line.add(reader.requests(data))


def _not_read(data: bytes) -> None:
    """What the server answers."""


def _pass_on(source: socket.socket, target: socket.socket, see: Callable[[bytes], None]) -> None:
    def run() -> None:
        with suppress(OSError):  # either side has hung up
            while data := source.recv(_CHUNK):
                see(data)
                target.sendall(data)
        _cut(source)
        _cut(target)

    threading.Thread(target=run, daemon=True).start()


def _cut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
