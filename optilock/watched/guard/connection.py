"""The session's own connections answer through the guard, for the length of one flush.

A connection stays the same object of the same type: its ``execute``, ``scalar`` and
``exec_driver_sql`` are covered by functions of its own, and uncovered when the flush is over.
Nothing private of the compiler or the driver is touched. An UPDATE that compares the version is the
unit of work's, whatever else SQLAlchemy sends with it; what a program sends by hand is told from it
by that. If SQLAlchemy ever stops sending the unit of work's statements this way, the first flush of
a class says so and writes nothing (:mod:`optilock.watched.guard.columns_only`).

A listener may flush a session of its own on the same connection. What the outer flush holds there
is sent first, and the connection answers for the outer flush again when the inner one is over.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Delete, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.schema import DefaultGenerator

from optilock.mapping.tables import owner_of
from optilock.undocumented.statements import MappersCache
from optilock.watched.guard.batch import drain
from optilock.watched.guard.ended import remember
from optilock.watched.guard.listeners import listen, write_by_hand
from optilock.watched.guard.records import Flush
from optilock.watched.guard.route import links, unguarded, written
from optilock.watched.session.watched import is_strict, known_of
from optilock.watched.statements.demand_checks import table_under_demands
from optilock.watched.statements.refusals import refuse_forgotten, refuse_text, refuse_unasked
from optilock.watched.statements.requests import refuse_unconditional
from optilock.watched.writes.shapes import is_of_mappers

_CHANGES = (Update, Delete)
#: An attribute of a connection: the flush that it answers for.
_FLUSH = "_optilock_flush"


def begin_flush(session: Session, uow: Any) -> None:
    """From here on, what the session sends belongs to a flush."""
    known = known_of(session)
    if known.flushing and known.flush is None:
        known.flush = running = Flush(session, known, listen, write_by_hand)
        for connection in known.connections:
            arm(running, connection)
        running.uow = uow


def arm(flush: Flush, connection: Connection) -> None:
    """Answer for ``connection``, after what another flush holds for it was sent."""
    if connection in flush.armed:
        return
    outer: Flush | None = getattr(connection, _FLUSH, None)
    if outer is not None:
        _send_held(outer, connection, before=flush)
    native = type(connection).execute.__get__(connection)
    flush.armed[connection] = outer, {} if connection.execute == native else _covers_of(connection)
    _cover(flush, connection)


def _covers_of(connection: Connection) -> dict[str, Any]:
    """What others have covered it with."""
    cls = type(connection)
    return {
        name: cover
        for name in ("execute", "scalar", "exec_driver_sql")
        if (cover := getattr(connection, name)) != getattr(cls, name).__get__(connection)
    }


def _send_held(outer: Flush, connection: Connection, *, before: Flush) -> None:
    try:
        drain(outer, connection)
    except DBAPIError as error:
        remember(outer)
        before.outer_error = error
        raise


def _cover(flush: Flush, connection: Connection) -> None:
    """Whatever sends a statement: what is held goes first, and what is demanded is asked."""
    native = type(connection).execute.__get__(connection)

    def execute(statement: Any, parameters: Any = None, **options: Any) -> Any:
        try:
            if flush.broken is not None:
                raise flush.broken
            if type(statement) in _CHANGES:
                cache = (options.get("execution_options") or {}).get("compiled_cache")
                if type(cache) is MappersCache or _is_of_flush(flush, statement, parameters, cache):
                    return written(flush, connection, native, statement, parameters, options)
                flush.known.sent_more = True
                if is_strict(flush.session):
                    refuse_forgotten(statement)
                if flush.known.require_conditions:
                    refuse_unconditional(statement)
                statement = _under_demands(flush, connection, statement, parameters)
                if type(parameters) is list and owner_of(statement.table) is None:
                    # link rows come without that option
                    return links(flush, connection, native, statement, parameters, options)
                if flush.skipped:
                    return unguarded(flush, connection, native, statement, parameters, options)
                return write_by_hand(flush, connection, native, statement, parameters, options)
            flush.known.sent_more = True
            if flush.known.demands is not None:
                refuse_unasked(flush.known.demands, statement)
            if is_strict(flush.session):
                refuse_forgotten(statement)
            if flush.known.require_conditions:
                refuse_unconditional(statement)
            drain(flush, connection)
            return native(statement, parameters, **options)
        except DBAPIError:
            remember(flush)
            raise

    def scalar(statement: Any, parameters: Any = None, **options: Any) -> Any:
        if isinstance(statement, DefaultGenerator):  # a sequence, which is no statement
            return type(connection).scalar(connection, statement, parameters, **options)
        return execute(statement, parameters, **options).scalar()

    def exec_driver_sql(*args: Any, **options: Any) -> Any:
        flush.known.sent_more = True
        try:
            if flush.known.demands is not None:
                refuse_text(flush.known.demands, args[0])
            if flush.known.require_conditions:
                refuse_unconditional(args[0])
            drain(flush, connection)
            return type(connection).exec_driver_sql(connection, *args, **options)
        except DBAPIError:
            remember(flush)
            raise

    # As attributes, not through __dict__: CPython keeps the object compact that way.
    connection.execute = execute  # type: ignore[method-assign]
    connection.scalar = scalar  # type: ignore[method-assign]
    connection.exec_driver_sql = exec_driver_sql  # type: ignore[method-assign]
    setattr(connection, _FLUSH, flush)


def _is_of_flush(flush: Flush, statement: Any, params: Any, cache: Any) -> bool:
    """Is it the flush's own, though nothing but its version says so?"""
    return is_of_mappers(statement, params, cache, () if flush.uow is None else flush.uow.mappers)


def _under_demands(flush: Flush, connection: Connection, statement: Any, params: Any) -> Any:
    """A statement that a listener sends, or that takes links away."""
    known = flush.known
    if known.demands is None or known.asked or known.stating:
        return statement
    drain(flush, connection)
    return table_under_demands(flush.session, connection, statement, params, known.demands)


def disarm(flush: Flush) -> None:
    """The flush is over: connections answer as they did before."""
    for connection, (outer, covered) in flush.armed.items():
        delattr(connection, _FLUSH)
        if outer is not None:
            _cover(outer, connection)
            continue
        del connection.execute, connection.scalar, connection.exec_driver_sql
        for name, cover in (flush.known.followed.get(connection) or covered).items():
            setattr(connection, name, cover)
