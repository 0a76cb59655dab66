"""The databases a benchmark runs on, made for the run and removed after it.

==============  =====================================================================
``socket``      an embedded PostgreSQL on a unix socket: no network at all
``delayed``     the same server by TCP, every reply 1 ms later (see ``delay.py``)
``far``         the same at 5 ms, for benchmarks that name it
``sqlite``      a file
``memory``      SQLite in memory, for benchmarks that name it
``mariadb``     the ``mariadbd`` of this machine on a unix socket, for benchmarks that name it
``none``        no database, for benchmarks that need none
==============  =====================================================================

Nothing is synced to disk (``fsync=off``, ``PRAGMA synchronous=OFF`` and their like): waiting for a
disk is the same for every subject, so it would only move the ratios of the commit towards 1.00.
Autovacuum is off, because it would be paid by whoever happens to run.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optilock_apps.servers import ServerMissing, mariadb, postgresql
from sqlalchemy import Engine, create_engine, event, make_url, text

from benchmarks.delay import Network, delayed

__all__ = ["DATABASES", "USUAL", "Place", "do_not_sync", "opened", "places", "through"]

#: What a benchmark runs on unless it says so itself (``DATABASES`` of its module).
USUAL = ("socket", "delayed", "sqlite")
DATABASES = (*USUAL, "far", "memory", "mariadb", "none")
_LABELS = {
    "socket": "PostgreSQL, socket",
    "delayed": "PostgreSQL, 1 ms",
    "far": "PostgreSQL, 5 ms",
    "sqlite": "SQLite",
    "memory": "SQLite, memory",
    "mariadb": "MariaDB, socket",
    "none": "-",
}
#: How much later each reply comes.
_SECONDS = {"delayed": 0.001, "far": 0.005}
_MEMORY = "sqlite://"
#: Each of 16 writers may have one for every library that it compares.
_CONNECTIONS = 400
_SETTINGS = {"autovacuum": "off", "jit": "off", "max_connections": str(_CONNECTIONS)}


@dataclass(frozen=True)
class Place:
    """A database to measure on."""

    name: str
    url: str
    #: The same database without the delay, for what is not measured.
    direct: str
    #: The same by TCP, for those who make a network of their own; nothing for a file.
    tcp: str = ""
    network: Network | None = None

    @property
    def label(self) -> str:
        """What the tables call it."""
        return _LABELS[self.name]

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """An engine with one connection: the subjects share it, and with it the server process."""
        with opened(self.url) as engine:
            yield engine

    @contextmanager
    def others(self) -> Iterator[Engine]:
        """An engine for the other writer, past the delay."""
        with opened(self.direct) as engine:
            yield engine


@contextmanager
def opened(url: str) -> Iterator[Engine]:
    """An engine with one connection, closed afterwards."""
    in_memory = url == _MEMORY  # its pool is one connection anyway
    engine = create_engine(url) if in_memory else create_engine(url, pool_size=1, max_overflow=0)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", do_not_sync)
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def places(names: Collection[str] = USUAL) -> Iterator[list[Place]]:
    """The databases of these names, running."""
    with ExitStack() as stack:
        made: list[Place] = []
        if {"socket", *_SECONDS} & set(names):
            server = stack.enter_context(postgresql(_SETTINGS))
            tcp = server.url
            made += [Place("socket", server.socket_url, server.socket_url, tcp)]
            for name in (one for one in _SECONDS if one in names):
                away = delayed(server.host, server.port, seconds=_SECONDS[name])
                network = stack.enter_context(away)
                url = through(tcp, network.port)
                made.append(Place(name, url, server.socket_url, tcp, network))
        if "sqlite" in names:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="optilock-bench-"))
            url = f"sqlite:///{Path(folder) / 'bench.db'}"
            made.append(Place("sqlite", url, url))
        if "memory" in names:
            made.append(Place("memory", _MEMORY, _MEMORY))
        if "mariadb" in names:
            made += _mariadb(stack, alone=set(names) == {"mariadb"})
        if "none" in names:
            made.append(Place("none", "", ""))
        yield [place for place in made if place.name in names]


def _mariadb(stack: ExitStack, *, alone: bool) -> list[Place]:
    """MariaDB; beside others, none where it is not installed."""
    try:
        server = stack.enter_context(mariadb())
    except ServerMissing as error:
        if alone:
            raise
        print(f"MariaDB is left out. {error}", file=sys.stderr)
        return []
    with opened(server.socket_url) as engine, engine.connect() as connection:
        connection.execute(text(f"SET GLOBAL max_connections = {_CONNECTIONS}"))
    return [Place("mariadb", server.socket_url, server.socket_url, server.url)]


def do_not_sync(connection: Any, record: Any) -> None:
    """A listener for ``connect`` of SQLite's engines."""
    connection.execute("PRAGMA synchronous=OFF")


def through(tcp: str, port: int) -> str:
    """This URL by another port, in clear: the delay is all that is added."""
    url = make_url(tcp).set(port=port)
    if url.get_backend_name() == "postgresql":
        url = url.update_query_dict({"sslmode": "disable"})
    return url.render_as_string()
