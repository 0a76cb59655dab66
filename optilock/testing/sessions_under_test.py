"""The sessions of an application, as the fixtures of :mod:`optilock.pytest_plugin` use them.

What waits for a database is the same for async sessions, and is awaited there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from optilock._coroutines import run_to_end
from optilock.errors import ConfigurationError
from optilock.testing.by_way_of import is_in_memory
from optilock.testing.interleave import Side, interleave
from optilock.testing.other_writers import apply, change_of

__all__ = ["SessionsUnderTest", "Sides", "call_in", "opened"]

#: A tuple of sides: entered by ``with`` for sync sessions, by ``async with`` for async ones.
Sides = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]


class SessionsUnderTest:
    """The application's session factory.

    Raises ``ConfigurationError`` for an object that makes no sessions.
    """

    def __init__(self, sessions: Any) -> None:
        self.sessions = sessions
        factory = getattr(sessions, "session_factory", sessions)
        of_async = hasattr(getattr(factory, "class_", None), "sync_session_class")
        self.is_async = of_async or hasattr(sessions, "sync_engine")
        if not (self.is_async or isinstance(sessions, (sessionmaker, scoped_session, Engine))):
            raise ConfigurationError(
                f"The fixture optilock_sessions returned {type(sessions).__name__!r}. Return a"
                " sessionmaker, a scoped_session or an Engine, or for async code an"
                " async_sessionmaker, an async_scoped_session or an AsyncEngine."
            )

    def engine(self, cls: type[Any] | None = None) -> Engine:
        """Return the engine of the sessions, or the one with the rows of ``cls``."""
        return self._bind(cls).engine

    def sides(self, *names: str, sessions: Any = None) -> Sides:
        """Return sides of these sessions; ``sessions`` makes others on the same database."""
        self._require_two_connections()
        return self._sides(self.sessions if sessions is None else sessions, *names)

    def reader(self, cls: type[Any]) -> Sides:
        """Return one side, with a plain session, to read stored values."""
        return self._sides(self._own_engine(cls), "reader")

    def change(self, cls: type[Any], key: object, values: dict[str, object]) -> Any:
        """Change a row in another session, and commit; awaited with async sessions."""
        call = f"somebody_else({getattr(cls, '__name__', cls)!s}, {key!r})"
        change = change_of(call, cls, key, values)
        self._require_two_connections()
        writer = self._sides(self._own_engine(cls), "somebody_else")

        async def write() -> None:
            async with opened(writer) as (side,):
                await call_in(side, lambda session: apply(session, change))

        return self.result_of(write())

    def result_of(self, work: Any) -> Any:
        """Return the coroutine, to be awaited; with sync sessions run it, and return its result."""
        return work if self.is_async else run_to_end(work)

    def _own_engine(self, cls: type[Any]) -> Any:
        if not self.is_async:
            return self.engine(cls)
        from sqlalchemy.ext.asyncio import AsyncEngine

        return AsyncEngine(self.engine(cls))

    def _sides(self, sessions: Any, *names: str) -> Sides:
        if not self.is_async:
            return interleave(sessions, *names)
        from optilock.testing.async_interleave import interleave_async

        return interleave_async(sessions, *names)

    def _bind(self, cls: type[Any] | None) -> Engine | Connection:
        found = getattr(self.sessions, "sync_engine", self.sessions)
        if isinstance(found, Engine):
            return found
        session = getattr(self.sessions, "session_factory", self.sessions)()
        sync: Session = getattr(session, "sync_session", session)
        try:
            return sync.get_bind() if cls is None else sync.get_bind(cls)
        finally:
            sync.close()

    def _require_two_connections(self) -> None:
        try:
            bind = self._bind(None)
        except UnboundExecutionError:  # an engine for each class
            return
        if isinstance(bind, Connection):
            raise ConfigurationError(
                "The fixture optilock_sessions makes sessions over one Connection, and two sessions"
                " that work at the same time need two. Bind them to an Engine, and delete the rows"
                " after the test instead of rolling back."
            )
        if is_in_memory(bind.url):
            raise ConfigurationError(
                "The fixture optilock_sessions has SQLite in memory. Such a database belongs to one"
                " connection, and two sessions need two. Use a file, or the fixture optilock_url."
            )


@asynccontextmanager
async def opened(block: Sides) -> AsyncIterator[Any]:
    """Enter sides of either kind."""
    if isinstance(block, AbstractAsyncContextManager):
        async with block as sides:
            yield sides
    else:
        with block as sides:
            yield sides


async def call_in(side: Any, function: Callable[[Session], Any]) -> Any:
    """Call a plain function with the session of a side of either kind."""
    if isinstance(side, Side):
        return side.do(function)
    return await side.do(lambda session: session.run_sync(function))
