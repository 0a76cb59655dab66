"""The database of an exploration: its engine, the rows before each order, and the rows after it.

One connection of its own, in autocommit, reads the tables and asks for waits. For an AsyncEngine it
lives in an event loop in another thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from inspect import iscoroutinefunction
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from optilock._mapped import all_mappers
from optilock.dialects import database_of
from optilock.errors import ConfigurationError, describe
from optilock.testing.exploration.touches import Known
from optilock.testing.exploration.values import shown_value
from optilock.unit import forget_hot_rows

R = TypeVar("R")

#: The rows of each table, as texts in one order.
Rows = tuple[tuple[str, tuple[str, ...]], ...]


def engine_of(sessions: Any) -> Any:
    """Return the Engine or AsyncEngine that the sessions are bound to.

    Raises:
        ConfigurationError: there is not exactly one.
    """
    maker = getattr(sessions, "session_factory", sessions)
    for found in (sessions, getattr(maker, "kw", {}).get("bind")):
        if isinstance(getattr(found, "sync_engine", found), Engine):
            return found
    raise ConfigurationError(
        "sessions= needs a sessionmaker that is bound to one engine, or the engine. Got"
        f" {describe(sessions)}. Write sessionmaker(engine). Nothing was run."
    )


class Stage:
    """The parts that all orders of an exploration share; a context manager."""

    def __init__(
        self,
        engine: Any,
        reset: Callable[[], object],
        *,
        tables: Sequence[Any] | None,
        ignoring: Iterable[Any],
        invariant: Callable[[Session], object] | None,
    ) -> None:
        self.engine: Engine = getattr(engine, "sync_engine", engine)
        self.is_async = self.engine is not engine
        self.database = database_of(self.engine.dialect)
        self._given = engine
        self._reset, self._invariant = reset, invariant
        self._tables = None if tables is None else [_table(one) for one in tables]
        self._ignored = {_column(one) for one in ignoring}
        self._queries: list[tuple[sa.Table, sa.Select[Any]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Any = None
        self._stack = ExitStack()
        #: Threads that are no unit's and may send statements.
        self.threads = {threading.get_ident()}

    def __enter__(self) -> Stage:
        self._require_engine()
        with ExitStack() as stack:
            if self.is_async:
                self._loop = stack.enter_context(_running_loop(self.threads))
                self._connection = self._await(self._connect_async())
                stack.callback(lambda: self._await(self._connection.close()))
            else:
                self._connection = stack.enter_context(self._given.connect())
                self._connection.execution_options(isolation_level="AUTOCOMMIT")
            self._require_connections()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def forget_connections(self) -> None:
        """Let the pool close its connections, which have the settings of an exploration."""
        self.engine.dispose()

    async def _connect_async(self) -> Any:
        connection = await self._given.connect()
        return await connection.execution_options(isolation_level="AUTOCOMMIT")

    def _await(self, coroutine: Any) -> Any:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def do(self, work: Callable[[Connection], R]) -> R:
        """Do work on the connection of the exploration itself."""
        if self.is_async:
            found: R = self._await(self._connection.run_sync(work))
            return found
        return work(self._connection)

    def _require_connections(self) -> None:
        driver = self.do(lambda one: one.connection.dbapi_connection)
        if self.do(lambda _: self.database.watching.is_in_memory(driver)):
            raise ConfigurationError(
                "A database in memory belongs to one connection, and units that run at once need"
                " one each. Use a file. Nothing was run."
            )

    def _require_engine(self) -> None:
        if self.is_async and not isinstance(self.engine.pool, NullPool):
            raise ConfigurationError(
                "Async units run in an event loop each, and a connection belongs to one loop. Write"
                " create_async_engine(url, poolclass=NullPool). Nothing was run."
            )
        if not (self.database.watching.lock_question or self.database.watching.refuses_when_busy):
            raise ConfigurationError(
                f"optilock cannot read from {self.engine.dialect.name} which unit waits for a lock."
                " Explore on PostgreSQL, MariaDB or SQLite. Nothing was run."
            )

    # -- waits -------------------------------------------------------------------------------------

    def ask(self, numbers: Sequence[int]) -> frozenset[int] | None:
        """Return which of the connections wait for a lock."""

        def question(connection: Connection) -> frozenset[int] | None:
            with closing(connection.connection.cursor()) as cursor:
                return self.database.watching.who_waits(cursor, numbers)

        return self.do(question)

    # -- rows --------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Put the rows back, and forget which of them were hot."""
        forget_hot_rows()
        if iscoroutinefunction(self._reset):
            self._await(self._reset())
        else:
            self._reset()

    def choose_tables(self, met: Iterable[sa.Table]) -> Known:
        """Decide which tables are compared, and return the keys of the rows that they have now."""
        tables = self._tables
        if tables is None:
            schemas = {id(table.metadata): table.metadata for table in met}
            named = [one for metadata in schemas.values() for one in metadata.sorted_tables]
            tables = [table for table in named if self.do(_has(table))]
        if not tables:
            raise ConfigurationError(
                "The units send no statement of SQLAlchemy's own, so their tables are not known."
                " Write tables=[Account, ...]."
            )
        hidden = self._ignored | _versions()
        self._queries = []
        for table in tables:
            columns = [one for one in table.columns if _name(one) not in hidden]
            if columns:
                self._queries.append((table, sa.select(*columns)))
        return {table.fullname: self.do(_keys(table)) for table in tables}

    def rows(self) -> Rows:
        """Return the rows of the compared tables as they are stored."""
        return self.do(
            lambda connection: tuple(
                (table.fullname, _texts(table, connection.execute(query)))
                for table, query in self._queries
            )
        )

    def broken(self) -> str | None:
        """Return how the invariant is broken; None if it holds."""
        invariant = self._invariant
        if invariant is None:
            return None

        def work(connection: Connection) -> str | None:
            with Session(connection) as session:
                try:
                    holds = invariant(session)
                except AssertionError as error:
                    return str(error).split("\n", 1)[0] or "an assertion failed"
                return "it returned False" if holds is False else None

        return self.do(work)


