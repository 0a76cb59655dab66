"""The columns of a result of psycopg, described once for each of optilock's own queries.

SQLAlchemy asks the cursor for its ``description`` after every SELECT, for which psycopg makes an
object for each column: a twentieth of what a short unit costs. It needs it for the first result of
a query alone, and later takes the columns from what it has compiled. So the description is kept
there as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from sqlalchemy import Dialect, event
from sqlalchemy.engine.cursor import CursorFetchStrategy

from optilock.mapped import DESCRIBED_ONCE

__all__ = ["describe_once"]

#: An attribute of what SQLAlchemy has compiled: how its results are fetched.
_FETCHED = "_optilock_fetched"
_listening: WeakSet[Dialect] = WeakSet()


def describe_once(dialect: Dialect) -> None:
    """From here on, this engine's results of optilock's own queries are described once."""
    if dialect.driver == "psycopg" and dialect not in _listening:
        event.listen(dialect, "do_execute", _do_execute)
        _listening.add(dialect)


class _Described(CursorFetchStrategy):
    """As SQLAlchemy fetches rows; the description is that of the first result."""

    __slots__ = ("_columns", "_first")

    def __init__(self, cursor: Any, compiled: Any) -> None:
        self._columns: Sequence[Any] = ()
        self._first = cursor, compiled

    @property
    def alternate_cursor_description(self) -> Sequence[Any]:  # type: ignore[override]
        """Asked for after a statement was executed; from the first time on, it is kept."""
        if not self._columns:
            cursor, compiled = self._first
            self._columns, self._first = [tuple(one) for one in cursor.description], (None, None)
            setattr(compiled, _FETCHED, self)
        return self._columns


def _do_execute(cursor: Any, statement: str, params: Any, context: Any) -> None:
    """It leaves the execution to SQLAlchemy, and to other listeners."""
    if context is not None and DESCRIBED_ONCE in context.execution_options:
        compiled = context.compiled
        fetched = getattr(compiled, _FETCHED, None)
        context.cursor_fetch_strategy = fetched or _Described(cursor, compiled)
