"""Cursors of psycopg, sync and async, that send BEGIN and COMMIT with statements (:mod:`line`).

They derive from the cursor class of the driver's connection, so that an application's own class
keeps its behaviour. The line makes all decisions; the classes for threads and for asyncio differ in
``await`` alone. If nothing goes with a statement, ``execute`` is psycopg's own. Calls that no
pipeline can carry (COPY, streams, cursors of the server), and ``executemany``, which has a pipeline
of its own, send BEGIN first.

:func:`describe_once` is for results of optilock's own queries, :class:`OwnStatement` for the
statements that a queue sends for every message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Dialect, event

from optilock._coroutines import result_of
from optilock._mapped import DESCRIBED_ONCE
from optilock._undocumented.connections import has_statement_listeners, raise_as_of
from optilock._undocumented.statements import CursorFetchStrategy
from optilock.dialects.connections import KEPT, undo_at_checkin
from optilock.dialects.locks import BEGINS
from optilock.dialects.postgresql.line import IDLE, Line
from optilock.dialects.trips import NoteTrip


class _OnLine:
    """What all four classes have; psycopg's own class, the :attr:`_base`, is the next base."""

    connection: Any
    _base: Any

    def __init__(self, line: Line, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._line = line

    def _begin(self) -> Any:
        """Send BEGIN before a call that cannot carry it; an async driver's is to be awaited."""
        if self._line.is_sent_as_is(None):
            return None
        before = ";".join(command.decode() for command in self._line.commands_before())
        return self._line.cursor(self.connection).execute(before)


# -- sync ----------------------------------------------------------------------------------------


def _after_begin(name: str) -> Any:
    """Return psycopg's method with BEGIN before it."""

    def call(self: Any, *args: Any, **options: Any) -> Any:
        self._begin()
        return getattr(self._base, name)(self, *args, **options)

    return call


class _Sync(_OnLine):
    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        line, context, result = self._line, None, self
        if not line.is_sent_as_is(query, params):
            context, options = line.context, {**line.options, **options}
            if context is None:
                context = self.connection.pipeline()
                line.begin_pipeline(context, context.__enter__())
        try:
            result = self._base.execute(self, query, params, **options)
        except BaseException as error:
            if line.fails_at_once(error):
                if context is not None:
                    context.__exit__(type(error), error, error.__traceback__)
                raise
        if context is not None and line.completes_trip():
            try:
                context.__exit__(None, None, None)
            except BaseException as error:
                if line.fails_at_once(error):
                    raise
            line.end_pipeline()
        return result

    executemany, copy, stream = map(_after_begin, ("executemany", "copy", "stream"))


class _SyncServer(_OnLine):
    execute = _after_begin("execute")


# -- async: the same with await --------------------------------------------------------------------


class _Async(_OnLine):
    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        line, context, result = self._line, None, self
        if not line.is_sent_as_is(query, params):
            context, options = line.context, {**line.options, **options}
            if context is None:
                context = self.connection.pipeline()
                line.begin_pipeline(context, await context.__aenter__())
        try:
            result = await self._base.execute(self, query, params, **options)
        except BaseException as error:
            if line.fails_at_once(error):
                if context is not None:
                    await context.__aexit__(type(error), error, error.__traceback__)
                raise
        if context is not None and line.completes_trip():
            try:
                await context.__aexit__(None, None, None)
            except BaseException as error:
                if line.fails_at_once(error):
                    raise
            line.end_pipeline()
        return result

    async def executemany(self, *args: Any, **options: Any) -> Any:
        await result_of(self._begin())
        return await self._base.executemany(self, *args, **options)

    @asynccontextmanager
    async def copy(self, *args: Any, **options: Any) -> Any:
        await result_of(self._begin())
        async with self._base.copy(self, *args, **options) as copy:
            yield copy

    async def stream(self, *args: Any, **options: Any) -> Any:
        await result_of(self._begin())
        async for record in self._base.stream(self, *args, **options):
            yield record


class _AsyncServer(_OnLine):
    async def execute(self, *args: Any, **options: Any) -> Any:
        await result_of(self._begin())
        return await self._base.execute(self, *args, **options)


# -- a connection and its classes ----------------------------------------------------------------


def open_line(
    connection: Connection,
    *,
    limit: bytes | None = None,
    note_trip: NoteTrip | None = None,
) -> Line | None:
    """Return the line of a connection whose transaction begins; ``None`` if it has begun.

    ``limit`` is sent before the last statements. ``note_trip`` gets the time of a trip with BEGIN.
    """
    fairy = connection.connection
    adapted, driver = fairy.dbapi_connection, fairy.driver_connection
    assert adapted is not None and driver is not None
    if driver.autocommit or driver.pgconn.transaction_status != IDLE:
        return None
    if not isinstance(driver.cursor_factory, type):
        return None  # a function of the application, from which no class can derive
    line = Line(driver, connection.default_isolation_level, limit, note_trip)
    factories = driver.cursor_factory, driver.server_cursor_factory
    undo_at_checkin(connection, partial(_put_back, line, factories, connection.info))
    connection.info[BEGINS] = line
    adapted.autocommit = True
    driver.cursor_factory = partial(_derived(factories[0], _Sync, _Async), line)
    driver.server_cursor_factory = partial(_derived(factories[1], _SyncServer, _AsyncServer), line)
    return line


def _put_back(line: Line, factories: tuple[Any, Any], info: Any, adapted: Any) -> None:
    """Return the connection to its pool, idle: its next user begins as usual."""
    del info[BEGINS]
    line.driver.cursor_factory, line.driver.server_cursor_factory = factories
    adapted.autocommit = False


@lru_cache(maxsize=64)
def _derived(base: type[Any], sync: type[Any], waits: type[Any]) -> Any:
    """Return the class of cursors over ``base``; its first argument is the line."""
    mixin = waits if inspect.iscoroutinefunction(base.execute) else sync
    name, more = f"Pipelined{base.__name__}", {"__module__": __name__, "_base": base}
    return type(name, (mixin, base), more)


# -- the columns of a result, described once -------------------------------------------------------
#
# SQLAlchemy reads the cursor's ``description`` after every SELECT, for which psycopg makes an
# object for each column: a twentieth of a unit's time. SQLAlchemy needs it for the first result
# of a query only, and later takes the columns from the compiled query. So the description is
# kept there as well.

#: An attribute of a compiled query: the strategy that fetches its results.
_FETCHED = "_optilock_fetched"


_listening: WeakSet[Dialect] = WeakSet()


def describe_once(dialect: Dialect) -> None:
    """Describe this engine's results of optilock's own queries once from here on."""
    if dialect.driver == "psycopg" and dialect not in _listening:
        event.listen(dialect, "do_execute", _do_execute)
        _listening.add(dialect)


class _Described(CursorFetchStrategy):
    """SQLAlchemy's way to fetch rows, with the description of the first result."""

    __slots__ = ("_columns", "_first")

    def __init__(self, cursor: Any, compiled: Any) -> None:
        self._columns: Sequence[Any] = ()
        self._first = cursor, compiled

    @property
    def alternate_cursor_description(self) -> Sequence[Any]:  # type: ignore[override]
        """The columns, read after the first execution and kept."""
        if not self._columns:
            cursor, compiled = self._first
            self._columns, self._first = [tuple(one) for one in cursor.description], (None, None)
            setattr(compiled, _FETCHED, self)
        return self._columns


def _do_execute(cursor: Any, statement: str, params: Any, context: Any) -> None:
    """Set the strategy, and leave the execution to SQLAlchemy and other listeners."""
    if context is not None and DESCRIBED_ONCE in context.execution_options:
        compiled = context.compiled
        fetched = getattr(compiled, _FETCHED, None)
        context.cursor_fetch_strategy = fetched or _Described(cursor, compiled)


# -- the statements of a queue ---------------------------------------------------------------------
#
# SQLAlchemy takes longer for a statement than psycopg, and in asyncio twice as long. So a queue
# uses psycopg's cursor on a connection that it keeps, and SQLAlchemy everywhere else: on the
# connection of the caller's session, with another driver, and where a listener or a log is to see
# the statements.


class OwnStatement:
    """A statement of a queue; its parameters and columns need no conversion with psycopg."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._sql = ""

    def rows(self, connection: Connection, given: Mapping[str, Any]) -> list[Any]:
        """Return all rows; without listeners they are plain tuples."""
        if not _goes_directly(connection):
            return list(connection.execute(self._statement, given).all())
        rows: list[Any] = self._sent(connection, given, _rows_of)
        return rows

    def count(self, connection: Connection, given: Mapping[str, Any]) -> int:
        """Return the number of rows that were written."""
        if not _goes_directly(connection):
            return int(connection.execute(self._statement, given).rowcount)
        count: int = self._sent(connection, given, _count_of)
        return count

    def _sent(
        self, connection: Connection, given: Mapping[str, Any], answer: Callable[[Any], Any]
    ) -> Any:
        dialect = connection.dialect
        sql = self._sql = self._sql or str(self._statement.compile(dialect=dialect))
        cursor: Any = None
        try:
            driver: Any = connection.connection.driver_connection
            cursor = driver.cursor()
            if not dialect.is_async:
                return answer(cursor.execute(sql, given))
            from sqlalchemy.util.concurrency import await_only

            return await_only(_awaited(cursor, sql, given, answer))
        except BaseException as error:
            raise_as_of(connection, error, sql, given)


def _goes_directly(connection: Connection) -> bool:
    dialect = connection.dialect
    return (
        dialect.driver == "psycopg"
        and KEPT in connection.get_execution_options()
        and not has_statement_listeners(connection, except_for=_do_execute)
    )


def _rows_of(cursor: Any) -> Any:
    return cursor.fetchall()


def _count_of(cursor: Any) -> Any:
    return cursor.rowcount


async def _awaited(
    cursor: Any, sql: str, given: Mapping[str, Any], answer: Callable[[Any], Any]
) -> Any:
    await cursor.execute(sql, given)
    return await result_of(answer(cursor))
