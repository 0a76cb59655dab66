"""How to wait for messages without asking for them all the time.

Where the database has notifications (PostgreSQL) whoever waits **listens**. One of those who wait
has the *watch* of the queue: while somebody has it, whoever sends tells all who listen. Nobody asks
anything meanwhile. Who leaves hands the watch on. A sender whose transaction was open before has
told nobody, and while there is one nobody gets the watch: then we ask, as below.

Elsewhere, behind a pooler, and with a driver that hears nothing, whoever waits **asks**, at first
often, then once a second.

In both, the first look tells when the next message is due that is hidden now: one that is delayed,
or that somebody has received and who may be dead.
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import Connection, Engine

from optilock.dialects.connections import give_back
from optilock.dialects.queue_sql import Messages
from optilock.queue.connections import Connections, opened_alone

__all__ = ["AGAIN", "Asking", "Ear", "Listening", "Silent", "Waiter", "after", "pause"]

_SHORTEST, LONGEST = 0.02, 1.0
#: Seconds after which one looks again who trusts that somebody else has the watch.
AGAIN = 10.0


class Waiter(Protocol):
    """Waits until there may be messages."""

    def wait(self, seconds: float) -> None:
        """At most so long; less when there may be messages, or :meth:`wake` was called."""

    def wake(self) -> None:
        """From any thread, or from a signal's handler."""

    def reset(self) -> None:
        """Messages were received."""

    def close(self) -> None: ...


def pause(interval: float) -> tuple[float, float]:
    """How long to sleep now, and the next time."""
    return interval, min(LONGEST, interval * 2)


def first_pause() -> float:
    return _SHORTEST


def after(store: Messages, connection: Connection, interval: float) -> tuple[bool, float | None]:
    """Begin to wait: have we the watch; and for how long (``None``: until we are told)."""
    watch = store.begin_watch(connection)
    due = store.due(connection)  # only now: what was sent before the watch is told to nobody
    if watch:
        return True, due
    longest = AGAIN if store.is_watched(connection) else interval
    return False, longest if due is None else min(due, longest)


class Alarm:
    """Ends a sleep. A signal's handler may ring it, which a ``threading.Event`` does not bear."""

    def __init__(self) -> None:
        self._in, self._out = socket.socketpair()
        self._in.setblocking(False)
        self._out.setblocking(False)

    def ring(self) -> None:
        with suppress(OSError):  # it has been ringing for a while; or it is over
            self._in.send(b"x")

    def sleep(self, seconds: float, *others: Any) -> tuple[bool, bool]:
        """Did it ring; and is there something to read of another."""
        ready, _, _ = select.select([self._out, *others], [], [], max(0.0, seconds))
        rang = self._out in ready
        if rang:
            with suppress(OSError):
                self._out.recv(10_000)
        return rang, any(other in ready for other in others)

    def close(self) -> None:
        self._in.close()
        self._out.close()


class Silent:
    """Stands in until there is a connection again."""

    def wait(self, seconds: float) -> None:
        """Not at all."""

    wake = reset = close = lambda self: None


class Asking:
    """Asks, less and less often."""

    def __init__(self, connections: Connections, store: Messages) -> None:
        self._connections = connections
        self._store = store
        self._alarm = Alarm()
        self.reset()

    def reset(self) -> None:
        self._interval = _SHORTEST
        self._due: float | None = None

    def wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            now, self._interval = pause(self._interval)
            if self._due is not None:
                now = min(now, max(self._due, 0))
            if self._alarm.sleep(min(now, left))[0]:
                break
            with self._connections.lent() as connection:
                self._due = self._store.due(connection)
            if self._due is not None and self._due <= 0:
                break

    def wake(self) -> None:
        self._alarm.ring()

    def close(self) -> None:
        self._alarm.close()


class Ear:
    """What psycopg's connection has heard."""

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
        """What has come while no statement was sent."""
        try:
            self.driver.pgconn.consume_input()
            while (notify := self.driver.pgconn.notifies()) is not None:
                self.heard = self.heard or notify.be_pid != self._own
        except Exception:  # the connection is lost: the next statement says so
            self.heard = True

    def close(self) -> None:
        self.driver.remove_notify_handler(self._hear)


class Listening:
    """Listens, on a connection of its own."""

    def __init__(self, connection: Connection, store: Messages) -> None:
        self._connection = connection
        self._store = store
        self._ear = Ear(connection.connection.driver_connection)
        connection.detach()
        store.listen(connection)
        self._alarm = Alarm()
        self._interval = _SHORTEST

    @staticmethod
    def opened(engine: Engine, store: Messages) -> Listening | None:
        """``None`` where nothing is heard."""
        if not store.notifies:
            return None
        connection = opened_alone(engine)
        driver = connection.connection.driver_connection
        if not hasattr(driver, "add_notify_handler") or not store.can_listen(connection):
            connection.close()
            return None
        return Listening(connection, store)

    def reset(self) -> None:
        self._interval = _SHORTEST

    def wait(self, seconds: float) -> None:
        self._ear.heard = False
        watch, length = after(self._store, self._connection, self._interval)
        _, self._interval = pause(self._interval)
        length = seconds if length is None else min(length, seconds)
        if length > 0 and not self._ear.heard:
            self._select(length)
        if watch:
            self._store.end_watch(self._connection)

    def _select(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._ear.heard and (left := end - time.monotonic()) > 0:
            rang, told = self._alarm.sleep(left, self._ear)
            if rang:
                return
            if told:
                self._ear.read()

    def wake(self) -> None:
        self._alarm.ring()

    def close(self) -> None:
        self._ear.close()
        give_back(self._connection)
        self._alarm.close()
