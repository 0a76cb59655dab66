"""Transactions that an error has ended, and whose COMMIT would say nothing of it.

PostgreSQL refuses every statement after an error, until the transaction or a savepoint is rolled
back. It does not refuse COMMIT: that is answered with ROLLBACK, and no error. A program that
swallows the error and commits would believe that its work is stored. So from the first error of a
transaction on its COMMIT is looked at, whoever sends it, and a failed transaction is rolled back
with an error. A transaction without an error pays nothing.

An error inside of a savepoint is not looked at: RELEASE of a failed one is refused by the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import event
from sqlalchemy.engine import Connection

from optilock.errors import OptilockError

if TYPE_CHECKING:
    from optilock.dialects.base import Database

__all__ = ["look_at_commit"]

#: An attribute of a connection: the transaction in which there was an error, and the first error.
_KEY = "_optilock_failed"


def look_at_commit(connection: Connection, database: Database, error: BaseException) -> None:
    """From here on, refuse COMMIT of the connection's transaction if ``error`` has ended it."""
    transaction, told = connection.get_transaction(), connection.__dict__.get(_KEY)
    if transaction is None or (told is not None and told[0] is transaction):
        return
    connection.__dict__[_KEY] = transaction, error
    if told is not None:
        return  # an earlier transaction of the connection had an error

    @event.listens_for(connection, "commit")
    def commit(connection: Connection) -> None:
        transaction, error = connection.__dict__[_KEY]
        if transaction is not connection.get_transaction():
            return
        if database.transaction_failed(connection):
            connection.dialect.do_rollback(connection.connection)  # as COMMIT would have done
            raise OptilockError(_FAILED) from error


_FAILED = (
    "this transaction cannot be committed: the database ended it with an error at an earlier"
    " statement, and that error was caught. The database would have answered COMMIT by rolling"
    " back, without a word. Nothing is stored. Let the error out and roll back, or try the"
    " statement in a savepoint (session.begin_nested()), which can be undone alone."
)
