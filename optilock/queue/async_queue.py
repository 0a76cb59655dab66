"""A queue for asyncio: :class:`AsyncQueue`, with its connections, waiters and worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from optilock._undocumented.connections import set_options
from optilock.dialects.connections import give_back, has_driver_ended, has_ended_idle
from optilock.dialects.queue_sql import Messages
from optilock.errors import ConfigurationError, describe
from optilock.queue.base import Calls
from optilock.queue.connections import AUTOCOMMIT, KeptConnections, Work
from optilock.queue.handler_failures import Failure, failure_of
from optilock.queue.messages import Message
from optilock.queue.signals import stopping_in_loop
from optilock.queue.waiters import Ear, ListeningLoop, PollingLoop
from optilock.queue.worker import WorkerLoop
from optilock.queue.worker_state import IDLE, LOCK_FIRST, HandlerTimeout, Settings

R = TypeVar("R")


class AsyncConnections(KeptConnections[AsyncConnection]):
    """Connections for one event loop."""

    _loop: asyncio.AbstractEventLoop | None = None

    def home(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def _pop(self) -> AsyncConnection | None:
        loop = self.home()
        if self._loop is not loop:  # they belong to a loop that has ended
            self._idle, self._loop = [], loop
        return super()._pop()

    async def _open(self) -> AsyncConnection:
        return await _open_connection(self._engine)

    async def _call(self, connection: AsyncConnection, work: Callable[[Connection], R]) -> R:
        return await connection.run_sync(work)

    def _has_ended(self, connection: AsyncConnection) -> bool:
        driver = connection.sync_connection
        return driver is None or has_ended_idle(driver)

    async def _give_back_broken(self, connection: AsyncConnection, error: BaseException) -> None:
        if not isinstance(error, Exception):  # cancelled in the middle of a statement
            await asyncio.shield(connection.invalidate())
        await asyncio.shield(connection.run_sync(give_back))


async def _open_connection(engine: AsyncEngine) -> AsyncConnection:
    connection = await engine.connect()
    await connection.run_sync(set_options, AUTOCOMMIT)
    return connection


# -- waiting ---------------------------------------------------------------------------------------


class _Alarm:
    """Ends a sleep."""

    def __init__(self) -> None:
        self._rung, self._loop = asyncio.Event(), asyncio.get_running_loop()

    def ring(self) -> None:
        """Ring, from any thread."""
        with suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._rung.set)

    async def sleep(self, seconds: float) -> bool:
        """Sleep until it rings; return whether it did."""
        try:
            await asyncio.wait_for(self._rung.wait(), seconds)
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    def forget(self) -> None:
        self._rung.clear()

    def close(self) -> None:
        """Nothing is open."""


class AsyncPollingWaiter(PollingLoop):
    """Asks, in a task."""

    def __init__(self, connections: AsyncConnections, store: Messages) -> None:
        super().__init__(connections, store, _Alarm())


class AsyncListeningWaiter(ListeningLoop):
    """Listens, in a task, with psycopg or asyncpg."""

    def __init__(self, connection: AsyncConnection, store: Messages) -> None:
        super().__init__(connection, store)
        self._alarm = _Alarm()
        self._woken = False
        self._ear: Ear | None = None
        self._driver: Any = None

    @staticmethod
    async def opened(engine: AsyncEngine, store: Messages) -> AsyncListeningWaiter | None:
        """Return a waiter; ``None`` if there are no notifications."""
        if not store.notifies:
            return None
        connection = await _open_connection(engine)
        made = AsyncListeningWaiter(connection, store)
        try:
            if await connection.run_sync(store.can_listen):
                await made.listen()
                return made
        except BaseException:
            await made.close()
            raise
        await connection.close()
        return None

    async def listen(self) -> None:
        raw = await self._connection.get_raw_connection()
        driver: Any = raw.driver_connection
        await self._call(lambda connection: connection.detach())  # first: its pool gets it no more
        self._driver = driver
        if hasattr(driver, "add_listener"):  # asyncpg reads all the time
            try:
                await self._add_listeners(driver)
            except Exception as error:  # as SQLAlchemy does for what it sends
                raise DBAPIError(None, None, error) from error
        else:
            self._ear = Ear(driver)
            await self._call(self._store.listen)

    async def _add_listeners(self, driver: Any) -> None:
        ring, own = self._alarm.ring, driver.get_server_pid()
        channel = getattr(self._store, "channel")  # noqa: B009
        await driver.add_listener(channel, lambda _, pid, *__: None if pid == own else ring())
        driver.add_termination_listener(lambda _: ring())

    async def _call(self, work: Callable[[Connection], R]) -> R:
        result: R = await self._connection.run_sync(work)
        return result

    def _forget(self) -> None:
        if not self._woken:
            self._alarm.forget()
        if self._ear is not None:
            self._ear.heard = False

    async def _hear(self, seconds: float) -> None:
        ear, alarm = self._ear, self._alarm
        self._woken = False
        if ear is None:
            await alarm.sleep(seconds)
            return

        if ear.heard:
            return
        loop, number = asyncio.get_running_loop(), ear.fileno()

        def read() -> None:
            ear.read()
            if ear.heard:
                loop.remove_reader(number)  # at once: that of a lost connection can be reused
                alarm.ring()

        loop.add_reader(number, read)
        try:
            await alarm.sleep(seconds)
        finally:
            if not ear.heard:
                loop.remove_reader(number)

    def wake(self) -> None:
        self._woken = True
        self._alarm.ring()

    def has_ended(self) -> bool:
        if self._ear is not None:
            self._ear.read()  # what was notified is no sign of its end
        return has_driver_ended(self._driver)

    async def close(self) -> None:
        await asyncio.shield(self._close())

    async def _close(self) -> None:
        await self._call(give_back)
        if self._driver is not None:
            with suppress(Exception):  # it may be lost
                await self._driver.close()  # SQLAlchemy leaves a detached connection open


# -- workers ---------------------------------------------------------------------------------------


class AsyncWorker(WorkerLoop):
    """The loop of one event loop over one queue, with handlers in tasks.

    A handler that does not return in time is cancelled.
    """

    _pause = staticmethod(asyncio.sleep)
    _signals = staticmethod(stopping_in_loop)
    _patience = 1.0

    def __init__(
        self,
        queue: Any,
        handler: Callable[..., Awaitable[object]],
        sessions: Any,
        settings: Settings,
    ) -> None:
        super().__init__(queue, handler, sessions, settings)
        self._lock = asyncio.Lock()
        self._tasks: dict[asyncio.Task[Failure | None], Message] = {}
        self._left: set[asyncio.Task[Failure | None]] = set()

    async def run(self) -> None:
        """Work until it is stopped, or cancelled: then handlers are cancelled, too."""
        background = [asyncio.create_task(loop(asyncio.sleep)) for loop in self._background()]
        try:
            await self._run()
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)

    def _busy(self) -> int:
        return len(self._tasks)

    async def _sleep(self) -> None:
        if not self._stopped and not any(task.done() for task in self._tasks):
            await self._waiter.wait(IDLE)

    async def _collect(self, seconds: float) -> None:
        if self._tasks and seconds:
            await asyncio.wait(self._tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in self._tasks if task.done()]:
            message = self._tasks.pop(task, None)
            if message is None:
                continue  # it was given up in the meantime
            cancelled = task.cancelled()  # before it began
            failure = failure_of(asyncio.CancelledError()) if cancelled else task.result()
            await self._finished(message, failure)

    async def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._patience)
        for task in [task for task in self._tasks if task.done()]:
            self._held.let_go(self._tasks.pop(task))

    def _leave(self, message: Message) -> None:
        for task in [task for task, held in self._tasks.items() if held is message]:
            del self._tasks[task]
            task.cancel()
            self._left.add(task)  # the event loop keeps no task from being collected
            task.add_done_callback(self._left.discard)

    def _begin(self, message: Message) -> None:
        task = asyncio.create_task(self._work(message))
        self._tasks[task] = message
        task.add_done_callback(lambda _: self._waiter.wake())

    async def _work(self, message: Message) -> Failure | None:
        """Handle the message. An event loop would end at ``SystemExit``, so nothing is raised."""
        try:
            await self._handle(message)
        except BaseException as error:
            return failure_of(error)
        finally:
            self._transactions.over(message)
        return None

    async def _handle(self, message: Message) -> None:
        timeout = self._settings.timeout
        if self._sessions is None:
            async with _limited(timeout):
                await self._handler(message)
            return
        for_lock = None if timeout is None else timeout + LOCK_FIRST
        async with _limited(for_lock), self._sessions() as session, session.begin():
            await self._queue.delete(message, session=session)
            connection = await session.connection()
            await connection.run_sync(partial(self._transactions.begun, message))
            self._held.has_lock(message)
            async with _limited(timeout):
                await self._handler(message, session)


@asynccontextmanager
async def _limited(seconds: float | None) -> AsyncIterator[None]:
    """Raise ``HandlerTimeout`` when the block has lasted for so long."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise HandlerTimeout("The handler has not returned in time, and was cancelled.") from error


