"""Sending rows of one table: exactly the rows that missed come back.

One row is the native statement and its count; more go out in the form that the database does best
(``optilock/dialects``): one statement for all of them, or lock, look and ``executemany``.

Never is a miss concluded from "which rows do not carry our new number": another writer's counter
may carry the same one. A condition that is true again when the row is looked at under a lock
counts as true: the row is sent once more. Row counts are the answer to every guarded write, so a
driver that has none is refused.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Dialect

from optilock.conditions.write import Lost, Write
from optilock.dialects import database_of
from optilock.dialects.rows import LockAndLook, looked_at, native
from optilock.errors import ConfigurationError
from optilock.session.connections import binds_of_sessions

__all__ = ["judged", "require_row_counts", "require_row_counts_of", "send"]


def send(connection: Connection, writes: list[Write]) -> list[Lost]:
    """Write the rows of one table; return the ones that were changed or gone."""
    missed = _sent(connection, writes)
    return [lost for lost in judged(connection, missed) if not _written_again(connection, lost)]


def _sent(connection: Connection, writes: list[Write]) -> list[Write]:
    database, dialect = database_of(connection.dialect), connection.dialect
    if not writes[0].shape.exact:
        return LockAndLook(database).send(connection, writes)
    if len(writes) > 1:
        return database.form(writes, dialect).send(connection, writes)
    result = native(connection, writes[0].shape.statement, writes[0].params)
    return [] if result.rowcount else writes


def judged(connection: Connection, missed: list[Write]) -> list[Lost]:
    """The rows that missed, each with the conditions that are not true of it.

    Where only a version is compared, what is stored tells as much. Otherwise the rows are locked
    and looked at: what somebody had taken away may have come back since the write.
    """
    if not missed or not missed[0].shape.demanded:
        return [Lost(write) for write in missed]
    stored = looked_at(database_of(connection.dialect), connection, missed)
    found = []
    for write in missed:
        seen = stored.get(write.key())
        failed = () if seen is None else write.failed(seen)
        found.append(Lost(write, failed, stands=seen is not None and not failed))
    return found


def _written_again(connection: Connection, lost: Lost) -> bool:
    if not lost.stands:
        return False
    return bool(native(connection, lost.write.shape.statement, lost.write.params).rowcount)


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
