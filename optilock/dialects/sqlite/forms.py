"""The form of SQLite for many rows."""

from __future__ import annotations

import sqlalchemy as sa

from optilock.conditions.write import Write
from optilock.dialects.forms import Form, Forms
from optilock.dialects.sqlite.rows import RowByRow


class SQLiteForms(Forms):
    def form(self, writes: list[Write], dialect: sa.Dialect, *, locked: bool = False) -> Form:
        """Behind a thread (aiosqlite) each row would be a hop: there lock and look is cheaper."""
        return super().form(writes, dialect, locked=locked) if dialect.is_async else RowByRow()
