"""The number of statements and round trips of a piece of work.

::

    from optilock.testing import count_statements

    def test_a_rename_is_one_update(engine, SessionLocal):
        with SessionLocal() as session:
            session.get_one(Page, 1).title = "Start"
            with count_statements(engine) as sent:
                session.flush()
            assert sent.count == 1
            assert sent.statements[0].text.startswith("UPDATE pages")

A record is made where SQLAlchemy hands a statement to the driver's cursor, with the text that the
driver gets, before the driver has it: a statement that the database refuses is counted too. One
``executemany`` is one record, with the number of its ``rows``. All connections of the engine count,
in every thread, also those that were open before the block.

BEGIN, COMMIT and ROLLBACK are calls of the driver, not statements, and are not counted; savepoints
are statements, and are. SQLAlchemy's own questions on a first connection are not counted, nor are
statements that your code sends over a cursor of the driver.

Round trips are counted on the wire between the driver and its server::

    from optilock.testing import wire

    with wire("postgresql+psycopg://me@127.0.0.1/app") as line:
        engine = create_engine(line.url)
        ...
        with line.counting() as trips:
            session.flush()
        assert trips.count == 1

Between the two is a small proxy on the loopback interface. It passes everything on unchanged, and
counts each request for whose answer the client waits: a query or a Sync of PostgreSQL, a command of
MariaDB or MySQL. A driver that pipelines sends many statements and waits once. One that sends the
rows of an ``executemany`` singly waits once for each. Both can be seen only below the driver.
BEGIN, COMMIT and savepoints count, logging in does not.

The line must be readable: encryption is switched off if the driver's URL has an option for it
(psycopg).
``ConfigurationError`` is raised for a URL without a host, and for other databases.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Engine, event, make_url

from optilock.errors import ConfigurationError
from optilock.testing.protocols import PROTOCOLS, Protocol

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


@dataclass(frozen=True)
class Statement:
    """A statement as the driver was given it."""

    text: str
    #: The driver's ``executemany`` was called, and not its ``execute``.
    executemany: bool
    #: Sets of parameters: 1, or those of the ``executemany``.
    rows: int = 1


class Sent:
    """The statements so far, in order; it can be read inside the block and after it."""

    def __init__(self) -> None:
        self._statements: list[Statement] = []

    def __repr__(self) -> str:
        return f"<Sent {self.count} statements>"

    @property
    def statements(self) -> tuple[Statement, ...]:
        return tuple(self._statements)

    @property
    def count(self) -> int:
        return len(self._statements)


@contextmanager
def count_statements(engine: Engine | AsyncEngine) -> Iterator[Sent]:
    """Record the statements of ``engine`` until the block is left.

    Raises ``ConfigurationError`` for anything that is not an ``Engine`` or an ``AsyncEngine``.
    """
    recorded, sent = _sync(engine), Sent()

    def before_cursor_execute(
        connection: Any, cursor: Any, text: str, parameters: Any, context: Any, executemany: bool
    ) -> None:
        rows = len(parameters) if executemany else 1
        sent._statements.append(Statement(text, executemany, rows))

    event.listen(recorded, "before_cursor_execute", before_cursor_execute)
    try:
        yield sent
    finally:
        event.remove(recorded, "before_cursor_execute", before_cursor_execute)


def _sync(engine: Any) -> Engine:
    """Return the engine that has the events; an AsyncEngine is a shell around it."""
    found = getattr(engine, "sync_engine", engine)
    if not isinstance(found, Engine):
        raise ConfigurationError(
            f"count_statements() got {type(engine).__name__!r}: give it the Engine or AsyncEngine"
            " that the sessions are bound to."
        )
    return found


# -- round trips -----------------------------------------------------------------------------------


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
        """Count requests; the line calls this before it passes them on."""
        for trips in self._listeners:
            trips.count += requests


@contextmanager
def wire(url: str | URL) -> Iterator[Wire]:
    """Make a counted line to the server of ``url``; it is cut when the block is left."""
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
            ends.callback(hang_up, client)
            far = socket.create_connection(server)
            ends.callback(hang_up, far)
            for end in (client, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pass_on(client, far, _counted_by(line, protocol()))
            pass_on(far, client, not_read)


def _counted_by(line: Wire, reader: Protocol) -> Callable[[bytes], None]:
    return lambda data: line.add(reader.requests(data))


def not_read(data: bytes) -> None:
    """Pass on the server's answers."""


def pass_on(source: socket.socket, target: socket.socket, see: Callable[[bytes], None]) -> None:
    def run() -> None:
        with suppress(OSError):  # either side has hung up
            while data := source.recv(_CHUNK):
                see(data)
                target.sendall(data)
        hang_up(source)
        hang_up(target)

    threading.Thread(target=run, daemon=True).start()


def hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
