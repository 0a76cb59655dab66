"""Statements for one row by its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa

from optilock.dialects.feature import Feature
from optilock.errors import ConfigurationError

#: The columns of a new row -> what an upsert makes of the row that is there: column -> value.
Changes = Callable[[Any], Mapping[str, Any]]


class OneRow(Feature):
    """Statements that insert, change or answer for one row."""

    def insert_unless(self, table: sa.Table) -> sa.Insert | None:
        """An INSERT that writes nothing if a row with the same key exists.

        ``None``: there is no such thing, and a plain INSERT is an error then.
        """
        return None

    def insert_if_absent(self, table: sa.Table) -> sa.Insert | None:
        """An INSERT that leaves a row with the same key alone, of a table without other rules."""
        return self.insert_unless(table)

    def upsert(self, table: sa.Table, changes: Changes) -> sa.Insert:
        """An INSERT that makes ``changes`` to the row if there is one with the same key.

        Raises:
            ConfigurationError: none is known.
        """
        raise ConfigurationError(
            f"An upsert of {table.description} is refused: optilock knows of no statement of this"
            " database that inserts a row, or else changes the one with the same key. Use insert(),"
            " and where it raises AlreadyExists, replace() or merge(). Nothing was sent."
        )

    #: Whether an upsert changes the row with the same value in any unique column.
    upserts_by_any_key: bool = False

    def telling(self, value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any] | None:
        """Return SQL of an integer that the answer to an UPDATE carries (``lastrowid``).

        ``None``: there is none. It is not used where there is RETURNING.
        """
        return None

    #: Whether RETURNING shows the row from before an AFTER trigger changed it.
    returns_before_triggers: bool = False


class OnConflict(OneRow):
    """With the ``ON CONFLICT`` of PostgreSQL and SQLite."""

    insert: Callable[[sa.Table], Any]

    def insert_unless(self, table: sa.Table) -> sa.Insert:
        made: sa.Insert = self.insert(table).on_conflict_do_nothing(
            index_elements=[*table.primary_key]
        )
        return made

    def upsert(self, table: sa.Table, changes: Changes) -> sa.Insert:
        insert = self.insert(table)
        made: sa.Insert = insert.on_conflict_do_update(
            index_elements=[*table.primary_key], set_=changes(insert.excluded)
        )
        return made
