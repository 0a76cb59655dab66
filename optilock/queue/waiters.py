"""Waiting for messages, without frequent queries.

Where the database has notifications (PostgreSQL), a waiter **listens**. One of the waiters has the
*watch* of the queue. While there is one, each sender notifies all listeners, and no waiter sends a
query. A waiter that ends passes the watch on. A transaction that was sending before the watch began
has notified no one. While there is such a transaction the watch cannot be taken, and waiters ask.

Elsewhere, behind a pooler, and with a driver without notifications, a waiter **asks**: at first
often, then once a second.

``wait(seconds)`` returns when there may be messages, or after :meth:`~PollingLoop.wake`, which any
thread and a signal's handler may call. ``reset()`` follows a receive, and makes waits short again.
A waiter that rests may lose its connection: :class:`RestingWaiters` asks it with ``has_ended()``.

Both begin with a query for the time at which the next hidden message becomes visible: one that is
delayed, or one whose receiver may be dead.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine

from optilock._coroutines import ThreadClass, dual_method, result_of
from optilock.dialects.connections import give_back, has_driver_ended
from optilock.dialects.queue_sql import Messages
from optilock.queue.connections import FEW, open_connection

R = TypeVar("R")

_SHORTEST, LONGEST = 0.02, 1.0
#: Seconds after which a waiter looks again that trusts another one to have the watch.
_LOOKS_AGAIN = 10.0


class _Interval:
    """The time until the next query: it doubles with each one."""

    def reset(self) -> None:
        self._interval = _SHORTEST

    def _next_interval(self) -> float:
        now, self._interval = self._interval, min(LONGEST, self._interval * 2)
        return now


class NoWaiter:
    """The waiter of a worker that has lost its connection: it does not wait."""

    wait = wake = reset = close = lambda self, *_: None


class RestingWaiters:
    """The waiters of a queue between two calls that wait: a few, as each has a connection."""

    def __init__(self) -> None:
        #: Each with its home: the process, or the event loop, that may use it.
        self._waiters: list[tuple[object, Any]] = []

    async def put(self, home: object, waiter: Any) -> None:
        waiter.reset()
        self._waiters.append((home, waiter))
        if len(self._waiters) > FEW and (last := self._pop(home)) is not None:
            await result_of(last.close())  # counted after it: several threads come at the same time

    async def take(self, home: object) -> Any:
        """Return a waiter that still listens; ``None`` if none rests."""
        while (waiter := self._pop(home)) is not None:
            if not waiter.has_ended():
                return waiter
            await result_of(waiter.close())
        return None

    async def close(self, home: object) -> None:
        while (waiter := self._pop(home)) is not None:
            await result_of(waiter.close())

    def _pop(self, home: object) -> Any:
        """Forget those of another home: a process that has forked, a loop that has ended."""
        with suppress(IndexError):
            while True:
                made_in, waiter = self._waiters.pop()
                if made_in == home:
                    return waiter
        return None


class PollingLoop(_Interval):
    """Asks, at growing intervals. ``alarm.sleep(seconds)`` returns whether it was rung."""

    def __init__(self, connections: Any, store: Messages, alarm: Any) -> None:
        self._connections = connections
        self._store = store
        self._alarm = alarm
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._due: float | None = None

    @dual_method
    async def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            pause = self._next_interval()
            if self._due is not None:
                pause = min(pause, max(self._due, 0))
            if await result_of(self._alarm.sleep(min(pause, left))):
                break
            self._due = await result_of(self._connections.run(self._store.due))
            if self._due is not None and self._due <= 0:
                break

    def wake(self) -> None:
        self._alarm.ring()

    def has_ended(self) -> bool:
        return False  # it has no connection of its own

    @dual_method
    async def close(self) -> None:
        self._alarm.close()


class ListeningLoop(_Interval):
    """Listens, on a connection of its own."""

    def __init__(self, connection: Any, store: Messages) -> None:
        self._connection = connection
        self._store = store
        self.reset()

    @dual_method
    async def wait(self, seconds: float) -> None:
        self._forget()
        watch, length = await self._call(self._begin)
        self._next_interval()
        length = seconds if length is None else min(length, seconds)
        if length > 0:
            await self._hear(length)
        if watch:
            await self._call(self._store.end_watch)

    def _begin(self, connection: Connection) -> tuple[bool, float | None]:
        """Return whether we have the watch, and the longest wait (``None``: no limit)."""
        watch = self._store.begin_watch(connection)
        due = self._store.due(connection)  # after it: earlier messages were notified to no one
        if watch:
            return True, due
        longest = _LOOKS_AGAIN if self._store.is_watched(connection) else self._interval
        return False, longest if due is None else min(due, longest)

    # -- in a shell ------------------------------------------------------------------------------

    def _forget(self) -> None:
        """Forget notifications from before this wait."""
        raise NotImplementedError

    async def _call(self, work: Callable[[Connection], R]) -> R:
        raise NotImplementedError

    async def _hear(self, seconds: float) -> None:
        """Wait for a notification, or for ``wake()``."""
        raise NotImplementedError


class Ear:
    """The notifications of a psycopg connection, without our own."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.heard = False
        self._own = driver.info.backend_pid
        driver.add_notify_handler(self._hear)

    def _hear(self, notify: Any) -> None:
        self.heard = self.heard or notify.pid != self._own

    def fileno(self) -> int:
        return int(self.driver.fileno())

    def read(self) -> None:
        """Read notifications that came while no statement was sent."""
        try:
            self.driver.pgconn.consume_input()
            while (notify := self.driver.pgconn.notifies()) is not None:
                self.heard = self.heard or notify.be_pid != self._own
        except Exception:  # the connection is lost: the next statement raises
            self.heard = True

    def close(self) -> None:
        self.driver.remove_notify_handler(self._hear)


