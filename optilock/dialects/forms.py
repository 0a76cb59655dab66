"""The form in which many rows of one table are written at once."""

from __future__ import annotations

from typing import Any, Protocol

import sqlalchemy as sa

from optilock.conditions.write import Write
from optilock.dialects.rows import EachAlone, LockAndLook, Locks


class Form(Protocol):
    """A way to write many rows of one table at once."""

    def send(self, connection: sa.Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed by others or are gone."""


class Forms:
    """The forms of one database, and its statements that raise an error on a miss."""

    def __init__(self, database: Locks) -> None:
        self.database = database

    def form(self, writes: list[Write], dialect: sa.Dialect, *, locked: bool = False) -> Form:
        """Return the form for two or more rows of one table, which may be ``locked`` already."""
        return (
            LockAndLook(self.database) if self.database.locks.locks_rows(dialect) else EachAlone()
        )

    def found_or_error(self, query: sa.Select[Any], rows: int) -> Any:
        """Return a statement that raises an error unless the query finds so many rows."""
        return None
