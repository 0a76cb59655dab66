"""SQLite's driver with faults: the connection asks for a fault before each statement.

There is no line to cut, so a lost connection is one that is really closed: the driver's own error
follows ("Cannot operate on a closed database"), and the file's journal rolls back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from optilock.testing.lines import Action, Fault
from optilock.testing.sql_texts import Statement, Transactions

__all__ = ["SQLiteLine"]


class SQLiteLine:
    """One connection to a file."""

    def __init__(self, choose: Callable[[Statement], Fault | None]) -> None:
        self._choose = choose
        self._transactions = Transactions()
        #: The fault of the next statement, chosen by its number.
        self.due: Fault | None = None

    def factory(self, base: type[sqlite3.Connection]) -> type[sqlite3.Connection]:
        """Return a class of connections that ask this line."""
        line = self

        class Cursor(sqlite3.Cursor):
            def execute(self, sql: str, *args: Any) -> Any:
                return line.run(self.connection, sql, super().execute, sql, *args)

            def executemany(self, sql: str, *args: Any) -> Any:
                return line.run(self.connection, sql, super().executemany, sql, *args)

        class Connection(base):  # type: ignore[misc,valid-type]
            def cursor(self, factory: Any = Cursor) -> Any:
                return super().cursor(factory)

            def execute(self, *args: Any) -> Any:
                return self.cursor().execute(*args)

            def executemany(self, *args: Any) -> Any:
                return self.cursor().executemany(*args)

            def commit(self) -> None:
                line.run(self, "COMMIT", super().commit)

            def rollback(self) -> None:
                line.run(self, "ROLLBACK", super().rollback)

        return Connection

    def run(self, connection: Any, sql: str, call: Callable[..., Any], *args: Any) -> Any:
        """Do what the driver was called for, or the fault."""
        fault = self._fault_of(connection, sql)
        if fault is None:
            return call(*args)
        match fault.action:
            case Action.WRITE_FIRST:
                fault.write()
                return call(*args)
            case Action.DEADLOCK:
                fault.happened()
                error = sqlite3.OperationalError("database is locked")
                error.sqlite_errorcode = sqlite3.SQLITE_BUSY
                error.sqlite_errorname = "SQLITE_BUSY"
                raise error
            case Action.LOSE_ANSWER:
                try:
                    call(*args)
                except sqlite3.Error:
                    fault.give_back()
                    raise
        fault.happened()
        connection.close()
        return call(*args)  # raises the driver's own error

    def _fault_of(self, connection: sqlite3.Connection, sql: str) -> Fault | None:
        alone = connection.isolation_level is None and not connection.in_transaction
        statement = self._transactions.statement(sql, alone=alone)
        if self.due is not None:
            fault, self.due = self.due, None
            return fault
        return self._choose(statement)
