"""Tables of SQLite as they are read and changed."""

from __future__ import annotations

import os
import re

import sqlalchemy as sa

from optilock.dialects.tables import Tables
from optilock.dialects.values import quote_name

#: An option of the table, behind its columns.
_WITHOUT_ROWID = re.compile(r"\)[^)]*\bWITHOUT\s+ROWID\b[^)]*$", re.IGNORECASE)


class SQLiteTables(Tables):
    def complete(self, connection: sa.Connection, table: sa.Table) -> None:
        """``WITHOUT ROWID``, which SQLAlchemy reflects from 2.0.53 on."""
        master = f"{quote_name(connection.dialect, table.schema or 'main')}.sqlite_master"
        sql = connection.exec_driver_sql(
            f"SELECT sql FROM {master} WHERE type = 'table' AND lower(name) = lower(?)",
            (table.name,),
        ).scalar()
        if sql and _WITHOUT_ROWID.search(sql):
            table.dialect_options["sqlite"]["with_rowid"] = False

    def missing_file(self, url: sa.URL) -> str | None:
        path = url.database
        if not path or path.startswith((":memory:", "file:")) or os.path.isfile(path):
            return None
        return path
