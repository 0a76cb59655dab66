"""The session's connections, which hand over what they are given for the length of one flush.

A connection stays the same object of the same type: its ``execute``, ``scalar`` and
``exec_driver_sql`` are replaced by functions of its own, and restored when the flush is over.
Nothing private of the compiler or the driver is touched. An UPDATE that compares the version is the
unit of work's; that distinguishes it from the statements of a program. If SQLAlchemy ever sends the
unit of work's statements in another way, the first flush of a class raises, and its transaction is
rolled back (:mod:`optilock._watched.guard.own_flush`).

A listener may flush a session of its own on the same connection. What the outer flush holds there
is sent first, and the connection hands over to the outer flush again when the inner one is over.

*Listeners of rows.* SQLAlchemy calls ``after_update`` and ``after_delete`` once it has handed over
the statements of a table, and treats every row as written. So the guard comes first: it sends the
rows that it keeps back, and calls no listener for a row that missed. If the conflict of such a row
is settled, the guard calls them then, once, with what was written. The check is in the mapper's own
collection of listeners, so that every way to register and to remove one works. A class without such
listeners is not touched.

*A listener's own UPDATE* may concern a row whose object takes part in the flush. If the flush
writes the row, the flush moves the version; moved once more by the column's ``onupdate``, the
version would be one that the object does not hold. If the flush does not write it (a counter of the
parent, written when a child is inserted), the UPDATE moves the version, and the object takes the
new one over if it was as new as its row, as with any statement of the session
(:mod:`optilock._watched.statements.by_table`). Otherwise the next flush would conflict with the
session's own write.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import Column, Connection, Delete, TextClause, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper
from sqlalchemy.schema import DefaultGenerator

from optilock._mapped import State, facts
from optilock._mapping.original_values import edit_that_counts
from optilock._mapping.scopes import scoped_tables
from optilock._mapping.tables import owner_of
from optilock._undocumented.mappers import AskingListeners, ask_listeners
from optilock._undocumented.statements import MappersCache, is_ordered, values_of
from optilock._watched.guard.batch import send_deferred
from optilock._watched.guard.ended_transactions import remember
from optilock._watched.guard.records import Flush
from optilock._watched.guard.route import pass_through, route_link_rows, route_statement
from optilock._watched.rows.entries import AFTER_DELETE, AFTER_UPDATE
from optilock._watched.session.record import RECORD_KEY, is_strict
from optilock._watched.statements.by_table import follow_statement
from optilock._watched.statements.call import single_key_of
from optilock._watched.statements.demand_checks import add_demands_for_table
from optilock._watched.statements.given_versions import with_next_version
from optilock._watched.statements.refusals import (
    checked_upsert,
    refuse_text,
    refuse_unchecked,
    refuse_unversioned_change,
)
from optilock._watched.statements.requests import refuse_unconditional
from optilock._watched.statements.scopes import is_sent_for_mappers, send_on_connection
from optilock._watched.statements.unguarded import (
    refuse_unguarded,
    refuse_unguarded_text,
)
from optilock._watched.statements.unguarded_warnings import warn_of_unguarded
from optilock._watched.statements.version import keep_version_of_table
from optilock._watched.writes.shapes import is_of_mappers
from optilock.conditions.write import mark_checked

_CHANGES = (Update, Delete)
#: An attribute of a connection: the flush that it answers for.
_FLUSH = "_optilock_flush"


def intercept(flush: Flush, connection: Connection) -> None:
    """Replace the connection's methods, after the rows that another flush holds were sent."""
    if connection in flush.armed:
        return
    outer: Flush | None = getattr(connection, _FLUSH, None)
    if outer is not None:
        _send_held(outer, connection, before=flush)
    native = type(connection).execute.__get__(connection)
    flush.armed[connection] = outer, {} if connection.execute == native else _covers_of(connection)
    _cover(flush, connection)


def _covers_of(connection: Connection) -> dict[str, Any]:
    """Return the functions that others have put over its methods."""
    cls = type(connection)
    return {
        name: cover
        for name in ("execute", "scalar", "exec_driver_sql")
        if (cover := getattr(connection, name)) != getattr(cls, name).__get__(connection)
    }


def _send_held(outer: Flush, connection: Connection, *, before: Flush) -> None:
    try:
        send_deferred(outer, connection)
    except DBAPIError as error:
        remember(outer)
        before.note_outer_error(error)
        raise


