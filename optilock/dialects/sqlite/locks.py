"""Locks of rows on SQLite."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Dialect, Select, Table

from optilock.dialects.locks import RowLocks
from optilock.dialects.sqlite.isolation import in_transaction
from optilock.dialects.waits import Wait


class SQLiteRowLocks(RowLocks):
    one_lock = True

    def locks_rows(self, dialect: Dialect) -> bool:
        """All of them: see :meth:`begin_writing`."""
        return True

    def autocommits(self, connection: Connection) -> bool:
        """Return whether the connection is in autocommit mode without a BEGIN."""
        driver = connection.connection.dbapi_connection
        off = getattr(driver, "isolation_level", "") is None
        off = off or getattr(driver, "autocommit", None) is True
        return off and not in_transaction(connection)

    def begin_writing(self, connection: Connection, table: Table) -> None:
        """Take the write lock with a DELETE that matches nothing: no other writer from here on.

        The sqlite3 module begins a transaction only with the first write; a SELECT before it
        would hold nothing.
        """
        self.require(connection)
        statement = table.delete().where(sa.false())
        type(connection).execute(connection, statement)

    def lock(self, query: Select[Any], table: Table, *, deleting: bool) -> Select[Any]:
        return query

    def lock_within(self, query: Select[Any], table: Table, wait: Wait) -> Select[Any]:
        return query  # the one lock is taken before: see begin_writing

    def share(self, query: Select[Any], table: Table, *, briefly: bool = False) -> Select[Any]:
        return query
