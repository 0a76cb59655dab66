"""Locks of rows on SQLite."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from optilock.dialects.locks import RowLocks
from optilock.dialects.sqlite.isolation import in_transaction
from optilock.dialects.waits import Wait


class SQLiteRowLocks(RowLocks):
    one_lock = True

    def locks_rows(self, dialect: sa.Dialect) -> bool:
        """All of them: see :meth:`begin_writing`."""
        return True

    def autocommits(self, connection: sa.Connection) -> bool:
        """Return whether the connection is in autocommit mode without a BEGIN."""
        driver = connection.connection.dbapi_connection
        off = getattr(driver, "isolation_level", "") is None
        off = off or getattr(driver, "autocommit", None) is True
        return off and not in_transaction(connection)

    def begin_writing(self, connection: sa.Connection, table: sa.Table) -> None:
        """Take the write lock with a DELETE that matches nothing: no other writer from here on.

        The sqlite3 module begins a transaction only with the first write; a SELECT before it
        would hold nothing.
        """
        self.require(connection)
        statement = table.delete().where(sa.false())
        type(connection).execute(connection, statement)

    def lock(self, query: sa.Select[Any], table: sa.Table, *, deleting: bool) -> sa.Select[Any]:
        return query

    def lock_within(self, query: sa.Select[Any], table: sa.Table, wait: Wait) -> sa.Select[Any]:
        return query  # the one lock is taken before: see begin_writing

    def share(
        self, query: sa.Select[Any], table: sa.Table, *, briefly: bool = False
    ) -> sa.Select[Any]:
        return query
