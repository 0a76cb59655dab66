"""The session's own connections answer through the guard, for the length of one flush.

A connection stays the same object of the same type: its ``execute`` is covered by a function of
its own, and uncovered when the flush is over. Nothing private of the compiler or the driver is
touched. If SQLAlchemy ever stops sending the unit of work's statements this way, the guard sees
none of them and native checking goes on.

A listener may flush a session of its own on the same connection. What the outer flush holds there
is sent first, and the connection answers for the outer flush again when the inner one is over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Delete, Update
from sqlalchemy.exc import DBAPIError

from optilock.guard.ended import remember
from optilock.guard.listeners import listen, write_by_hand
from optilock.guard.pipeline import drain
from optilock.guard.records import Flush
from optilock.guard.route import links, unguarded, written
from optilock.mapping.tables import owner_of
from optilock.statements.demanded import table_under_demands
from optilock.statements.refused import refuse_text, refuse_unasked

_CHANGES = (Update, Delete)
#: An attribute of a connection: the flush that it answers for.
_FLUSH = "_optilock_flush"

#: How a connection answered before: for a flush around this one, and what covered its ``execute``.
Before = tuple["Flush | None", Callable[..., Any] | None]


def arm(flush: Flush, connection: Connection) -> None:
    """Answer for ``connection``, after what another flush holds for it was sent."""
    if connection in flush.armed:
        return
    outer: Flush | None = getattr(connection, _FLUSH, None)
    if outer is not None:
        _send_held(outer, connection, before=flush)
    native, covered = type(connection).execute.__get__(connection), connection.execute
    flush.armed[connection] = outer, None if covered == native else covered
    _cover(flush, connection, native)
    if flush.known.demands is not None:  # nothing passes them by
        arm_wholly(flush, connection)


def _send_held(outer: Flush, connection: Connection, *, before: Flush) -> None:
    try:
        drain(outer, connection)
    except DBAPIError as error:
        remember(outer)
        before.outer_error = error
        raise


def _cover(flush: Flush, connection: Connection, native: Callable[..., Any]) -> None:
    def execute(statement: Any, parameters: Any = None, **options: Any) -> Any:
        try:
            if flush.broken is not None:
                raise flush.broken
            if type(statement) in _CHANGES:
                if "compiled_cache" in (options.get("execution_options") or ()):
                    return written(flush, connection, native, statement, parameters, options)
                statement = _under_demands(flush, connection, statement, parameters)
                if type(parameters) is list and owner_of(statement.table) is None:
                    # link rows come without that option
                    return links(flush, connection, native, statement, parameters, options)
                if flush.skipped:
                    return unguarded(flush, connection, native, statement, parameters, options)
                return write_by_hand(flush, connection, native, statement, parameters, options)
            if flush.known.demands is not None:
                refuse_unasked(flush.known.demands, statement)
            drain(flush, connection)
            return native(statement, parameters, **options)
        except DBAPIError:
            remember(flush)
            raise

    # As an attribute, not through __dict__: CPython keeps the object compact that way.
    connection.execute = execute  # type: ignore[method-assign]
    setattr(connection, _FLUSH, flush)


def _under_demands(flush: Flush, connection: Connection, statement: Any, params: Any) -> Any:
    """A statement that a listener sends, or that takes links away."""
    known = flush.known
    if known.demands is None or known.asked or known.stating:
        return statement
    drain(flush, connection)
    return table_under_demands(flush.session, connection, statement, params, known.demands)


def arm_wholly(flush: Flush, connection: Connection) -> None:
    """Once something is held, nothing may pass it by, and listeners are asked for first."""
    listen(flush)
    if connection in flush.armed_wholly:
        return
    flush.armed_wholly.append(connection)
    _cover_wholly(flush, connection)


def _cover_wholly(flush: Flush, connection: Connection) -> None:
    execute = connection.execute

    def scalar(statement: Any, parameters: Any = None, **options: Any) -> Any:
        return execute(statement, parameters, **options).scalar()

    def exec_driver_sql(*args: Any, **options: Any) -> Any:
        try:
            if flush.known.demands is not None:
                refuse_text(flush.known.demands, args[0])
            drain(flush, connection)
            return type(connection).exec_driver_sql(connection, *args, **options)
        except DBAPIError:
            remember(flush)
            raise

    connection.__dict__.update(scalar=scalar, exec_driver_sql=exec_driver_sql)


def disarm(flush: Flush) -> None:
    """The flush is over: connections answer as they did before."""
    for connection in flush.armed_wholly:
        delattr(connection, "scalar")
        delattr(connection, "exec_driver_sql")
    for connection, (outer, covered) in flush.armed.items():
        delattr(connection, _FLUSH)
        if outer is not None:
            _cover(outer, connection, type(connection).execute.__get__(connection))
            if connection in outer.armed_wholly:
                _cover_wholly(outer, connection)
        elif covers := flush.known.followed.get(connection):
            for name, cover in covers.items():
                setattr(connection, name, cover)
        elif covered:
            connection.execute = covered  # type: ignore[method-assign]
        else:
            del connection.execute
