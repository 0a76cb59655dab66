"""A listener's own UPDATE of a row whose object takes part in the running flush.

Where the flush writes the row, it moves the version; moved once more by the column's ``onupdate``,
the version would be one that the object does not hold. Where the flush does not (a counter of the
parent, written when a child is inserted), the UPDATE moves it, and the object takes the new version
over if it was as new as its row. Otherwise the next flush would conflict with ourselves. Rows of
other objects move as by any statement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Update
from sqlalchemy.engine import Connection
from sqlalchemy.orm import RelationshipDirection
from sqlalchemy.orm.state import InstanceState
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, BooleanClauseList

from optilock.conflicts import read_stored
from optilock.dialects import database_of
from optilock.dialects.locks import require_locks
from optilock.mapping.columns import columns_of, ignored_columns, token_attribute
from optilock.mapping.compared import changed_names
from optilock.seen import moved_by_us
from optilock.undocumented import expire_with_savepoint, is_ordered, values_of

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["write_by_hand"]


def write_by_hand(
    flush: Flush,
    connection: Connection,
    native: Callable[..., Any],
    statement: Update,
    params: Any,
    options: Any,
) -> Any:
    """Send ``statement``; where it names one row of the flush by key, the version moves once."""
    found = _own_row(flush, statement, params)
    flush.drain(connection)
    if found is None:
        return native(statement, params, **options)
    state, token = found
    if _is_moved(flush, state) or _is_ignored(statement, state):
        return native(statement.values({token: token}), params, **options)
    return _followed(flush, connection, state, lambda: native(statement, params, **options))


def _own_row(
    flush: Flush, statement: Update, params: Any
) -> tuple[InstanceState[Any], Column[Any]] | None:
    """The object of the row and its version's column, where the statement leaves the version."""
    if flush.uow is None or statement.whereclause is None or is_ordered(statement):
        return None
    for mapper in flush.uow.mappers:
        token = mapper.version_id_col
        if not isinstance(token, Column) or token.table is not statement.table:
            continue
        named = {getattr(name, "key", name) for name in values_of(statement)}
        if token.onupdate is None or token.key in named:
            return None
        values = _key(statement, params if isinstance(params, dict) else {})
        identity = tuple(values.get(column) for column in mapper.primary_key)
        state = flush.find(mapper, identity)
        return None if state is None else (state, token)
    return None


def _is_moved(flush: Flush, state: InstanceState[Any]) -> bool:
    """Does the flush itself insert, delete or update the row, so that its version moves?"""
    token = token_attribute(state.mapper)
    if state.key is None or flush.is_delete(state) or token in state.committed_state:
        return True
    columns, ignored = columns_of(state.mapper), ignored_columns(state.mapper)
    if any(columns[name] not in ignored for name in changed_names(state)):
        return True
    return any(  # its foreign key is yet to be set
        relationship.key in state.committed_state
        for relationship in state.mapper.relationships
        if relationship.direction is RelationshipDirection.MANYTOONE
    )


def _is_ignored(statement: Update, state: InstanceState[Any]) -> bool:
    """Does it set only columns that leave the version?"""
    ignored = {column.key for column in ignored_columns(state.mapper)}
    return bool(ignored) and all(
        getattr(name, "key", name) in ignored for name in values_of(statement)
    )


def _followed(
    flush: Flush, connection: Connection, state: InstanceState[Any], write: Callable[[], Any]
) -> Any:
    """Write, and give the object the version that its row has got."""
    token = token_attribute(state.mapper)
    assert token is not None and state.key is not None
    identity = tuple(state.key[1])
    require_locks(database_of(connection.dialect), connection)

    def stored() -> Any:
        found = read_stored(connection, state.mapper, [identity], only=(token,))
        return found.get(identity, {}).get(token)

    before = stored()
    result = write()
    after = stored()
    if before is not None and after is not None and before != after:
        moved_by_us(state, token, before, after)
        flush.known.moved.append((state, token, before, after))
        expire_with_savepoint(flush.session, [state])
    return result


def _key(statement: Update, params: dict[str, Any]) -> dict[Any, Any]:
    where = statement.whereclause
    clauses = where.clauses if isinstance(where, BooleanClauseList) else [where]
    return {
        clause.left: params.get(clause.right.key, clause.right.value)
        for clause in clauses
        if isinstance(clause, BinaryExpression) and isinstance(clause.right, BindParameter)
    }
