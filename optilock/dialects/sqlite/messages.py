"""SQLite's statements of a queue: one writer at a time, so nothing is locked, and nothing skipped.

An UPDATE finds its rows when it has the lock for writing. So two receivers never see the same
messages, and whoever comes second finds the next ones.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, Table
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.compiler import compiles

from optilock.dialects.messages import Messages, StatementTime
from optilock.dialects.sqlite.migrations import moment

__all__ = ["SQLiteMessages"]


@compiles(StatementTime, "sqlite")
def _begun(element: StatementTime, compiler: Any, **options: Any) -> str:
    return moment(compiler, "'now'")


class SQLiteMessages(Messages):
    begin = "BEGIN IMMEDIATE"

    def skip_locked(self, query: Select[Any], table: Table) -> Select[Any]:
        return query

    skip_locked_all = locked = skip_locked

    def insert_unless(self, table: Table) -> Any:
        return insert(table).on_conflict_do_nothing()

    def hold_group(self, connection: Connection, key: str, delay: int) -> None:
        connection.execute(self.insert_unless(self.g).values(self._group(key, delay)))
