"""How the connections of an engine are led through this process, for each kind of database."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import Callable, Mapping
from typing import Any
from typing import Protocol as TypingProtocol

from sqlalchemy import URL, Engine, NullPool, create_engine, event
from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError
from optilock.testing.lines import Fault, Line
from optilock.testing.other_writers import Change, apply
from optilock.testing.protocols import PROTOCOLS, Protocol
from optilock.testing.sql_texts import Statement
from optilock.testing.sqlite_lines import SQLiteLine

__all__ = ["Route", "is_in_memory", "route_of"]

Choose = Callable[[Statement], Fault | None]
#: What a driver is given so that its line can be read.
_READABLE: Mapping[str, Mapping[str, object]] = {
    "psycopg": {"sslmode": "disable", "gssencmode": "disable"},
    "psycopg_async": {"sslmode": "disable", "gssencmode": "disable"},
    "psycopg2": {"sslmode": "disable", "gssencmode": "disable"},
    "asyncpg": {"ssl": False},
    "pymysql": {"ssl_disabled": True},
    "asyncmy": {},
}
_NO_TLS = (None, False, "disable", "allow", "prefer")


class Route(TypingProtocol):
    """The way to one database."""

    def lead(self, choose: Choose, positional: Any, named: dict[str, Any]) -> Line | SQLiteLine:
        """Change the arguments of a connect so that it comes by way of a line."""

    def write(self, change: Change) -> None:
        """Change a row in a transaction of another connection, which knows no faults."""


def route_of(engine: Engine) -> Route:
    """Return the way to the engine's database.

    Raises ``ConfigurationError`` if there is none.
    """
    url, driver = engine.url, engine.dialect.driver
    if url.get_backend_name() == "sqlite" and driver in ("pysqlite", "aiosqlite"):
        if is_in_memory(url):
            raise ConfigurationError(
                "Faults() got SQLite in memory. Such a database is gone with its connection, so use"
                " a file."
            )
        return _File()
    protocol = PROTOCOLS.get(url.get_backend_name())
    if protocol is None or driver not in _READABLE:
        known = ", ".join(("pysqlite", "aiosqlite", *_READABLE))
        raise ConfigurationError(
            f"Faults() cannot read what {driver} sends to {url.get_backend_name()}. It knows the"
            f" drivers {known}."
        )
    return _Server(url, driver, protocol, is_async=engine.dialect.is_async)


def is_in_memory(url: URL) -> bool:
    """Return whether it is a database of SQLite that is gone with its connection."""
    in_memory = url.database in (None, "", ":memory:") or "mode=memory" in str(url.database)
    return url.get_backend_name() == "sqlite" and in_memory


class _File:
    """SQLite."""

    def __init__(self) -> None:
        self._arguments: tuple[Any, dict[str, Any]] = (), {}

    def lead(self, choose: Choose, positional: Any, named: dict[str, Any]) -> SQLiteLine:
        theirs = {k: v for k, v in named.items() if k not in ("factory", "iter_chunk_size")}
        self._arguments = tuple(positional), {**theirs, "timeout": 0.2}
        line = SQLiteLine(choose)
        named["factory"] = line.factory(named.get("factory", sqlite3.Connection))
        return line

    def write(self, change: Change) -> None:
        positional, named = self._arguments
        engine = create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(*positional, **named), poolclass=NullPool
        )
        with Session(engine) as session:
            apply(session, change)


class _Server:
    """A server that is reached over a socket."""

    def __init__(
        self, url: URL, driver: str, protocol: Callable[[], Protocol], *, is_async: bool
    ) -> None:
        self._url, self._driver, self._protocol = url, driver, protocol
        self._is_async = is_async
        self._named: dict[str, Any] = {}

    def lead(self, choose: Choose, positional: Any, named: dict[str, Any]) -> Line:
        self._named = dict(named)
        connect = self._connect(named)
        line = Line(connect, self._protocol(), choose)
        for key in ("unix_socket", "hostaddr"):
            named.pop(key, None)
        named |= {"host": "127.0.0.1", "port": line.port, **_READABLE[self._driver]}
        return line

    def _connect(self, named: Mapping[str, Any]) -> Callable[[], socket.socket]:
        """Return a function that connects to the server these arguments name."""
        self._refuse_tls(named)
        postgresql = self._url.get_backend_name() == "postgresql"
        host = _single(named.get("hostaddr") or named.get("host"))
        port = int(_single(named.get("port")) or (5432 if postgresql else 3306))
        path = named.get("unix_socket")
        if postgresql and host.startswith("/"):
            path = f"{host}/.s.PGSQL.{port}"
        if path is not None:
            return lambda: _unix(str(path))
        if not host or "," in host:
            raise ConfigurationError(
                "Faults() needs an engine whose URL names one host, to lead its connections there."
            )
        return lambda: socket.create_connection((host, port))

    def _refuse_tls(self, named: Mapping[str, Any]) -> None:
        for key, value in named.items():
            known = value in _NO_TLS if isinstance(value, (str, bool, type(None))) else False
            if key.startswith("ssl") and key != "ssl_disabled" and not known:
                raise ConfigurationError(
                    f"Faults() got an engine that demands TLS ({key}=), and cannot read its"
                    " connections. Leave that out for the tests."
                )

    def write(self, change: Change) -> None:
        if self._is_async:
            asyncio.run(self._write_async(change))
            return
        engine = create_engine(self._url, poolclass=NullPool)
        event.listen(engine, "do_connect", self._connect_directly)
        with Session(engine) as session:
            apply(session, change)

    async def _write_async(self, change: Change) -> None:
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        engine = create_async_engine(self._url, poolclass=NullPool)
        event.listen(engine.sync_engine, "do_connect", self._connect_directly)
        async with AsyncSession(engine) as session:
            await session.run_sync(apply, change)

    def _connect_directly(
        self, dialect: Any, record: Any, positional: Any, named: dict[str, Any]
    ) -> None:
        named.clear()
        named.update(self._named)


def _single(value: Any) -> str:
    """Return the one value of a list, or the value."""
    if isinstance(value, (list, tuple)):
        value = value[0] if len(value) == 1 else ",".join(map(str, value))
    return "" if value is None else str(value)


def _unix(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
    return made
