"""Notes on a connection: steps to undo before it is pooled, and the error with which it was lost.

**Undone.** Settings that a unit of work makes on a connection are undone when it is returned. On
every path back (commit, rollback, an error, a session that was only closed) the pool's ``checkin``
event comes last, before another user can get the connection. A connection that cannot be put right
is thrown away.

**Lost.** The first error with which a connection was lost is kept: a program that catches it inside
a unit of work meets SQLAlchemy's refusals, which give no reason and never end.

**Elsewhere.** If a standby, or a node that has lost its cluster, refuses a write, the connection
leads to the wrong server. optilock reports it, and the pool's other connections, as lost to
SQLAlchemy. The next attempt opens a new one, perhaps to a server that can write.

**Old plans.** A migration that alters a table makes each connection of the pool refuse, once, the
statements that its driver has prepared. That connection goes on after a rollback. The pool replaces
its others at their next checkout, or a unit would meet them one by one.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from sqlalchemy import Connection, Dialect, ExceptionContext, Pool, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from optilock._undocumented.connections import renew_pool, thrown_away_on_error
from optilock.dialects.base import Database
from optilock.dialects.causes import is_raised_by
from optilock.dialects.transaction_ends import (
    is_watched,
    note_error,
    watch_dialect,
    watch_transaction,
)

#: Whether only its server knows that server's locks.
_watched: WeakKeyDictionary[Dialect, bool] = WeakKeyDictionary()


def watch_errors(connection: Connection, database: Database) -> bool:
    """From here on, follow the transaction of ``connection``, and remember a lost connection.

    A new engine gets its listeners here.

    ``True``: COMMIT reports conflicts with the writers of other servers.
    """
    dialect = connection.dialect
    known = _watched.get(dialect)
    if known is not None:
        watch_transaction(connection, database)
        return known
    _watched[dialect] = local = database.servers.locks_are_local(connection)
    is_out = database.servers.is_out
    database.trips.describe_once(dialect)
    watch_dialect(dialect)
    watch_transaction(connection, database)

    @event.listens_for(connection.engine, "handle_error")
    def handle_error(context: ExceptionContext) -> BaseException | None:
        given = context.connection
        if given is None or not is_watched(given):
            return None
        wrapped = _wrap_error_of_stream(given, context, database)
        out = not context.is_disconnect and is_out(given, context.original_exception)
        if out:
            context.is_disconnect = True  # the pool connects again, perhaps to another server
        if context.is_disconnect:
            _note_lost(given, wrapped or context.sqlalchemy_exception)
            return wrapped
        if database.has_old_plans(context.original_exception):
            renew_pool(given)
        note_error(given, context, database)
        return wrapped

    return local


def _wrap_error_of_stream(
    given: Connection, context: ExceptionContext, database: Database
) -> DBAPIError | None:
    """Return asyncpg's error as SQLAlchemy wraps all others, if it came while rows were streamed.

    SQLAlchemy leaves that one as it is, and does not see that the connection is lost.
    """
    error = context.original_exception
    if context.sqlalchemy_exception is not None or isinstance(error, SQLAlchemyError):
        return None
    if not isinstance(error, Exception) or not is_raised_by(error, database.drivers):
        return None
    lost = not given.closed and not given.invalidated and has_ended_idle(given)
    context.is_disconnect = context.is_disconnect or lost
    return DBAPIError(None, None, error, connection_invalidated=context.is_disconnect)


#: An attribute of a connection: the error with which it was lost.
_LOST = "_optilock_lost"


def _note_lost(connection: Connection, error: BaseException | None) -> None:
    if error is not None:
        connection.__dict__.setdefault(_LOST, error)


def error_that_lost(connection: Connection) -> BaseException | None:
    """The first error with which the connection was lost, as SQLAlchemy has raised it.

    What comes after it is refused in SQLAlchemy's words, which do not tell why.
    """
    error: BaseException | None = connection.__dict__.get(_LOST)
    return error


@contextmanager
def send_afterwards(send: Callable[[str], object], statement: str) -> Iterator[None]:
    """Send ``statement`` after the block; where the block fails, that is what the caller hears."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            send(statement)
        raise
    send(statement)


