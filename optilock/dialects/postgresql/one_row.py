"""Statements for one row of PostgreSQL."""

from __future__ import annotations

from sqlalchemy.dialects.postgresql import insert

from optilock.dialects.one_row import OnConflict


class PostgreSQLOneRow(OnConflict):
    insert = staticmethod(insert)
