"""How long the lock of SQLite is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Update

from optilock.dialects.connections import send_afterwards
from optilock.dialects.waits import KeyValues, Wait, Waits


class SQLiteWaits(Waits):
    @contextmanager
    def waiting(self, connection: Connection, wait: Wait) -> Iterator[None]:
        """``busy_timeout``, which belongs to the connection (https://sqlite.org/pragma.html)."""
        if wait.milliseconds is None:
            yield
            return
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait.milliseconds}")
        with send_afterwards(connection.exec_driver_sql, f"PRAGMA busy_timeout = {before}"):
            yield

    def pass_over_lock(self, connection: Connection, update: Update, keys: KeyValues) -> Update:
        return update  # one lock for all: see waiting
