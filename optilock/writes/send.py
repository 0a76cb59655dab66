"""Sending the held rows of one table: exactly the rows that missed come back.

One row is the native statement and its count; more go out in the form that the database does best
(``optilock/dialects``): one statement for all of them, or lock, look and ``executemany``.

Never is a miss concluded from "which rows do not carry our new number": another writer's counter
may carry the same one. Row counts are the answer to every guarded write, so a driver that has none
is refused.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Connection, Dialect

from optilock.conditions.write import Write
from optilock.dialects import database_of
from optilock.dialects.rows import native
from optilock.errors import ConfigurationError
from optilock.session.connections import binds_of_sessions

__all__ = ["require_row_counts", "require_row_counts_of", "send"]


def send(connection: Connection, writes: list[Write]) -> list[Write]:
    """Write the rows of one table; return the ones that were changed or gone."""
    if len(writes) == 1:
        return _one(connection, writes[0])
    dialect = connection.dialect
    return database_of(dialect).form(writes, dialect).send(connection, writes)


def _one(connection: Connection, write: Write) -> list[Write]:
    result = native(connection, write.shape.statement, write.params)
    return [] if result.rowcount else [write]


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