# -- the queue -------------------------------------------------------------------------------------


class AsyncQueue(
    Calls[AsyncSession | AsyncConnection, Callable[..., Awaitable[object]], AsyncWorker]
):
    """:class:`optilock.queue.Queue` for an ``AsyncEngine``: same options, calls and errors."""

    _worker = AsyncWorker

    def __init__(self, engine: AsyncEngine, name: str, **options: Any) -> None:
        super().__init__(engine, name, **options)
        if not isinstance(engine, AsyncEngine):
            raise ConfigurationError("AsyncQueue takes an AsyncEngine; with an Engine, use Queue.")
        self.connections = AsyncConnections(engine, self._operations.store, keeps=self._keeps)

    async def _run_inside(self, work: Work[R], session: AsyncSession | AsyncConnection) -> R:
        return await (await _connection_of(session)).run_sync(work, True)

    async def waiter(self) -> AsyncPollingWaiter | AsyncListeningWaiter:
        """Return an object that waits for messages: see :mod:`optilock.queue.waiters`."""
        store = self._operations.store
        listening = await AsyncListeningWaiter.opened(self.engine, store) if self._listen else None
        return listening or AsyncPollingWaiter(self.connections, store)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _connection_of(session: Any) -> AsyncConnection:
    if isinstance(session, AsyncConnection):
        return session
    if isinstance(session, AsyncSession):
        return await session.connection()
    raise ConfigurationError(
        f"session takes an AsyncSession or an AsyncConnection, not {describe(session)}."
    )
