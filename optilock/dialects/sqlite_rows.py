"""SQLite's form: row by row inside one ``executemany``, with the exact count of each.

There is no network to save, so the cheapest exact answer is the row count of every UPDATE. The
event ``do_executemany`` lets the driver's loop be this one; logs and tracers still see the one
``executemany`` that it is.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from sqlalchemy import event
from sqlalchemy.engine import Connection, Dialect

from optilock.dialects.rows import by_shape

if TYPE_CHECKING:
    from optilock.guard.writes import Write

__all__ = ["RowByRow"]

_OPTION = "optilock_counts"
#: Not asked of ``event.contains``, which knows a dialect by its address, and so takes a new one now
#: and then for one that is gone.
_listening: WeakSet[Dialect] = WeakSet()


class RowByRow:
    """Every row judged by its own count."""

    def send(self, connection: Connection, writes: list[Write]) -> list[Write]:
        """Write the rows; return those that were changed by others or are gone."""
        if connection.dialect not in _listening:
            event.listen(connection.dialect, "do_executemany", _counting)
            _listening.add(connection.dialect)
        missed: list[Write] = []
        for shape, group in groupby(sorted(writes, key=by_shape), key=lambda write: write.shape):
            some = list(group)
            counts: list[int] = []
            params = [write.params for write in some]
            result = type(connection).execute(
                connection, shape.statement, params, execution_options={_OPTION: counts}
            )
            if len(some) == 1:  # a list of one is no executemany: the event is not asked
                counts.append(result.rowcount)
            missed += [write for write, count in zip(some, counts, strict=True) if not count]
        return missed


def _counting(cursor: Any, statement: str, parameters: Any, context: Any) -> bool | None:
    counts = None if context is None else context.execution_options.get(_OPTION)
    if counts is None:
        return None
    for row in parameters:
        cursor.execute(statement, row)
        counts.append(cursor.rowcount)
    return True
