"""PostgreSQL servers of this machine that are stopped, started, copied and promoted by a test.

::

    with primary() as first, standby_of(first) as second:
        first.crash()
        second.promote()

Each is the server of :func:`optilock_apps.servers.postgresql`, in a folder of its own on a free
port of the loopback interface, and is stopped by its own ``pg_ctl`` at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from optilock_apps import servers

__all__ = ["Node", "primary", "standby_of", "url_of"]

_USERS = ("nobody", "postgres", "daemon")


@dataclass
class Node:
    """One server."""

    user: servers.Account
    programs: Path
    settings: Mapping[str, str]
    port: int = field(default_factory=servers.free_port)

    @property
    def data(self) -> Path:
        return self.user.folder / "data"

    @property
    def url(self) -> str:
        return url_of(self)

    def start(self) -> None:
        """Start it, and wait until it answers; a standby, until it can be read."""
        options = servers._options(self.user.folder, self.port, self.settings)
        self._control("-w", "-l", self.user.folder / "server.log", "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """By ``immediate`` it crashes: nobody is told, and what is running is lost."""
        if self.is_running:
            self._control("-w", "-m", mode, "stop")

    def close_to_newcomers(self) -> None:
        """Stop when the last connection ends (``smart``), and do not wait for that."""
        self._control("-W", "-m", "smart", "stop")

    @property
    def is_running(self) -> bool:
        return (self.data / "postmaster.pid").exists()

    def crash(self) -> None:
        self.stop("immediate")

    def promote(self) -> None:
        self._control("-w", "promote")

    def ask(self, *statements: str) -> Any:
        """The first value of the answer to the last of these."""
        found = None
        with psycopg.connect(host="127.0.0.1", port=self.port, user="postgres") as connection:
            connection.autocommit = True
            for statement in statements:
                cursor = connection.execute(statement)
                found = cursor.fetchone() if cursor.description else None
        return found and found[0]

    def _control(self, *arguments: str | Path) -> None:
        self.user.run(self.programs / "pg_ctl", "-D", self.data, *arguments)


def url_of(*nodes: Node, driver: str = "psycopg", **query: str) -> str:
    """The URL of these servers; of several, the first that suits ``query`` is taken."""
    address = f"postgresql+{driver}://postgres@/postgres"
    places = [f"host=127.0.0.1:{node.port}" for node in nodes]
    return f"{address}?{'&'.join([*places, *(f'{k}={v}' for k, v in query.items())])}"


@contextmanager
def primary(**settings: str) -> Iterator[Node]:
    """A server without data."""
    with _node(settings) as node:
        node.user.run(node.programs / "initdb", "-D", node.data, *servers._INITDB)
        node.start()
        yield node


@contextmanager
def standby_of(other: Node, name: str = "standby", **settings: str) -> Iterator[Node]:
    """A copy of ``other`` that follows it."""
    with _node(settings) as node:
        source = f"host=127.0.0.1 port={other.port} user=postgres application_name={name}"
        how = ("-R", "-X", "stream", "-c", "fast", "--no-sync")
        node.user.run(node.programs / "pg_basebackup", "-d", source, "-D", node.data, *how)
        node.start()
        yield node


@contextmanager
def _node(settings: Mapping[str, str]) -> Iterator[Node]:
    with servers.account_for("pg", *_USERS) as user:
        node = Node(user, servers._programs(servers._package(), user), settings)
        try:
            yield node
        finally:
            node.stop("immediate")
