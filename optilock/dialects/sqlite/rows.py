"""SQLite's form: row by row inside one ``executemany``, with the exact count of each.

There is no network to save, so the cheapest exact answer is the row count of every UPDATE. The
event ``do_executemany`` lets the driver's loop be this one; logs and tracers still see the one
``executemany`` that it is.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, event

from optilock.conditions.write import Write
from optilock.dialects.rows import by_shape

_OPTION = "optilock_counts"
#: Rows of one ``executemany``. SQLAlchemy makes two objects a row for it, and with those of ten
#: thousand rows at once Python's garbage collector would begin to walk through everything there is.
_AT_ONCE = 1_000
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
        for same in by_shape(writes):
            for start in range(0, len(same), _AT_ONCE):
                missed += _send(connection, same[start : start + _AT_ONCE])
        return missed


def _send(connection: Connection, writes: list[Write]) -> list[Write]:
    counts: list[int] = []
    statement, params = writes[0].shape.statement, [write.params for write in writes]
    result = type(connection).execute(
        connection, statement, params, execution_options={_OPTION: counts}
    )
    if len(writes) == 1:  # a list of one is no executemany: the event is not asked
        counts.append(result.rowcount)
    return [write for write, count in zip(writes, counts, strict=True) if not count]


def _counting(cursor: Any, statement: str, parameters: Any, context: Any) -> bool | None:
    counts = None if context is None else context.execution_options.get(_OPTION)
    if counts is None:
        return None
    for row in parameters:
        cursor.execute(statement, row)
        counts.append(cursor.rowcount)
    return True