def _cover(flush: Flush, connection: Connection) -> None:
    """Replace the methods that send a statement: each sends first what the flush holds."""
    native = type(connection).execute.__get__(connection)

    def execute(statement: Any, parameters: Any = None, **options: Any) -> Any:
        try:
            if flush.broken is not None:
                raise flush.broken
            if type(statement) not in _CHANGES:
                if not flush.record.in_statement:  # then it is checked
                    statement = checked_upsert(statement, parameters)
                _check(flush, connection, statement)
                if is_strict(flush.session):
                    refuse_unguarded(statement, dialect=lambda: connection.dialect)
                if flush.record.demands is not None:
                    refuse_unchecked(flush.record.demands, statement)
                send_deferred(flush, connection)
                send = functools.partial(native, statement, parameters, **options)
                return _send_moving(flush, connection, statement, parameters, options, send)
            cache = (options.get("execution_options") or {}).get("compiled_cache")
            if type(cache) is MappersCache or _is_of_flush(flush, statement, parameters, cache):
                return route_statement(flush, connection, native, statement, parameters, options)
            if scoped_tables:
                send_deferred(flush, connection)
            given = native, statement, parameters, options
            send = functools.partial(_send_change, flush, connection, *given)
            return _send_moving(flush, connection, statement, parameters, options, send)
        except DBAPIError:
            remember(flush)
            raise

    def scalar(statement: Any, parameters: Any = None, **options: Any) -> Any:
        if isinstance(statement, DefaultGenerator):  # a sequence, which is no statement
            return type(connection).scalar(connection, statement, parameters, **options)
        return execute(statement, parameters, **options).scalar()

    def exec_driver_sql(*args: Any, **options: Any) -> Any:
        flush.record.note_other_statement(writes=True)
        try:
            if (strict := is_strict(flush.session)) is not False:
                if strict:
                    refuse_unguarded_text(args[0], connection.dialect)
                else:
                    warn_of_unguarded(flush.session, args[0], dialect=lambda: connection.dialect)
            if flush.record.demands is not None:
                refuse_text(flush.record.demands, args[0])
            if flush.record.require_conditions:
                refuse_unconditional(args[0], connection.dialect)
            send_deferred(flush, connection)
            send = functools.partial(type(connection).exec_driver_sql, connection, *args, **options)
            return _send_moving(flush, connection, args[0], None, {}, send)
        except DBAPIError:
            remember(flush)
            raise

    # As attributes, not through __dict__: CPython keeps the object compact that way.
    connection.execute = execute  # type: ignore[method-assign]
    connection.scalar = scalar  # type: ignore[method-assign]
    connection.exec_driver_sql = exec_driver_sql  # type: ignore[method-assign]
    setattr(connection, _FLUSH, flush)


def _send_moving(
    flush: Flush,
    connection: Connection,
    statement: Any,
    params: Any,
    options: Any,
    send: Callable[[], Any],
) -> Any:
    """Send a statement of a listener, and note the scopes that it moves."""
    if not scoped_tables or is_sent_for_mappers(options):
        return send()
    return send_on_connection(flush.session, connection, statement, params, send)


def _is_of_flush(flush: Flush, statement: Any, params: Any, cache: Any) -> bool:
    """Return whether the statement is the flush's own, by its comparison of the version alone."""
    return is_of_mappers(statement, params, cache, () if flush.uow is None else flush.uow.mappers)


def _check(flush: Flush, connection: Connection, statement: Any) -> None:
    """Refuse a statement that the flush has not planned, where the session's options require it."""
    flush.record.note_other_statement(writes=True)
    if (strict := is_strict(flush.session)) is not False:
        if strict:
            refuse_unversioned_change(statement)
        elif type(statement) is TextClause:
            warn_of_unguarded(flush.session, statement, dialect=lambda: connection.dialect)
    if flush.record.require_conditions:
        refuse_unconditional(statement, connection.dialect)


def _send_change(
    flush: Flush, connection: Connection, native: Any, statement: Any, params: Any, options: Any
) -> Any:
    """Send an UPDATE or DELETE of a listener, or one that takes links away."""
    statement = with_next_version(statement, params)
    _check(flush, connection, statement)
    record = flush.record
    if (
        (strict := is_strict(flush.session)) is not False
        and not record.in_statement
        and not _is_of_a_row_written(flush, statement, params)
    ):
        judge = refuse_unguarded if strict else functools.partial(warn_of_unguarded, flush.session)
        judge(statement, params, dialect=lambda: connection.dialect)
    if not (record.demands is None or record.demands_checked or record.in_statement):
        send_deferred(flush, connection)
        statement = add_demands_for_table(
            flush.session, connection, statement, params, record.demands
        )
    if type(params) is list and owner_of(statement.table) is None:
        # link rows come without that option
        return route_link_rows(flush, connection, native, statement, params, options)
    if flush.skipped:
        return pass_through(flush, connection, native, statement, params, options)
    return write_by_hand(flush, connection, native, statement, params, options)


