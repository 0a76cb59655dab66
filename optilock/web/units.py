"""One unit of work a request, as a generator that a framework's dependencies run.

::

    depend = session_of_request(SessionLocal, {"on_conflict": merge_fields})
    # a generator function; with an async_sessionmaker an async one

What stands after the ``yield`` is the COMMIT. A framework has to run it before the answer is sent,
or a conflict there would be a broken 200.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from sqlalchemy.orm import scoped_session

from optilock import UnitOfWork
from optilock.errors import ConfigurationError
from optilock.unit.sessions import is_async

__all__ = ["session_of_request"]


def session_of_request(
    sessions: Any, options: Mapping[str, Any]
) -> Callable[[], Iterator[Any] | AsyncIterator[Any]]:
    """A generator function that yields the session of a unit, and ends the unit when it goes on.

    Raises:
        ConfigurationError: ``sessions`` is bound to a thread or a task, or makes no sessions.
    """
    if isinstance(sessions, scoped_session) or hasattr(sessions, "scopefunc"):
        raise ConfigurationError(
            f"unit() got {type(sessions).__name__}, and the parts of one request run in several"
            " threads and tasks: give it the sessionmaker."
        )
    if is_async(sessions):
        from optilock.asyncio import AsyncUnitOfWork

        async def async_session() -> AsyncIterator[Any]:
            async with AsyncUnitOfWork(sessions, **options) as session:
                yield session

        return async_session

    def session() -> Iterator[Any]:
        with UnitOfWork(sessions, **options) as session:
            yield session

    return session