def give_back(connection: Connection) -> None:
    """Close the connection. If it is dead by now, log that and throw it away."""
    try:
        connection.close()
    except Exception:
        _log.warning("a connection could not be given back and is thrown away", exc_info=True)
        if not connection.closed:
            connection.invalidate()
            connection.close()


def roll_back_all(connections: Iterable[Connection]) -> None:
    """Roll back below SQLAlchemy, which takes a transaction whose COMMIT failed for ended.

    On SQLite it goes on after SQLITE_BUSY, and the connection's next user would store it.
    """
    for connection in connections:
        if connection.closed or connection.invalidated:
            continue
        try:
            connection.dialect.do_rollback(connection.connection)
        except Exception:
            connection.invalidate()


def has_ended_idle(connection: Connection) -> bool:
    """Return whether the server has sent something, such as goodbye, on an idle connection.

    Asked of the operating system, without a trip; where the driver shows no socket, ``False``.
    """
    return has_driver_ended(connection.connection.driver_connection)


def has_driver_ended(driver: Any) -> bool:
    """Return the same for a driver's connection, such as one that SQLAlchemy has detached."""
    if callable(closed := getattr(driver, "is_closed", None)):  # asyncpg
        return bool(closed())
    if getattr(driver, "closed", False) is True:  # psycopg has met the end itself
        return True
    transport: Any = getattr(driver, "_transport", None)
    if transport is not None:  # asyncmy: the event loop reads all the time
        return bool(transport.is_closing())
    line: Any = driver if hasattr(driver, "fileno") else getattr(driver, "_sock", None)
    if not hasattr(line, "fileno") or line.fileno() < 0:
        return False
    if not hasattr(select, "poll"):  # Windows
        return False
    asked = select.poll()
    asked.register(line, select.POLLIN)
    return bool(asked.poll(0))


#: An execution option of the connections that a queue keeps.
KEPT = "optilock_kept"
_UNDO = "optilock.undo"
_COMMIT = "commit"
#: A statement, or what is done to the driver's connection.
Undo = str | Callable[[Any], None]
_log = logging.getLogger("optilock")
#: Not asked of ``event.contains``, which knows a pool by its address, and so takes a new pool now
#: and then for one that is gone.
_pools: WeakSet[Pool] = WeakSet()


def undo_at_checkin(connection: Connection, undo: Undo) -> None:
    """Send, or call, ``undo`` when ``connection`` goes back to its pool; the last one first."""
    connection.info.setdefault(_UNDO, []).append(undo)
    pool = connection.engine.pool
    if pool not in _pools:
        event.listen(pool, "checkin", _checkin)
        _pools.add(pool)


def cover_commit(
    connection: Connection, driver: Any, send: Callable[[list[str]], Any], sql: str
) -> None:
    """Let the driver's next ``commit()`` send ``sql`` and COMMIT, until the connection is returned.

    ``send`` gets all statements that were given for this COMMIT. SQLAlchemy calls the driver's
    ``commit()``, so an error of ``send`` is an error of COMMIT.
    """
    covered = driver.__dict__.get(_COMMIT)
    if covered is None:
        undo_at_checkin(connection, partial(_uncover, driver))
        covered = driver.__dict__[_COMMIT] = partial(send, [])
    covered.args[-1].append(sql)


def goes_with_next_commit(driver: Any, sql: str) -> bool:
    """Return whether ``sql`` was given for the next COMMIT, which was not sent yet."""
    covered = driver.__dict__.get(_COMMIT)
    return covered is not None and sql in covered.args[-1]


def with_own_commit(driver: Any) -> Any:
    """Return the driver's connection, with its own ``commit()`` again."""
    _uncover(driver, None)
    return driver


def _uncover(driver: Any, _: Any) -> None:
    driver.__dict__.pop(_COMMIT, None)


def _checkin(dbapi_connection: Any, record: Any) -> None:
    undoing = record.info.pop(_UNDO, None)
    if not undoing or dbapi_connection is None:
        return
    with thrown_away_on_error(record):
        for undo in reversed(undoing):
            _put_right(dbapi_connection, undo)


def _put_right(dbapi_connection: Any, undo: Undo) -> None:
    if not isinstance(undo, str):
        undo(dbapi_connection)
        return
    cursor = dbapi_connection.cursor()
    try:
        cursor.execute(undo)
    finally:
        cursor.close()
