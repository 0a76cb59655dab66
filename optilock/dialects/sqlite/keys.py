"""Rows by their keys on SQLite."""

from __future__ import annotations

from optilock.dialects.keys import RowKeys


class SQLiteRowKeys(RowKeys):
    #: SQLITE_MAX_VARIABLE_NUMBER is 999 in old builds (https://sqlite.org/limits.html).
    max_parameters = 900
