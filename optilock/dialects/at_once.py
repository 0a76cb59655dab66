"""One row locked, or written, at once: without waiting for another transaction's lock."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, CursorResult, Select, Table, Update
from sqlalchemy.exc import DBAPIError

from optilock.dialects.base import Database
from optilock.dialects.causes import Cause
from optilock.dialects.rows import ask_with_hint, execute_unguarded
from optilock.dialects.waits import KeyValues, Wait


def lock_at_once(
    database: Database, connection: Connection, query: Select[Any], table: Table
) -> bool:
    """Lock the row of ``query`` without waiting; ``False`` if it is locked or missing.

    To be asked on a connection of its own, as the first thing of a transaction.
    """
    wait, locks = Wait(skip=True), database.locks

    def ask() -> Any:
        return connection.execute(locks.lock_within(query, table, wait))

    try:
        with database.waits.waiting(connection, wait):
            locks.begin_writing(connection, table)
            return ask_with_hint(database, table, ask).first() is not None
    except DBAPIError as error:
        if locks.one_lock and database.classify(error) is Cause.LOCK_TIMEOUT:
            return False  # there is no row to skip
        raise


def update_at_once(
    database: Database, connection: Connection, statement: Update, keys: KeyValues, params: Any
) -> CursorResult[Any] | None:
    """Send the UPDATE of one row, without waiting for its lock.

    To be asked on a connection of its own, on which each statement commits itself: one that is
    stopped in between has locked nothing.

    Args:
        keys: the columns of the row's key, and what they are equal to.

    Returns:
        The result, without a row where that is not there, or is passed over as locked; ``None``
        where the server has refused to wait.

    Raises:
        ConfigurationError: optilock does not know the SQL for this database.
    """
    try:
        with database.waits.waiting(connection, Wait(skip=True)):
            sent = database.waits.pass_over_lock(connection, statement, keys)
            result: CursorResult[Any] = execute_unguarded(connection, sent, params)
            return result
    except DBAPIError as error:
        if database.classify(error) is Cause.LOCK_TIMEOUT:
            return None
        raise