def release(flush: Flush) -> None:
    """Restore the connections: the flush is over."""
    for connection, (outer, covered) in flush.armed.items():
        delattr(connection, _FLUSH)
        if outer is not None:
            _cover(outer, connection)
            continue
        del connection.execute, connection.scalar, connection.exec_driver_sql
        for name, cover in (flush.record.followed.get(connection) or covered).items():
            setattr(connection, name, cover)


# -- listeners of rows -----------------------------------------------------------------------------


class _OfWrittenRows(AskingListeners):
    """The listeners of a mapper."""

    __slots__ = ()

    @staticmethod
    def ask(name: str, connection: Connection, state: State) -> bool:
        session = state.session
        record = session.__dict__.get(RECORD_KEY) if session is not None else None
        flush: Flush | None = None if record is None else record.flush
        return flush is None or flush.uow is None or _is_written(flush, name, connection, state)


def listen(flush: Flush) -> None:
    """Send held rows before listeners of rows are called, from here on in this flush."""
    if not flush.listening and flush.uow is not None:
        flush.listening = True
        listen_in(flush.uow.mappers)


def listen_in(mappers: Iterable[Mapper[Any]]) -> None:
    """Check the row before each call of a listener of these classes."""
    for mapper in mappers:
        for name in (AFTER_UPDATE, AFTER_DELETE):
            ask_listeners(mapper, name, _OfWrittenRows)


def _is_written(flush: Flush, name: str, connection: Connection, state: State) -> bool:
    if flush.settled:
        return True
    if connection in flush.waiting:
        try:
            send_deferred(flush, connection)
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
    send_deferred(flush, connection)
    if found is not None:
        state, token = found
        assert isinstance(statement, Update)
        if _is_moved(flush, state) or _is_ignored(statement, state):
            return native(mark_checked(statement.values({token: token})), params, **options)
    if flush.uow is None or (found is None and flush.record.in_statement):
        return native(statement, params, **options)
    statement = keep_version_of_table(flush.session, statement, params)
    send = functools.partial(native, statement, params, **options)
    return follow_statement(flush.session, connection, statement, params, send, flush)


def _is_of_a_row_written(flush: Flush, statement: Any, params: Any) -> bool:
    """Return whether it is of one row, by its key, that the flush writes and compares itself."""
    found = _own_row(flush, statement, params) if isinstance(statement, Update) else None
    return found is not None and _is_moved(flush, found[0])


def _own_row(flush: Flush, statement: Update, params: Any) -> tuple[State, Column[Any]] | None:
    """Return the row's object and version column, if the statement leaves the version."""
    if flush.uow is None or statement.whereclause is None or is_ordered(statement):
        return None
    for mapper in flush.uow.mappers:
        token = mapper.version_id_col
        if isinstance(token, Column) and statement.table == token.table:  # may be annotated
            if token.onupdate is None or _names(statement, params, token):
                return None
            identity = single_key_of(mapper, statement, params)
            state = None if identity is None else flush.find(mapper, identity)
            return None if state is None else (state, token)
    return None


def _names(statement: Update, params: Any, token: Column[Any]) -> bool:
    """Return whether the statement, or a row of its parameters, gives the version a value."""
    named = {getattr(name, "key", name) for name in values_of(statement)}
    for row in params if isinstance(params, list) else [params or ()]:
        named.update(row)
    return token.key in named


def _is_moved(flush: Flush, state: State) -> bool:
    """Return whether the flush itself inserts, deletes or updates the row."""
    token = facts(state.mapper).token
    if state.key is None or flush.is_delete(state) or token in state.committed_state:
        return True
    return edit_that_counts(state) is not None


def _is_ignored(statement: Update, state: State) -> bool:
    """Return whether the statement sets only columns that leave the version."""
    ignored = {column.key for column in facts(state.mapper).ignored}
    return bool(ignored) and all(
        getattr(name, "key", name) in ignored for name in values_of(statement)
    )
