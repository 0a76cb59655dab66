"""PgBouncer in transaction mode before a PostgreSQL server, both private and on this machine.

::

    with pooled(size=1) as pooler:
        engine = create_engine(pooler.url(), connect_args={"prepare_threshold": None})
        before = pooler.states()         # of its connections to the server
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from optilock_apps import servers

from checks.deployments import find
from checks.deployments.postgresql import Node, primary
from optilock.errors import OptilockError

__all__ = ["SETTINGS", "Pooler", "pooled"]

#: What an engine has to be told, driver by driver.
SETTINGS: dict[str, dict[str, Any]] = {
    "psycopg": {"connect_args": {"prepare_threshold": None}},
    "asyncpg": {"connect_args": {"statement_cache_size": 0}},
}


@dataclass
class Pooler:
    """A pooler, and the server behind it."""

    port: int
    size: int
    server: Node

    def url(self, driver: str = "psycopg") -> str:
        return f"postgresql+{driver}://postgres@127.0.0.1:{self.port}/postgres"

    def states(self) -> list[dict[str, Any]]:
        """What each of its connections to the server keeps beyond transactions."""
        with ExitStack() as stack:
            clients = [
                stack.enter_context(
                    psycopg.connect(
                        host="127.0.0.1", port=self.port, user="postgres", prepare_threshold=None
                    )
                )
                for _ in range(self.size)
            ]
            # A transaction each, all at once, so that none of them is seen twice.
            pids = [client.execute("SELECT pg_backend_pid()").fetchall() for client in clients]
            assert len({str(pid) for pid in pids}) == self.size
            return [
                {what: client.execute(asked).fetchall() for what, asked in _KEPT.items()}
                for client in clients
            ]


#: Without what a client tells the pooler when it connects, and what a transaction has of its own.
_KEPT = {
    "settings": "SELECT name, setting FROM pg_settings WHERE source IN ('session', 'client')"
    " AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone',"
    " 'standard_conforming_strings', 'transaction_isolation', 'transaction_read_only',"
    " 'transaction_deferrable') ORDER BY name",
    "settings of ours": "SELECT coalesce(current_setting('optilock.no_bump', true), '')",
    "prepared": "SELECT statement FROM pg_prepared_statements",
    "channels": "SELECT pg_listening_channels()",
    "temporary": "SELECT relname FROM pg_class WHERE relpersistence = 't'",
    "cursors": "SELECT name FROM pg_cursors WHERE name <> ''",
    "locks": "SELECT objid FROM pg_locks WHERE locktype = 'advisory'",
}


@contextmanager
def pooled(size: int = 2, **settings: str) -> Iterator[Pooler]:
    """``size`` connections to the server, for as many clients as there are."""
    with primary(**settings) as node, servers.account_for("pgb", "nobody", "daemon") as user:
        port = servers.free_port()
        (user.folder / "users.txt").write_text('"postgres" ""\n')
        (user.folder / "pgbouncer.ini").write_text(
            "[databases]\n"
            f"postgres = host=127.0.0.1 port={node.port} dbname=postgres user=postgres\n"
            "[pgbouncer]\n"
            "listen_addr = 127.0.0.1\n"
            f"listen_port = {port}\n"
            "unix_socket_dir =\n"
            "auth_type = trust\n"
            f"auth_file = {user.folder}/users.txt\n"
            "admin_users = postgres\n"
            "pool_mode = transaction\n"
            f"default_pool_size = {size}\n"
            "max_client_conn = 200\n"
            "server_login_retry = 0.2\n"
            "ignore_startup_parameters = extra_float_digits,options\n"
            f"logfile = {user.folder}/server.log\n"
            f"pidfile = {user.folder}/pid\n"  # by which it is ended if we are killed
        )
        program = find("pgbouncer")
        assert program is not None
        process = user.start(program, user.folder / "pgbouncer.ini")
        try:
            _wait(process, port, user)
            yield Pooler(port, size, node)
        finally:
            process.terminate()
            process.wait(30)


def _wait(process: subprocess.Popen[bytes], port: int, user: servers.Account) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise OptilockError("pgbouncer does not answer:\n" + user.last_lines("programs.log"))
