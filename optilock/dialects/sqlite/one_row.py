"""Statements for one row of SQLite."""

from __future__ import annotations

from sqlalchemy.dialects.sqlite import insert

from optilock.dialects.one_row import OnConflict


class SQLiteOneRow(OnConflict):
    insert = staticmethod(insert)
    returns_before_triggers = True
