"""SQLite's form for many rows: one ``executemany``, with the exact count of each row.

There is no network to save, so the cheapest exact answer is the row count of every UPDATE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from optilock.conditions.write import Write
from optilock.dialects.rows import execute_counted, group_by_shape

#: Rows of one ``executemany``. SQLAlchemy makes two objects a row for it, and with those of ten
#: thousand rows at once Python's garbage collector would begin to walk through everything there is.
_AT_ONCE = 1_000


class RowByRow:
    """Every row judged by its own count."""

    def send(self, connection: Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed by others or are gone."""
        missed: list[Write] = []
        for same in group_by_shape(writes):
            for start in range(0, len(same), _AT_ONCE):
                missed += _send(connection, same[start : start + _AT_ONCE])
        return missed


def _send(connection: Connection, writes: list[Write]) -> list[Write]:
    rows = [write.params for write in writes]
    counts = execute_counted(connection, writes[0].shape.statement, rows, _one_by_one)
    return [write for write, count in zip(writes, counts, strict=True) if not count]


def _one_by_one(
    cursor: Any, statement: str, rows: Sequence[Mapping[str, Any]], context: Any
) -> Iterator[int]:
    for row in rows:
        cursor.execute(statement, row)
        yield cursor.rowcount
