"""Statements for one row of MariaDB."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.mysql import insert

from optilock.dialects.one_row import Changes, OneRow


class MariaDBOneRow(OneRow):
    def insert_if_absent(self, table: sa.Table) -> sa.Insert | None:
        """INSERT IGNORE would pass over any other rule of a table as well."""
        return table.insert().prefix_with("IGNORE")

    def telling(self, value: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """The server's answer has what LAST_INSERT_ID() was given, of an UPDATE as well."""
        return sa.func.last_insert_id(value, type_=value.type)

    def upsert(self, table: sa.Table, changes: Changes) -> sa.Insert:
        """ON DUPLICATE KEY UPDATE, which a row of another key is met by as well: it stays as it is.

        (https://mariadb.com/kb/en/insert-on-duplicate-key-update/)
        """
        made = insert(table)
        ours = sa.and_(*(column == made.inserted[column.key] for column in table.primary_key))
        return made.on_duplicate_key_update(
            {
                name: sa.func.if_(ours, value, table.columns[name])
                for name, value in changes(made.inserted).items()
            }
        )

    upserts_by_any_key = True
