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
    """As SQLAlchemy fetches rows, with a description of an earlier result."""

    __slots__ = ("alternate_cursor_description",)

    def __init__(self, description: Sequence[Any]) -> None:
        self.alternate_cursor_description = description


def _do_execute(cursor: Any, statement: str, params: Any, context: Any) -> bool | None:
    if context is None or DESCRIBED_ONCE not in context.execution_options:
        return None
    fetched = getattr(context.compiled, _FETCHED, None)
    if fetched is not None:
        context.cursor_fetch_strategy = fetched
        return None
    context.dialect.do_execute(cursor, statement, params, context)
    columns = [tuple(column) for column in cursor.description]
    setattr(context.compiled, _FETCHED, _Described(columns))
    return True
