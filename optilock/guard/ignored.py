"""Rows of which only ignored columns change: the version is neither checked nor moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from optilock.conditions.write import Write
from optilock.guard.answers import Unmoved
from optilock.guard.misses import miss
from optilock.mapping.compared import changed_names
from optilock.mapping.facts import facts

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["only_ignored", "touched", "write_ignored"]


def write_ignored(
    flush: Flush, connection: Connection, native: Callable[..., Any], write: Write, options: Any
) -> Unmoved:
    """Write the row whatever its version is; a row that is gone has missed."""
    flush.drain(connection)
    shape, params = write
    token = shape.token
    statement = shape.table.update().where(*(key.column == shape.bind(key) for key in shape.keys))
    kept = {k: v for k, v in params.items() if k not in (token.parameter, token.column.key)}
    values = dict(shape.expressions)
    if token.column.onupdate is not None:
        values[token.column] = token.column
    result = native(statement.values(values), kept)
    if result.rowcount == 0:
        miss(flush, connection, [write], sent=1)
    return Unmoved(result, shape)


def only_ignored(flush: Flush, write: Write) -> bool:
    """Has nothing else of the object changed, in any of its tables?"""
    state = flush.state_of(write)
    ignored = facts(state.mapper).ignored
    columns = state.mapper.column_attrs
    return all(set(columns[name].columns) <= ignored for name in changed_names(state))


def touched(flush: Flush, write: Write) -> bool:
    """Is the version to move, whatever else changes (``touch``)?"""
    state = flush.state_of(write)
    return facts(state.mapper).token in state.committed_state
