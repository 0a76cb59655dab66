"""Cursors of psycopg that let something go with their statements (:mod:`line`), sync and async.

They derive from the class that the driver's connection has, so that an application's own class of
cursors keeps its ways. Where nothing goes along, ``execute`` is psycopg's own. What no pipeline can
carry (COPY, streams, cursors of the server), and ``executemany``, which has a pipeline of its own,
sends BEGIN first.
"""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import Connection

from optilock.dialects.connections import undo_with
from optilock.dialects.locks import BEGINS
from optilock.dialects.postgresql.line import IDLE, Line


class _OnLine:
    """What both kinds have in common; psycopg's own class comes after it."""

    connection: Any

    def __init__(self, line: Line, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._line = line


def _before(line: Line) -> str | None:
    """What has to be sent before something that has no room for it."""
    if line.goes_alone(None):
        return None
    return ";".join(command.decode() for command in line.commands_before())


# -- sync ----------------------------------------------------------------------------------------


class _BeginFirst(_OnLine):
    def _begin(self) -> None:
        before = _before(self._line)
        if before is not None:
            self._line.cursor(self.connection).execute(before)


class _Sync(_BeginFirst):
    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        line = self._line
        base: Any = super()
        if line.goes_alone(query, params):
            try:
                return base.execute(query, params, **options)
            except BaseException:
                line.stored = False
                raise
        options = {**line.options, **options}
        context = line.context
        if context is None:
            context = self.connection.pipeline()
            line.entered(context, context.__enter__())
        try:
            base.execute(query, params, **options)
        except Exception as error:
            line.failed(error)  # an error that leaves the pipeline would be logged as a second one
        except BaseException as error:
            line.interrupted()
            context.__exit__(type(error), error, error.__traceback__)
            raise
        if line.is_complete():
            try:
                context.__exit__(None, None, None)
            except Exception as error:
                line.failed(error)
            except BaseException:
                line.interrupted()
                raise
            line.left()
        return self

    def executemany(self, *args: Any, **options: Any) -> Any:
        self._begin()
        base: Any = super()
        return base.executemany(*args, **options)

    @contextmanager
    def copy(self, *args: Any, **options: Any) -> Any:
        self._begin()
        base: Any = super()
        with base.copy(*args, **options) as copy:
            yield copy

    def stream(self, *args: Any, **options: Any) -> Any:
        self._begin()
        base: Any = super()
        yield from base.stream(*args, **options)


class _SyncServer(_BeginFirst):
    def execute(self, *args: Any, **options: Any) -> Any:
        self._begin()
        base: Any = super()
        return base.execute(*args, **options)


# -- async: the same words with await ------------------------------------------------------------


class _BeginFirstAsync(_OnLine):
    async def _begin(self) -> None:
        before = _before(self._line)
        if before is not None:
            await self._line.cursor(self.connection).execute(before)


class _Async(_BeginFirstAsync):
    async def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        line = self._line
        base: Any = super()
        if line.goes_alone(query, params):
            try:
                return await base.execute(query, params, **options)
            except BaseException:
                line.stored = False
                raise
        options = {**line.options, **options}
        context = line.context
        if context is None:
            context = self.connection.pipeline()
            line.entered(context, await context.__aenter__())
        try:
            await base.execute(query, params, **options)
        except Exception as error:
            line.failed(error)  # an error that leaves the pipeline would be logged as a second one
        except BaseException as error:
            line.interrupted()
            await context.__aexit__(type(error), error, error.__traceback__)
            raise
        if line.is_complete():
            try:
                await context.__aexit__(None, None, None)
            except Exception as error:
                line.failed(error)
            except BaseException:
                line.interrupted()
                raise
            line.left()
        return self

    async def executemany(self, *args: Any, **options: Any) -> Any:
        await self._begin()
        base: Any = super()
        return await base.executemany(*args, **options)

    @asynccontextmanager
    async def copy(self, *args: Any, **options: Any) -> Any:
        await self._begin()
        base: Any = super()
        async with base.copy(*args, **options) as copy:
            yield copy

    async def stream(self, *args: Any, **options: Any) -> Any:
        await self._begin()
        base: Any = super()
        async for record in base.stream(*args, **options):
            yield record


class _AsyncServer(_BeginFirstAsync):
    async def execute(self, *args: Any, **options: Any) -> Any:
        await self._begin()
        base: Any = super()
        return await base.execute(*args, **options)


# -- a connection and its classes ----------------------------------------------------------------


def open_line(
    connection: Connection, *, limit: bytes | None = None, short: bool = False
) -> Line | None:
    """The line of a connection whose transaction begins; ``None`` if something was sent in it.

    ``limit`` is sent before the last statements. In a ``short`` unit BEGIN waits until something
    needs a transaction.
    """
    fairy = connection.connection
    adapted, driver = fairy.dbapi_connection, fairy.driver_connection
    assert adapted is not None and driver is not None
    if driver.autocommit or driver.pgconn.transaction_status != IDLE:
        return None
    if not isinstance(driver.cursor_factory, type):
        return None  # the application's own function: nothing that a class could be derived from
    line = Line(driver, connection.default_isolation_level, limit, short=short)
    factories = driver.cursor_factory, driver.server_cursor_factory
    undo_with(connection, partial(_put_back, line, factories, connection.info))
    connection.info[BEGINS] = line
    adapted.autocommit = True
    driver.cursor_factory = partial(_cursor_on(driver.cursor_factory), line)
    driver.server_cursor_factory = partial(_server_cursor_on(driver.server_cursor_factory), line)
    return line


def _put_back(line: Line, factories: tuple[Any, Any], info: Any, adapted: Any) -> None:
    """The connection goes back to its pool, idle: who gets it next begins as ever."""
    del info[BEGINS]
    line.driver.cursor_factory, line.driver.server_cursor_factory = factories
    adapted.autocommit = False


@lru_cache(maxsize=32)
def _cursor_on(base: type[Any]) -> Any:
    """The class of cursors over ``base``; it is made with the line first."""
    return _derived(_Async if inspect.iscoroutinefunction(base.execute) else _Sync, base)


@lru_cache(maxsize=32)
def _server_cursor_on(base: type[Any]) -> Any:
    """The same for cursors of the server."""
    mixin = _AsyncServer if inspect.iscoroutinefunction(base.execute) else _SyncServer
    return _derived(mixin, base)


def _derived(mixin: type[Any], base: type[Any]) -> type[Any]:
    return type(f"Pipelined{base.__name__}", (mixin, base), {"__module__": __name__})
