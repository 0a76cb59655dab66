"""Locks of rows on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Select, Table, func, or_, select

from optilock.dialects.locks import RowLocks
from optilock.dialects.values import quote_table
from optilock.dialects.waits import Wait


class PostgreSQLRowLocks(RowLocks):
    #: Policies FOR UPDATE hold for SELECT … FOR UPDATE and FOR SHARE, too
    #: (https://www.postgresql.org/docs/current/sql-createpolicy.html).
    hides_from_locks = True

    def lock_within(self, query: Select[Any], table: Table, wait: Wait) -> Select[Any]:
        nowait = wait.milliseconds == 0 and not wait.skip
        return query.with_for_update(of=table, key_share=True, nowait=nowait, skip_locked=wait.skip)

    def may_hide_rows(self, connection: Connection, tables: Iterable[Any]) -> bool:
        translated = connection.get_execution_options().get("schema_translate_map") or {}
        names = {
            quote_table(connection.dialect, one.name, translated.get(one.schema, one.schema))
            for one in tables
            if isinstance(one, Table)
        }
        asked = [func.row_security_active(name) for name in sorted(names)]
        return bool(asked) and bool(connection.scalar(select(or_(*asked))))
