"""A queue for programs with threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from optilock.coroutines import ThreadClass
from optilock.errors import ConfigurationError, describe
from optilock.queue.base import Calls
from optilock.queue.connections import Connections, Work
from optilock.queue.waiters import ListeningWaiter, PollingWaiter
from optilock.queue.worker import Worker

R = TypeVar("R")


class Queue(ThreadClass, Calls[Session | Connection, Callable[..., object], Worker]):
    """Messages in a table, each for one receiver at a time: see :mod:`optilock.queue`."""

    _worker = Worker

    def __init__(self, engine: Any, name: str, **options: Any) -> None:
        super().__init__(engine, name, **options)
        if hasattr(engine, "sync_engine"):
            raise ConfigurationError("Queue takes an Engine; with an AsyncEngine, use AsyncQueue.")
        self.connections = Connections(engine, self._operations.store, keeps=self._keeps)

    async def _run_inside(self, work: Work[R], session: Session | Connection) -> R:
        return work(_connection_of(session), True)

    def waiter(self) -> PollingWaiter | ListeningWaiter:
        """Return an object that waits for messages: see :mod:`optilock.queue.waiters`."""
        store = self._operations.store
        listening = ListeningWaiter.opened(self.engine, store) if self._listen else None
        return listening or PollingWaiter(self.connections, store)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _connection_of(session: Any) -> Connection:
    if isinstance(session, Connection):
        return session
    if callable(getattr(session, "connection", None)):
        found = session.connection()
        if isinstance(found, Connection):
            return found
    raise ConfigurationError(f"session takes a Session or a Connection, not {describe(session)}.")
