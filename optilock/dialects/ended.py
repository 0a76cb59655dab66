"""Transactions that the database ended at a statement while the program may think they go on.

MariaDB answers some errors by rolling back the *whole* transaction and then takes the next
statement as the first of a new one. A program that swallows such an error would commit the second
half of its work. So SQLAlchemy is told that the transaction is over: it refuses every further
statement and COMMIT on that connection until the transaction is rolled back. The error is
remembered for as long, and a unit of work asks for it before COMMIT.

The savepoints of the transaction are gone as well. Rolling back to one would fail with an error of
its own, which hides the cause (1305, "SAVEPOINT does not exist"). So inside a savepoint SQLAlchemy
is told that the connection is lost: it sends nothing more on it, and throws it away.

So it is where PostgreSQL fails at RELEASE: SQLAlchemy takes that savepoint for gone and never rolls
back to it, and PostgreSQL would answer the COMMIT of the transaction around it with ROLLBACK, and
no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect, ExceptionContext

from optilock.dialects.failed import look_at_commit
from optilock.undocumented import demand_rollback

if TYPE_CHECKING:
    from optilock.dialects.base import Database

__all__ = ["ended_by", "watch_errors"]

#: An attribute of a connection that is watched: the transaction that was ended, and the error.
_KEY = "_optilock_ended"
_watched: WeakSet[Dialect] = WeakSet()


def watch_errors(connection: Connection, database: Database) -> None:
    """From here on, remember on ``connection`` the error that ends its transaction."""
    if not hasattr(connection, _KEY):
        setattr(connection, _KEY, (None, None))
    dialect = connection.dialect
    if dialect in _watched:
        return
    _watched.add(dialect)

    @event.listens_for(connection.engine, "handle_error")
    def handle_error(context: ExceptionContext) -> None:
        given = context.connection
        if given is None or _KEY not in given.__dict__ or context.is_disconnect:
            return
        outside = context.statement is not None and not given.in_nested_transaction()
        if database.commits_in_silence and outside:
            look_at_commit(given, database, context.original_exception)
        at_release = database.release_may_fail_all and _is_release(context.statement)
        if not (at_release or database.ends_transaction(context.original_exception)):
            return
        if ended_by(given) is None:
            ended = given.get_transaction(), context.original_exception
            setattr(given, _KEY, ended)
        if given.in_nested_transaction():
            context.is_disconnect = True
            context.invalidate_pool_on_disconnect = False  # the others are as good as before
        elif outside:  # COMMIT has ended it anyway
            demand_rollback(given)


def _is_release(statement: str | None) -> bool:
    return statement is not None and statement.startswith("RELEASE SAVEPOINT")


def ended_by(connection: Connection) -> BaseException | None:
    """The error with which the database ended the transaction of ``connection`` early."""
    transaction, error = getattr(connection, _KEY, (None, None))
    same = transaction is not None and transaction is connection.get_transaction()
    return error if same else None
