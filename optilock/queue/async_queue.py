"""A queue for asyncio: the calls of :class:`optilock.queue.Queue`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Self, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from optilock.dialects.connections import give_back, has_ended_idle
from optilock.errors import CommitOutcomeUnknown, ConfigurationError, OptilockError, described
from optilock.queue.async_waiting import AsyncAsking, AsyncListening
from optilock.queue.async_worker import AsyncWorker
from optilock.queue.base import ATTEMPTS, Calls, Work
from optilock.queue.connections import ALONE, FEW
from optilock.queue.limits import Duration, count, milliseconds
from optilock.queue.messages import Draft, Message, Metrics, Received, Sent
from optilock.queue.operations import KEEP
from optilock.queue.worker_state import Settings, backoff, seconds
from optilock.undocumented.connections import set_options

__all__ = ["AsyncQueue"]

R = TypeVar("R")
Caller = AsyncSession | AsyncConnection


class AsyncConnections:
    """Connections that a queue keeps, of one event loop: see :mod:`optilock.queue.connections`."""

    def __init__(self, engine: AsyncEngine, store: Any, *, keeps: bool) -> None:
        self._engine, self._store, self._keeps = engine, store, keeps
        self._idle: list[AsyncConnection] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[AsyncConnection]:
        connection = await self._taken() or await self._opened()
        try:
            yield connection
        except OptilockError as error:
            if isinstance(error, CommitOutcomeUnknown):
                await connection.run_sync(give_back)
            else:
                await self._put(connection)
            raise
        except BaseException as error:
            if not isinstance(error, Exception):  # cancelled in the middle of a statement
                await asyncio.shield(connection.invalidate())
            await asyncio.shield(connection.run_sync(give_back))
            raise
        await self._put(connection)

    async def _taken(self) -> AsyncConnection | None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # they belong to a loop that is over
            self._idle, self._loop = [], loop
        while self._idle:
            connection = self._idle.pop()
            driver = connection.sync_connection
            if driver is not None and not has_ended_idle(driver):
                return connection
            await connection.invalidate()
            await connection.run_sync(give_back)
        return None

    async def _opened(self) -> AsyncConnection:
        connection = await self._engine.connect()
        await connection.run_sync(set_options, ALONE)
        await connection.run_sync(self._store.prepare)
        return connection

    async def _put(self, connection: AsyncConnection) -> None:
        if self._keeps and not connection.invalidated and len(self._idle) < FEW:
            self._idle.append(connection)
        else:
            await connection.run_sync(give_back)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.run_sync(give_back)


class AsyncQueue(Calls):
    """:class:`optilock.queue.Queue` for an ``AsyncEngine``: same options, calls and errors."""

    def __init__(self, engine: AsyncEngine, name: str, **options: Any) -> None:
        super().__init__(engine, name, **options)
        if not isinstance(engine, AsyncEngine):
            raise ConfigurationError("AsyncQueue takes an AsyncEngine; with an Engine, use Queue.")
        self.connections = AsyncConnections(engine, self._operations.store, keeps=self._keeps)
        self._waiters: list[Any] = []

    async def _run(self, work: Work[R], session: Caller | None = None) -> R:
        if session is not None:
            return await (await _connection_of(session)).run_sync(work, True)
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._once(work)
            except DBAPIError as error:
                if not self._again(error, work):
                    raise
        return await self._once(work)

    async def _once(self, work: Work[R]) -> R:
        async with self.connections.lent() as connection:
            try:
                return await connection.run_sync(work, False)
            except DBAPIError as error:
                await connection.run_sync(self._require_tables, error)
                raise

    async def close(self) -> None:
        """Give back the connections that the queue keeps. It can be used again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            await waiter.close()
        await self.connections.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- sending ---------------------------------------------------------------------------------

    async def send(
        self,
        body: Any,
        *,
        session: Caller | None = None,
        delay: Duration = 0,
        ttl: Duration | None = KEEP,
        headers: Any = None,
        group: str | None = None,
        dedup: str | None = None,
    ) -> Sent:
        draft = Draft(body, delay=delay, ttl=ttl, headers=headers, group=group, dedup=dedup)
        return (await self._run(self._sending([draft]), session))[0]

    async def send_many(
        self, messages: Iterable[Any], *, session: Caller | None = None
    ) -> list[Sent]:
        return await self._run(self._sending(messages), session)

    # -- receiving -------------------------------------------------------------------------------

    async def receive(
        self,
        n: int = 1,
        *,
        visibility: Duration | None = None,
        wait: Duration = 0,
        done: Iterable[Message] = (),
    ) -> Received:
        left = milliseconds("wait", wait) / 1000
        found = await self._run(self._receiving(n, visibility, done))
        if found or not left:
            return found
        expired, loop = found.expired, asyncio.get_running_loop()
        end = loop.time() + left
        waiter = self._waiters.pop() if self._waiters else await self.waiter()
        try:
            while not found and (left := end - loop.time()) > 0:
                await waiter.wait(left)
                found = await self._run(self._receiving(n, visibility, ()))
        except BaseException:
            await asyncio.shield(waiter.close())
            raise
        waiter.reset()
        self._waiters.append(waiter)
        return Received(found, expired)

    async def waiter(self) -> AsyncAsking | AsyncListening:
        store = self._operations.store
        listening = await AsyncListening.opened(self.engine, store) if self._listen else None
        return listening or AsyncAsking(self.connections, store)

    async def peek(self, n: int = 1) -> list[Message]:
        count("n", n)
        return await self._run(lambda connection, inside: self._operations.peek(connection, n))

    async def pop(self, n: int = 1) -> list[Message]:
        count("n", n)
        return await self._run(lambda connection, inside: self._operations.pop(connection, n))

    # -- what becomes of a message ---------------------------------------------------------------

    async def delete(self, *messages: Message | Sent, session: Caller | None = None) -> None:
        await self._run(self._deleting(messages, archive=False), session)

    async def archive(self, *messages: Message | Sent, session: Caller | None = None) -> None:
        await self._run(self._deleting(messages, archive=True), session)

    async def update(
        self,
        message: Any,
        *,
        visibility: Duration,
        body: Any = KEEP,
        session: Caller | None = None,
    ) -> Any:
        return await self._run(self._updating(message, visibility, body), session)

    async def fail(
        self,
        message: Message,
        error: object,
        *,
        delay: Duration = 0,
        session: Caller | None = None,
    ) -> bool:
        return await self._run(self._failing(message, error, delay), session)

    async def beat(
        self, messages: Iterable[Message], *, visibility: Duration | None = None
    ) -> set[int]:
        return await self._run(self._beating(messages, visibility))

    async def give_back(self, messages: Iterable[Message]) -> None:
        await self._run(self._giving_back(messages))

    # -- workers ---------------------------------------------------------------------------------

    def worker(
        self,
        handler: Callable[..., Awaitable[object]],
        *,
        concurrency: int = 1,
        batch: int = 10,
        sessions: Any = None,
        heartbeat: bool = True,
        retry: Callable[[int], float] = backoff,
        grace: Duration = 25,
        timeout: Duration | None = None,
        signals: bool = True,
    ) -> AsyncWorker:
        """A loop that awaits ``handler(message)`` for each: see :mod:`optilock.queue.worker`."""
        limit = None if timeout is None else seconds("timeout", timeout)
        settings = Settings(
            concurrency, batch, heartbeat, retry, seconds("grace", grace), limit, signals
        )
        return AsyncWorker(self, handler, sessions, settings)

    # -- all of them -----------------------------------------------------------------------------

    @cached_property
    def dead_letters(self) -> AsyncQueue:
        """The messages that were received too often, as a queue; it has our connections."""
        dead = AsyncQueue(self.engine, self._dead.name, **self._options_of_dead())
        dead.connections = self.connections
        return dead

    async def redrive(self, n: int = 1) -> int:
        count("n", n)
        work = self._operations.redrive
        return await self._run(lambda connection, inside: work(connection, self._dead, n))

    async def purge(self, *, expired: bool = False) -> int:
        work = self._operations.purge
        return await self._run(lambda connection, inside: work(connection, expired))

    async def metrics(self, exact: bool = False) -> Metrics:
        work = self._operations.metrics
        return await self._run(lambda connection, inside: work(connection, exact))


async def _connection_of(session: Any) -> AsyncConnection:
    if isinstance(session, AsyncConnection):
        return session
    if isinstance(session, AsyncSession):
        return await session.connection()
    raise ConfigurationError(
        f"session takes an AsyncSession or an AsyncConnection, not {described(session)}."
    )
