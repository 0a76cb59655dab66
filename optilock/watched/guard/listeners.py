"""``after_update`` and ``after_delete`` listeners hear of a row when it was written, and only then.

SQLAlchemy calls them once it has handed over the statements of a table, and takes every row for
written. So the guard asks before they are called: it sends the rows that it keeps back, and calls
no listener for a row that missed. If the conflict of such a row is settled, the guard calls them
then, once, with what was written.

What asks is the mapper's own collection of listeners, so that every way to register and to remove
one works. A class without such listeners is not touched.

Inside the flush, a listener's own UPDATE of a row whose object takes part in it: where the flush
writes the row, it moves the version; moved once more by the column's ``onupdate``, the version
would be one that the object does not hold. Where the flush does not (a counter of the parent,
written when a child is inserted), the UPDATE moves it, and the object takes the new version over if
it was as new as its row, as with any statement of the session
(:mod:`optilock.watched.statements.by_table`). Otherwise the next flush would conflict with
ourselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import Column, Connection, Delete, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, RelationshipDirection

from optilock.mapped import State, facts
from optilock.mapping.compared import changed_names
from optilock.undocumented.mappers import AskingListeners, ask_listeners
from optilock.undocumented.statements import is_ordered, values_of
from optilock.watched.guard.batch import drain
from optilock.watched.guard.ended import remember
from optilock.watched.guard.records import DELETED, UPDATED, Flush
from optilock.watched.session.watched import KNOWN
from optilock.watched.statements.by_table import by_table
from optilock.watched.statements.call import key_named
from optilock.watched.statements.version import unmoved_of_table


class _OfWrittenRows(AskingListeners):
    """The listeners of a mapper."""

    __slots__ = ()

    @staticmethod
    def ask(name: str, connection: Connection, state: State) -> bool:
        session = state.session
        known = session.__dict__.get(KNOWN) if session is not None else None
        flush: Flush | None = None if known is None else known.flush
        return flush is None or flush.uow is None or _is_written(flush, name, connection, state)


def listen(flush: Flush) -> None:
    """From now on in this flush, listeners are asked for before they are called."""
    if not flush.listening and flush.uow is not None:
        flush.listening = True
        listen_in(flush.uow.mappers)


def listen_in(mappers: Iterable[Mapper[Any]]) -> None:
    """Ask before the listeners of these classes are called, where they have any."""
    for mapper in mappers:
        for name in (UPDATED, DELETED):
            ask_listeners(mapper, name, _OfWrittenRows)


def _is_written(flush: Flush, name: str, connection: Connection, state: State) -> bool:
    if flush.settled:
        return True
    if connection in flush.waiting:
        try:
            drain(flush, connection)
        except DBAPIError:
            remember(flush)
            raise
    missed = flush.missed_states.get(state)
    if missed is None:
        return state not in flush.skipped  # gone before the flush
    if missed.written != name:
        return False
    missed.told = True
    return True


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
        for row in params if isinstance(params, list) else [params or ()]:
            named.update(row)  # or the version that it gives would be replaced by the stored one
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
