"""How statements find rows by their keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Table
from sqlalchemy.exc import DBAPIError

from optilock._mapped import Identity
from optilock.dialects.feature import Feature
from optilock.dialects.values import rows_with_keys


class RowKeys(Feature):
    """Statements with the keys of rows: how many they name, and in which form."""

    #: The most parameters one statement may carry. PostgreSQL and MariaDB take 65,535
    #: (https://www.postgresql.org/docs/current/limits.html); half of it leaves room for others.
    max_parameters: int = 30_000

    def keys_at_once(self, width: int) -> int:
        """How many keys of ``width`` columns one statement names."""
        return max(1, self.max_parameters // width)

    def at_keys(
        self, columns: Sequence[sa.ColumnElement[Any]], keys: Sequence[Identity]
    ) -> sa.ColumnElement[bool]:
        """``key IN (…)``, so that a lock takes these rows and no other."""
        return rows_with_keys(columns, keys)

    def has_hint(self, table: Table) -> bool:
        """Return whether ``locks.lock`` adds a hint by which rows of the table are found."""
        return False

    def refused_hint(self, table: Table, error: DBAPIError) -> bool:
        """Return whether a locking read was refused for its hint, which is then dropped."""
        return False

    def refuses_many(self, error: DBAPIError) -> bool:
        """Return whether the server refused a statement for several rows in a live transaction."""
        return False
