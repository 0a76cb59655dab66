"""How long a lock of PostgreSQL is waited for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Select,
    Update,
    func,
    literal_column,
    select,
)

from optilock.dialects.postgresql.rows import BOUNDED, BOUNDED_LOCKS, BRIEFLY
from optilock.dialects.waits import KeyValues, Wait, Waits


def _lock_timeout(connection: Connection, value: str) -> str:
    """Set it until COMMIT; return what it was."""
    name = "lock_timeout"
    before = type(connection).scalar(connection, select(func.current_setting(name)))
    type(connection).execute(connection, select(func.set_config(name, value, True)))
    return str(before)


class PostgreSQLWaits(Waits):
    @contextmanager
    def waiting(self, connection: Connection, wait: Wait) -> Iterator[None]:
        """``lock_timeout``, for this transaction alone (a pooler may give the next one away).

        An error leaves a transaction that can only be rolled back, and the setting with it.
        """
        if not wait.milliseconds:
            yield
            return
        before = _lock_timeout(connection, f"{wait.milliseconds}ms")
        yield
        _lock_timeout(connection, before)

    def pass_over_lock(self, connection: Connection, update: Update, keys: KeyValues) -> Update:
        """SKIP LOCKED is for queries: one of the same row, which is asked once, ahead of it."""
        there = update.table.alias("unlocked")
        found: Select[Any] = select(literal_column("1")).where(
            *(there.c[column.key] == value for column, value in keys.items())
        )
        found = found.with_for_update(key_share=True, skip_locked=True)
        return update.where(found.correlate(None).exists())

    bounds_waits = BOUNDED

    def bound_locks(self, dialect: Dialect) -> ColumnElement[bool]:
        return BOUNDED_LOCKS

    brief_waits = BRIEFLY
