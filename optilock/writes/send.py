"""Sending rows of one table: exactly the rows that missed come back.

One row is the native statement and its count; more go out in the form that the database does best
(``optilock/dialects``): one statement for all of them, or lock, look and ``executemany``.

Never is a miss concluded from "which rows do not carry our new number": another writer's counter
may carry the same one. Row counts are the answer to every guarded write, so a
driver that has none is refused.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Dialect

from optilock.conditions.write import Lost, Write
from optilock.dialects import database_of
from optilock.dialects.rows import LockAndLook, native
from optilock.errors import ConfigurationError
from optilock.session.connections import binds_of_sessions

__all__ = ["require_row_counts", "require_row_counts_of", "send", "send_again"]


def send(connection: Connection, writes: list[Write]) -> list[Write]:
    """Write the rows of one table; return the ones that were changed or gone."""
    database, dialect = database_of(connection.dialect), connection.dialect
    shape = writes[0].shape
    if not shape.exact or (shape.alone and len(writes) > 1):
        return LockAndLook(database).send(connection, writes)
    if len(writes) > 1:
        return database.form(writes, dialect).send(connection, writes)
    result = native(connection, shape.statement, writes[0].params)
    return [] if result.rowcount else writes


def send_again(connection: Connection, lost: list[Lost]) -> list[Lost]:
    """Write the rows of which all conditions are true again; return the others, and what misses.

    Somebody had moved such a row, and has put it back since the write, before it was locked.
    """
    return [one for one in lost if not one.stands or send(connection, [one.write])]


def require_row_counts(dialect: Dialect) -> None:
    """Raise ``ConfigurationError`` when the driver cannot tell how many rows were matched."""
    if not dialect.supports_sane_rowcount:
        raise ConfigurationError(
            f"The driver {dialect.driver!r} cannot tell how many rows a statement matched, so a"
            " lost update could not be seen. Use a driver that counts rows (psycopg, asyncpg,"
            " sqlite3, pymysql); nothing was written."
        )


def require_row_counts_of(sessions: Any) -> None:
    """The same for the engines of a session factory, or an engine, as far as known already."""
    for bind in binds_of_sessions(sessions):
        require_row_counts(bind.dialect)
