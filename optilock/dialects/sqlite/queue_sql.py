"""SQLite's statements of a queue.

SQLite has one writer at a time, so nothing is locked and nothing skipped. An UPDATE finds its
rows after it has the write lock: two receivers never see the same messages, and the second
receiver finds the next ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from inspect import isawaitable
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, LargeBinary, Select, Table, cast
from sqlalchemy.dialects.sqlite import insert

from optilock._undocumented.statements import listen_on
from optilock.dialects.connections import send_afterwards
from optilock.dialects.queue_sql import HandlerConnection, Messages
from optilock.errors import OptilockError


class SQLiteMessages(Messages):
    begin = "BEGIN IMMEDIATE"

    @contextmanager
    def atomic_within(self, connection: Connection, length: int) -> Iterator[None]:
        """BEGIN waits for the lock; the limit is one of the connection, and is put back."""
        before = int(connection.exec_driver_sql("PRAGMA busy_timeout").scalar() or 0)
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {min(length, before)}")
        back = f"PRAGMA busy_timeout = {before}"
        with send_afterwards(connection.exec_driver_sql, back), self.atomic(connection):
            yield

    def stored_text(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Bytes: a column may have any type of value, and a text that is not UTF-8."""
        return cast(column, LargeBinary()).label(None)

    stored_time = stored_text

    def skip_locked(self, query: Select[Any], table: Table) -> Select[Any]:
        return query

    skip_locked_all = locked = skip_locked

    def insert_unless(self, table: Table) -> Any:
        return insert(table).on_conflict_do_nothing()

    def hold_group(self, connection: Connection, key: str, delay: int) -> None:
        connection.execute(self.insert_unless(self.g).values(self._group(key, delay)))

    def end_handler(
        self,
        connection: Connection,
        handler: HandlerConnection | None,
        number: int,
        receipt: UUID | None,
    ) -> None:
        """Refuse what the handler sends from now on, stop its statement, and roll it back."""
        if handler is None or handler.connection.closed:
            return
        for name in ("before_cursor_execute", "commit"):
            listen_on(handler.connection, name, _refuse)
        given: Any = handler.connection.connection
        interrupted = given.driver_connection.interrupt()
        if isawaitable(interrupted):  # aiosqlite
            from sqlalchemy.util.concurrency import await_only

            await_only(interrupted)
        given.dbapi_connection.rollback()


def _refuse(*_: Any, **__: Any) -> None:
    raise OptilockError(
        "This transaction was given up and rolled back: its handler has not returned within the"
        " timeout of its worker, so its message is delivered again. Nothing more is stored here."
    )
