"""``executemany`` as a loop of ours, which says of each row how many were matched.

Drivers only add that up. The event ``do_executemany`` lets the loop be ours; logs and tracers still
see the one ``executemany`` that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, event

__all__ = ["Loop", "execute_counted"]

#: From a cursor, the statement, its rows and SQLAlchemy's context: the count of each row.
Loop = Callable[[Any, str, Sequence[Mapping[str, Any]], Any], Iterable[int]]

_OPTION = "optilock_counts"
#: Not asked of ``event.contains``, which knows a dialect by its address, and so takes a new one now
#: and then for one that is gone.
_listening: WeakSet[Dialect] = WeakSet()


class _Asked(NamedTuple):
    """The option of one execution."""

    loop: Loop
    counts: list[int]


def execute_counted(
    connection: Connection, statement: Any, rows: list[dict[str, Any]], loop: Loop
) -> list[int]:
    """Execute the statement past the guard, for each of the rows, and return their counts."""
    if connection.dialect not in _listening:
        event.listen(connection.dialect, "do_executemany", _counting)
        _listening.add(connection.dialect)
    asked = _Asked(loop, [])
    result = type(connection).execute(
        connection, statement, rows, execution_options={_OPTION: asked}
    )
    if len(rows) == 1:  # a list of one is no executemany: the event is not asked
        return [result.rowcount]
    return asked.counts


def _counting(cursor: Any, statement: str, rows: Any, context: Any) -> bool | None:
    asked: _Asked | None = context and context.execution_options.get(_OPTION)
    if asked is None:
        return None
    asked.counts.extend(asked.loop(cursor, statement, rows, context))
    return True
