"""Async sessions that are stepped by hand: :func:`optilock.testing.interleave` for asyncio.

::

    from optilock.testing import interleave_async

    async def test_the_second_editor_is_told(AsyncSessionLocal):
        async with interleave_async(AsyncSessionLocal, "alice", "bob") as (alice, bob):
            page = await alice.do(lambda session: session.get_one(Page, 1))
            await bob.do(rename)                       # async def rename(session)
            await bob.commit()

            page.title = "Alice's title"
            with pytest.raises(ConcurrencyError):
                await alice.commit()

All sides run in the event loop of the test, each step in a task of its own. The tasks of a side
share one context, so that the units of two sides are two. ``start`` runs a step that will wait for
a lock. A step that has not ended after ``GRACE`` seconds counts as blocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from optilock.errors import ConfigurationError
from optilock.testing.interleave import PATIENCE, OutOfStep, check_names

S = TypeVar("S", bound=AsyncSession)
R = TypeVar("R")

#: Seconds after which a step counts as blocked: a step without a lock to wait for ends sooner.
GRACE = 0.3


class AsyncStep(Generic[R]):
    """A piece of work that a side is doing, or has done."""

    def __init__(self, name: str, task: asyncio.Task[R]) -> None:
        self._name = name
        self._task = task
        self._seen = False

    @property
    def ended(self) -> bool:
        """Whether the step has ended, with a value or an error."""
        return self._task.done()

    async def result(self, *, timeout: float = PATIENCE) -> R:
        """Wait for the end of the step, and return its value or raise its error.

        Raises ``OutOfStep`` when it takes longer than ``timeout`` seconds.
        """
        await asyncio.wait({self._task}, timeout=timeout)
        if not self.ended:
            raise OutOfStep(
                f"{self._name}'s step has not ended within {timeout:g} s: it waits for a lock of"
                " another side. Let that one commit first, or start() the step and ask for its"
                " result() later."
            )
        self._seen = True
        return self._task.result()

    async def blocked(self) -> AsyncStep[R]:
        """Wait until the step counts as blocked; raise ``OutOfStep`` when it ends instead."""
        await asyncio.wait({self._task}, timeout=GRACE)
        if self.ended:
            self._seen = True
            raise OutOfStep(f"{self._name}'s step was to wait for a lock, and has ended.")
        return self

    async def over(self) -> BaseException | None:
        """End a step that still runs; return its error if no caller has asked for its result."""
        if not self.ended:
            self._task.cancel()
        await asyncio.wait({self._task})
        unseen = not self._seen and not self._task.cancelled()
        return self._task.exception() if unseen else None


class AsyncSide(Generic[S]):
    """One of the sessions that work at the same time."""

    def __init__(self, name: str, block: AbstractAsyncContextManager[S]) -> None:
        self.name = name
        self.session: S
        self._block, self._left = block, False
        self._steps: list[AsyncStep[Any]] = []
        self._context = copy_context()

    async def enter(self) -> None:
        """Enter the block around the session."""
        self.session = await self._task(self._block.__aenter__())

    async def do(self, step: Callable[[S], Awaitable[R]], *, timeout: float = PATIENCE) -> R:
        """Run ``step`` with the session, and return its value or raise its error."""
        return await self.start(step).result(timeout=timeout)

    def start(self, step: Callable[[S], Awaitable[R]]) -> AsyncStep[R]:
        """Run ``step`` with the session, and do not wait for it.

        Raises ``OutOfStep`` when an earlier step still runs, or when the side has left.
        """
        if self._left:
            raise OutOfStep(f"{self.name} has left: there is no session to run a step with.")
        if self._steps and not self._steps[-1].ended:
            raise OutOfStep(f"{self.name} is still in an earlier step: ask for its result() first.")
        started = AsyncStep(self.name, self._task(step(self.session)))
        self._steps.append(started)
        return started

    async def flush(self) -> None:
        """Flush the session."""
        await self.do(lambda session: session.flush())

    async def commit(self) -> None:
        """Commit the session's transaction."""
        await self.do(lambda session: session.commit())

    async def rollback(self) -> None:
        """Roll the session's transaction back."""
        await self.do(lambda session: session.rollback())

    async def leave(self) -> None:
        """End the block around the session: a unit of work commits, a plain session is closed."""
        self._left = True
        await self._task(self._block.__aexit__(None, None, None))

    async def abandon(self) -> list[BaseException]:
        """End the block as an error would; return the errors that no step has shown."""
        errors = [await step.over() for step in self._steps]
        if not self._left:
            self._left, error = True, _Abandoned()
            with suppress(_Abandoned):
                await self._task(self._block.__aexit__(_Abandoned, error, None))
        return [error for error in errors if error is not None]

    def _task(self, work: Awaitable[R]) -> asyncio.Task[R]:
        """Return a task that runs in the context of the side."""

        async def run() -> R:
            return await work

        return asyncio.get_running_loop().create_task(run(), context=self._context)


class _Abandoned(BaseException):
    """Leaves the block of a side whose test is over."""


@asynccontextmanager
async def interleave_async(
    sessions: Callable[[], AbstractAsyncContextManager[S]] | AsyncEngine, *names: str
) -> AsyncIterator[tuple[AsyncSide[S], ...]]:
    """Make one :class:`AsyncSide` for each name, with a session of its own.

    Args:
        sessions: an ``async_sessionmaker``, an ``AsyncEngine``, or a function that makes an async
            context manager with a session in it: ``lambda: unit_of_work(AsyncSessionLocal)``.

    Raises:
        ConfigurationError: there are no names, two are equal, or ``sessions`` makes no sessions.
    """
    check_names("interleave_async", names)
    engine = sessions
    make: Any = (lambda: AsyncSession(engine)) if isinstance(engine, AsyncEngine) else sessions
    sides: list[AsyncSide[S]] = []
    unseen: list[BaseException] = []
    try:
        for name in names:
            block = make()
            if not isinstance(block, AbstractAsyncContextManager):
                raise ConfigurationError(
                    f"interleave_async() was given something that makes {type(block).__name__!r}:"
                    " give it an async_sessionmaker or an AsyncEngine; for sync sessions write"
                    " interleave()."
                )
            side = AsyncSide(name, block)
            await side.enter()
            sides.append(side)
        yield tuple(sides)
    finally:
        for side in sides:
            unseen += await side.abandon()
    for error in unseen:
        raise error
