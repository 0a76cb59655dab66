"""The form of PostgreSQL for many rows, and statements that raise an error on a miss."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect, Select, literal_column

from optilock.conditions.write import Statement, Write
from optilock.dialects.forms import Form, Forms
from optilock.dialects.postgresql.rows import PLAIN, all_or_error, one_or_error, set_form
from optilock.dialects.rows import Locks


class PostgreSQLForms(Forms):
    def form(self, writes: list[Write], dialect: Dialect, *, locked: bool = False) -> Form:
        form = set_form(self.database, writes, dialect, locked=locked)
        return super().form(writes, dialect, locked=locked) if form is None else form

    def found_or_error(self, query: Select[Any], rows: int) -> Any:
        found = query.cte("optilock_found").prefix_with("MATERIALIZED")
        return all_or_error(found, literal_column(str(rows)))


def raising_statement(database: Locks, writes: list[Write], dialect: Dialect) -> Statement | None:
    """One statement that writes all of these rows of a table, or raises an error.

    ``None`` where there is none.
    """
    if len(writes) == 1 and writes[0].shape.demanded in PLAIN:
        return one_or_error(writes[0])
    form = set_form(database, writes, dialect)
    places = None if form is None else form.places(writes)
    return None if form is None or places is None else (form.or_error, places)
