"""The same for asyncio: see :mod:`optilock.queue.waiting`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from optilock.dialects.queue_sql import Messages
from optilock.queue.connections import ALONE
from optilock.queue.waiting import Ear, after, first_pause, pause
from optilock.undocumented.connections import set_options

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

__all__ = ["AsyncAsking", "AsyncListening"]


class Lends(Protocol):
    def lent(self) -> Any: ...


class AsyncAsking:
    """Asks, less and less often."""

    def __init__(self, connections: Lends, store: Messages) -> None:
        self._connections = connections
        self._store = store
        self._woken = asyncio.Event()
        self.reset()

    def reset(self) -> None:
        self._interval = first_pause()
        self._due: float | None = None

    async def wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            now, self._interval = pause(self._interval)
            if self._due is not None:
                now = min(now, max(self._due, 0))
            if await _is_set(self._woken, min(now, left)):
                break
            async with self._connections.lent() as connection:
                self._due = await connection.run_sync(self._store.due)
            if self._due is not None and self._due <= 0:
                break
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    async def close(self) -> None:
        """It has nothing of its own."""


class AsyncListening:
    """Listens, on a connection of its own: psycopg's, or asyncpg's."""

    def __init__(self, connection: AsyncConnection, store: Messages) -> None:
        self._connection = connection
        self._store = store
        self._told = asyncio.Event()
        self._woken = False
        self._interval = first_pause()
        self._ear: Ear | None = None
        self._driver: Any = None

    @staticmethod
    async def opened(engine: AsyncEngine, store: Messages) -> AsyncListening | None:
        """``None`` where nothing is heard."""
        if not store.notifies:
            return None
        connection = await engine.connect()
        await connection.run_sync(set_options, ALONE)
        if not await connection.run_sync(store.can_listen):
            await connection.close()
            return None
        made = AsyncListening(connection, store)
        await made.listen()
        return made

    async def listen(self) -> None:
        raw = await self._connection.get_raw_connection()
        driver: Any = raw.driver_connection
        self._driver = driver
        if hasattr(driver, "add_listener"):  # asyncpg reads all the time
            own = driver.get_server_pid()
            channel = getattr(self._store, "channel")  # noqa: B009
            await driver.add_listener(
                channel, lambda _, pid, *__: None if pid == own else self._told.set()
            )
        else:
            self._ear = Ear(driver)
            await self._connection.run_sync(self._store.listen)
        await self._connection.run_sync(lambda connection: connection.detach())

    def reset(self) -> None:
        self._interval = first_pause()

    async def wait(self, seconds: float) -> None:
        self._forget()
        begin = self._connection.run_sync
        watch, length = await begin(lambda c: after(self._store, c, self._interval))
        _, self._interval = pause(self._interval)
        length = seconds if length is None else min(length, seconds)
        if length > 0:
            await self._hear(length)
        self._woken = False
        if watch:
            await self._connection.run_sync(self._store.end_watch)

    def _forget(self) -> None:
        self._told.clear()
        if self._woken:
            self._told.set()
        if self._ear is not None:
            self._ear.heard = False

    async def _hear(self, seconds: float) -> None:
        if self._ear is None:
            await _is_set(self._told, seconds)
            return
        loop, ear = asyncio.get_running_loop(), self._ear

        def read() -> None:
            ear.read()
            if ear.heard:
                self._told.set()

        if ear.heard:
            return
        loop.add_reader(ear.fileno(), read)
        try:
            await _is_set(self._told, seconds)
        finally:
            loop.remove_reader(ear.fileno())

    def wake(self) -> None:
        self._woken = True
        self._told.set()

    async def close(self) -> None:
        await self._connection.close()
        await self._driver.close()  # SQLAlchemy leaves a detached one open


async def _is_set(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
