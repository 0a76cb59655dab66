"""Locks of rows on MariaDB."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import Connection, Select, Table

from optilock.dialects.locks import RowLocks
from optilock.dialects.mariadb.rows import BY_PRIMARY, has_primary
from optilock.dialects.waits import Wait


def _through_key(query: Select[Any], table: Table) -> Select[Any]:
    return query.with_hint(table, BY_PRIMARY) if has_primary(table) else query


class MariaDBRowLocks(RowLocks):
    def autocommits(self, connection: Connection) -> bool:
        """PyMySQL, mysqlclient and asyncmy know it from the server's last answer."""
        ask = getattr(connection.connection.dbapi_connection, "get_autocommit", None)
        if ask is None:
            return super().autocommits(connection)
        return bool(ask())

    def lock(self, query: Select[Any], table: Table, *, deleting: bool) -> Select[Any]:
        """FOR UPDATE through the primary key: a scan of the table would lock every row."""
        return _through_key(query, table).with_for_update()

    def lock_within(self, query: Select[Any], table: Table, wait: Wait) -> Select[Any]:
        """NOWAIT, SKIP LOCKED, or ``WAIT n``: MariaDB counts whole seconds.

        (https://mariadb.com/kb/en/wait-and-nowait/; SKIP LOCKED since 10.6)
        """
        locked = self.lock(query, table, deleting=False)
        if wait.usual:
            return locked
        if wait.skip or not wait.seconds:
            return locked.with_for_update(nowait=not wait.skip, skip_locked=wait.skip)
        return locked.suffix_with(f"WAIT {math.ceil(wait.seconds)}")

    def share(self, query: Select[Any], table: Table, *, briefly: bool = False) -> Select[Any]:
        """LOCK IN SHARE MODE, through the primary key as well; ``briefly`` with NOWAIT.

        (https://mariadb.com/kb/en/wait-and-nowait/: seconds are the shortest wait)
        """
        return _through_key(query, table).with_for_update(read=True, nowait=briefly)
