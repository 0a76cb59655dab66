"""An engine, of either kind or from what a user wrote on a command line.

Work on an engine is written once, for the sync one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from optilock.dialects import database_of
from optilock.errors import ConfigurationError, describe

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine


R = TypeVar("R")


def on_engine(engine: Engine | AsyncEngine, work: Callable[[Engine], R], *, call: str) -> R:
    """Do ``work``; with an async engine in an event loop of its own.

    The pool of an async engine is emptied afterwards: its connections belong to that loop.

    Raises:
        ConfigurationError: an async engine, and an event loop runs here already; or no engine at
            all. ``call`` is the function that got it.
    """
    if isinstance(engine, Engine):
        return work(engine)
    if not isinstance(getattr(engine, "sync_engine", None), Engine):
        raise ConfigurationError(
            f"{call}() takes an Engine or an AsyncEngine, not {describe(engine)}: write"
            " create_engine(url)."
        )
    if _loop_runs():
        raise ConfigurationError(
            f"{call}() was given an AsyncEngine inside of a running event loop, and cannot wait"
            " for it there: open a connection, and hand over the engine that it has inside of"
            f" run_sync: await connection.run_sync(lambda c: {call}(..., c.engine))."
        )
    return asyncio.run(_in_a_loop(engine, work))


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _in_a_loop(engine: AsyncEngine, work: Callable[[Engine], R]) -> R:
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(lambda sync: work(sync.engine))
    finally:
        await engine.dispose()


def engine_of(url: str, **options: Any) -> Engine:
    """A sync engine, with these options of ``create_engine``; nothing is connected yet.

    Raises:
        ConfigurationError: the text is no URL, its driver is not installed, or is async. The text
            is not repeated: it may hold a password.
    """
    try:
        engine = create_engine(make_url(url), **options)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise ConfigurationError(
            f"The database URL cannot be read ({type(error).__name__}): write for example"
            " postgresql+psycopg://me@host/database."
        ) from None
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"The driver {error.name} is not installed.") from None
    if engine.dialect.is_async:
        raise ConfigurationError(
            f"{engine.dialect.driver} is an async driver: name a sync one of the same database,"
            " for example psycopg, pymysql, or plain sqlite."
        )
    return engine


def require_answer(engine: Engine | AsyncEngine) -> None:
    """Connect once; a database file that is not there would be made.

    Raises:
        ConfigurationError: there is no such database. The password is not repeated.
    """
    where = engine.url.set(query={}).render_as_string()
    missing = database_of(engine.dialect).tables.missing_file(engine.url)
    if missing is not None:
        raise ConfigurationError(
            f"There is no database file {missing!r}. Nothing was made; look at the path, which is"
            " relative to the working directory after three slashes: sqlite:///shop.db."
        )
    try:
        on_engine(engine, lambda sync: sync.connect().close(), call="require_answer")
    except (SQLAlchemyError, TypeError, ValueError, OSError) as error:
        said = str(error).split("\n")[0]
        for secret in _secrets(engine):
            said = said.replace(secret, "***")
        raise ConfigurationError(
            f"The database {where} does not answer ({said}): look at the URL, and whether the"
            " server is running and lets this user in."
        ) from None


def _secrets(engine: Engine | AsyncEngine) -> Iterator[str]:
    """Yield the secrets of the URL that a driver might repeat."""
    given = {"password": engine.url.password, **engine.url.query}
    for name, value in given.items():
        if value and "pass" in name:
            yield from (value,) if isinstance(value, str) else value
