"""Sending the held rows of one table: exactly the rows that missed come back.

One row is the native statement and its count; more go out in the form that the database does best
(``optilock/dialects``): one statement for all of them, or lock, look and ``executemany``.

Never is a miss concluded from "which rows do not carry our new number": another writer's counter
may carry the same one.
"""

from __future__ import annotations

from sqlalchemy.engine import Connection

from optilock.conditions.write import Write
from optilock.dialects import database_of
from optilock.dialects.rows import native

__all__ = ["send"]


def send(connection: Connection, writes: list[Write]) -> list[Write]:
    """Write the rows of one table; return the ones that were changed or gone."""
    if len(writes) == 1:
        return _one(connection, writes[0])
    dialect = connection.dialect
    return database_of(dialect).form(writes, dialect).send(connection, writes)


def _one(connection: Connection, write: Write) -> list[Write]:
    result = native(connection, write.shape.statement, write.params)
    return [] if result.rowcount else [write]