@contextmanager
def _running_loop(threads: set[int]) -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="explore-loop", daemon=True)
    thread.start()
    assert thread.ident is not None
    threads.add(thread.ident)
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _texts(table: sa.Table, found: Iterable[Any]) -> tuple[str, ...]:
    return tuple(sorted(shown_value(tuple(row), table.name) for row in found))


def _keys(table: sa.Table) -> Callable[[Connection], frozenset[tuple[object, ...]]]:
    query = sa.select(*table.primary_key.columns)
    if not table.primary_key.columns:
        return lambda connection: frozenset()
    return lambda connection: frozenset(tuple(row) for row in connection.execute(query))


def _has(table: sa.Table) -> Callable[[Connection], bool]:
    return lambda connection: sa.inspect(connection).has_table(table.name, table.schema)


def _name(column: Any) -> str:
    return f"{column.table.fullname}.{column.name}"


def _versions() -> set[str]:
    """Versions of rows: they may be random or times, and say nothing that the row does not."""
    columns = [mapper.version_id_col for mapper in all_mappers()]
    stored = (base for column in columns if column is not None for base in column.base_columns)
    return {_name(column) for column in stored if isinstance(column.table, sa.Table)}


def _table(one: Any) -> sa.Table:
    found = one if isinstance(one, sa.Table) else getattr(one, "__table__", None)
    if not isinstance(found, sa.Table):
        raise ConfigurationError(
            f"tables= takes mapped classes and tables. Got {describe(one)}. Nothing was run."
        )
    return found


def _column(one: Any) -> str:
    if isinstance(one, str) and one.count("."):
        return one
    found = getattr(one, "property", None)
    column = found.columns[0] if found is not None and hasattr(found, "columns") else one
    if not isinstance(column, sa.Column) or column.table is None:
        raise ConfigurationError(
            f'ignoring= takes columns, such as Account.updated_at or "accounts.updated_at". Got'
            f" {describe(one)}. Nothing was run."
        )
    return _name(column)
