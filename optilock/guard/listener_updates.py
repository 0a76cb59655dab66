"""A listener's own UPDATE of a row whose object takes part in the running flush.

Where the flush writes the row, it moves the version; moved once more by the column's ``onupdate``,
the version would be one that the object does not hold. Where the flush does not (a counter of the
parent, written when a child is inserted), the UPDATE moves it, and the object takes the new version
over if it was as new as its row, as with any statement of the session
(:mod:`optilock.statements.by_table`). Otherwise the next flush would conflict with ourselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, Connection, Delete, Update
from sqlalchemy.orm import RelationshipDirection

from optilock.guard.pipeline import drain
from optilock.guard.records import Flush
from optilock.mapped.facts import facts
from optilock.mapped.keys import State
from optilock.mapping.compared import changed_names
from optilock.statements.by_table import by_table
from optilock.statements.matching import key_named
from optilock.statements.version import unmoved_of_table
from optilock.undocumented import is_ordered, values_of

__all__ = ["write_by_hand"]


def write_by_hand(
    flush: Flush,
    connection: Connection,
    native: Callable[..., Any],
    statement: Update | Delete,
    params: Any,
    options: Any,
) -> Any:
    """Send ``statement``; where it names one row of the flush by key, the version moves once."""
    found = _own_row(flush, statement, params) if isinstance(statement, Update) else None
    drain(flush, connection)
    if found is not None:
        state, token = found
        assert isinstance(statement, Update)
        if _is_moved(flush, state) or _is_ignored(statement, state):
            return native(statement.values({token: token}), params, **options)
    if flush.uow is None or (found is None and flush.known.stating):
        return native(statement, params, **options)
    statement = unmoved_of_table(flush.session, statement, params)
    send = functools.partial(native, statement, params, **options)
    return by_table(flush.session, connection, statement, params, send, flush)


def _own_row(flush: Flush, statement: Update, params: Any) -> tuple[State, Column[Any]] | None:
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
        identity = key_named(mapper, statement, params)
        state = None if identity is None else flush.find(mapper, identity)
        return None if state is None else (state, token)
    return None


def _is_moved(flush: Flush, state: State) -> bool:
    """Does the flush itself insert, delete or update the row, so that its version moves?"""
    token = facts(state.mapper).token
    if state.key is None or flush.is_delete(state) or token in state.committed_state:
        return True
    columns, ignored = facts(state.mapper).columns, facts(state.mapper).ignored
    if any(columns[name] not in ignored for name in changed_names(state)):
        return True
    return any(  # its foreign key is yet to be set
        relationship.key in state.committed_state
        for relationship in state.mapper.relationships
        if relationship.direction is RelationshipDirection.MANYTOONE
    )


def _is_ignored(statement: Update, state: State) -> bool:
    """Does it set only columns that leave the version?"""
    ignored = {column.key for column in facts(state.mapper).ignored}
    return bool(ignored) and all(
        getattr(name, "key", name) in ignored for name in values_of(statement)
    )