# -- for threads -----------------------------------------------------------------------------------

#: Not ``select()``, which refuses the lines of a process that has more than a thousand files open;
#: and not one that needs a file itself.
_Selector: type[selectors.BaseSelector]
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)


class Alarm:
    """Ends a sleep. A signal's handler may ring it, unlike a ``threading.Event``."""

    def __init__(self) -> None:
        self._in, self._out = socket.socketpair()
        self._in.setblocking(False)
        self._out.setblocking(False)

    def ring(self) -> None:
        with suppress(OSError):  # it is full, or closed
            self._in.send(b"x")

    def sleep(self, seconds: float, *others: Any) -> bool:
        """Sleep until it rings, or until there is something to read from one of the others."""
        with _Selector() as selector:
            for line in (self._out, *others):
                selector.register(line, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(max(0.0, seconds))]
        rang = self._out in ready
        if rang:
            with suppress(OSError):
                self._out.recv(10_000)
        return rang

    def close(self) -> None:
        self._in.close()
        self._out.close()


class PollingWaiter(ThreadClass, PollingLoop):
    """Asks, in a thread."""

    def __init__(self, connections: Any, store: Messages) -> None:
        super().__init__(connections, store, Alarm())


class ListeningWaiter(ThreadClass, ListeningLoop):
    """Listens, in a thread, with psycopg."""

    def __init__(self, connection: Connection, store: Messages) -> None:
        super().__init__(connection, store)
        self._ear = Ear(connection.connection.driver_connection)
        connection.detach()
        store.listen(connection)
        self._alarm = Alarm()

    @staticmethod
    def opened(engine: Engine, store: Messages) -> ListeningWaiter | None:
        """Return a waiter; ``None`` if there are no notifications."""
        if not store.notifies:
            return None
        connection = open_connection(engine)
        driver = connection.connection.driver_connection
        try:
            if hasattr(driver, "add_notify_handler") and store.can_listen(connection):
                return ListeningWaiter(connection, store)
        except BaseException:
            give_back(connection)
            raise
        connection.close()
        return None

    def _forget(self) -> None:
        self._ear.heard = False

    async def _call(self, work: Callable[[Connection], R]) -> R:
        return work(self._connection)

    async def _hear(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._ear.heard and (left := end - time.monotonic()) > 0:
            if self._alarm.sleep(left, self._ear):
                return
            self._ear.read()

    def wake(self) -> None:
        self._alarm.ring()

    def has_ended(self) -> bool:
        self._ear.read()  # what was notified is no sign of its end
        return has_driver_ended(self._ear.driver)

    def close(self) -> None:
        self._ear.close()
        give_back(self._connection)
        self._alarm.close()
