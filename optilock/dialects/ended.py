"""Transactions that the database ended at a statement while the program may think they go on.

MariaDB answers some errors by rolling back the *whole* transaction and then takes the next
statement as the first of a new one. A program that swallows such an error would commit the second
half of its work. So the error is remembered on the connection until its next transaction, and a
unit of work asks before COMMIT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect, ExceptionContext

if TYPE_CHECKING:
    from optilock.dialects.base import Database

__all__ = ["ended_by", "watch_errors"]

_KEY = "optilock.ended"
_watched: WeakSet[Dialect] = WeakSet()


def watch_errors(connection: Connection, database: Database) -> None:
    """From here on, remember on ``connection`` the error that ends its transaction."""
    connection.info.pop(_KEY, None)
    dialect = connection.dialect
    if dialect in _watched:
        return
    _watched.add(dialect)

    @event.listens_for(connection.engine, "handle_error")
    def handle_error(context: ExceptionContext) -> None:
        if context.connection is None or context.is_disconnect:
            return
        if database.ends_transaction(context.original_exception):
            context.connection.info.setdefault(_KEY, context.original_exception)


def ended_by(connection: Connection) -> BaseException | None:
    """The error with which the database ended the transaction of ``connection`` early."""
    error: BaseException | None = connection.info.get(_KEY)
    return error
