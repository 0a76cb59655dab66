"""The async shell: the same units for AsyncSessions; the logic is the sync one (``run_sync``).

::

    from optilock import unit_of_work

    async with unit_of_work(AsyncSessionLocal) as session:
        (await session.get_one(Account, 42)).owner = "Ada"

A task that is cancelled while COMMIT runs waits for the database's answer before the cancellation
goes on. A note on the ``CancelledError`` has the unit's outcome.

SQLAlchemy's asyncio half needs greenlet (``pip install "optilock[asyncio]"``); the rest of optilock
does not, so this module is loaded only when it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, TypeVar, Unpack, overload

from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)

from optilock.errors import ConfigurationError
from optilock.exactly_once.hooks import call_hooks_async
from optilock.unit.cancellation import to_the_end
from optilock.unit.membership import Membership
from optilock.unit.options import UnitOptions, spelled_out
from optilock.unit.running_units import outside_units
from optilock.unit.sessions import is_async, make_async_session
from optilock.unit.transaction import OwnTransaction

AS = TypeVar("AS", bound=AsyncSession)
P = ParamSpec("P")
R = TypeVar("R")


class AsyncUnitOfWork(Membership, Generic[AS]):
    """What :func:`optilock.unit_of_work` gives for async sessions.

    ``sessions`` is an ``async_sessionmaker``, an ``async_scoped_session`` or an ``AsyncEngine``.
    Options, rules and errors are those of :class:`optilock.UnitOfWork`.
    """

    @overload
    def __init__(
        self: AsyncUnitOfWork[AS],
        sessions: async_sessionmaker[AS] | async_scoped_session[AS],
        **options: Unpack[UnitOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: AsyncUnitOfWork[AsyncSession],
        sessions: AsyncEngine,
        **options: Unpack[UnitOptions],
    ) -> None: ...
    def __init__(self, sessions: Any, **options: Any) -> None:
        if not is_async(sessions):
            raise ConfigurationError(
                f"AsyncUnitOfWork got {type(sessions).__name__}, which makes sync sessions: write"
                " `with unit_of_work(...)`, or give it an async_sessionmaker."
            )
        super().__init__(sessions, options)

    __signature__ = spelled_out(
        sessions="async_sessionmaker[AS] | async_scoped_session[AS] | AsyncEngine"
    )

    def __call__(
        self, function: Callable[Concatenate[AS, P], Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        """Return the coroutine function as a unit, which runs again if it must."""
        run: Callable[P, Coroutine[Any, Any, R]] = self._function(function, asynchronous=True)
        return run

    def __enter__(self) -> NoReturn:
        raise ConfigurationError(
            f"{type(self._sessions).__name__} makes async sessions: write `async with`. Nothing was"
            " sent."
        )

    def __exit__(self, *_: object) -> None:
        """Do nothing: the block is never entered."""

    async def __aenter__(self) -> AS:
        outer = self._outer()
        if outer is not None:
            self._session: Any = outer.public
            self._transaction = self._join(outer)
            await self._run(self._transaction.begin)
        else:
            self._session = make_async_session(self._sessions)
            own = OwnTransaction(
                self._session.sync_session,
                self._session,
                self._options,
                self._next_attempt,
                self._call,
            )
            self._transaction = own
            await self._run(own.begin)
            self._announce(own)
        session: AS = self._session
        return session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        raised = None
        try:
            if error is None:
                await self._run(self._transaction.prepare)
        except BaseException as failed:
            raised = failed
        try:
            await self._uninterrupted(error or raised)
        finally:
            self._over()
        if raised is not None:
            raise raised

    async def _run(self, step: Callable[..., None], *given: Any) -> None:
        await self._session.run_sync(lambda _: step(*given))

    async def _uninterrupted(self, error: BaseException | None) -> None:
        outcome = "committed" if isinstance(self._transaction, OwnTransaction) else _JOINED
        if error is not None:
            outcome = "rolled back"
        await to_the_end(self._complete(error), outcome)

    async def _complete(self, error: BaseException | None) -> None:
        """Leave the transaction, and call the functions that follow COMMIT outside of the unit."""
        try:
            await self._run(self._transaction.complete, error)
        finally:
            if (stored := self._stored) is not None:
                with outside_units():
                    await call_hooks_async(stored.hooks)


_JOINED = "left to the unit around it, which commits or rolls back"
