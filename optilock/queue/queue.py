"""A queue for programs with threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from optilock.errors import ConfigurationError, described
from optilock.queue.base import ATTEMPTS, Calls, Work
from optilock.queue.connections import Connections
from optilock.queue.limits import Duration, count, milliseconds
from optilock.queue.messages import Draft, Message, Metrics, Received, Sent
from optilock.queue.operations import KEEP
from optilock.queue.waiting import Asking, Listening, Waiter
from optilock.queue.worker import Worker
from optilock.queue.worker_state import Settings, backoff, seconds

__all__ = ["Queue"]

R = TypeVar("R")


class Queue(Calls):
    """Messages that each go to one receiver at a time, in a table: see :mod:`optilock.queue`."""

    def __init__(self, engine: Any, name: str, **options: Any) -> None:
        super().__init__(engine, name, **options)
        if hasattr(engine, "sync_engine"):
            raise ConfigurationError("Queue takes an Engine; with an AsyncEngine, use AsyncQueue.")
        self.connections = Connections(engine, self._operations.store, keeps=self._keeps)
        self._waiters: list[Waiter] = []

    def _run(self, work: Work[R], session: Session | Connection | None = None) -> R:
        if session is not None:
            return work(_connection_of(session), True)
        for _ in range(ATTEMPTS - 1):
            try:
                return self._once(work)
            except DBAPIError as error:
                if not self._again(error, work):
                    raise
        return self._once(work)

    def _once(self, work: Work[R]) -> R:
        with self.connections.lent() as connection:
            try:
                return work(connection, False)
            except DBAPIError as error:
                self._require_tables(connection, error)
                raise

    def close(self) -> None:
        """Give back the connections that the queue keeps. It can be used again."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.close()
        self.connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- sending ---------------------------------------------------------------------------------

    def send(
        self,
        body: Any,
        *,
        session: Session | Connection | None = None,
        delay: Duration = 0,
        ttl: Duration | None = KEEP,
        headers: Any = None,
        group: str | None = None,
        dedup: str | None = None,
    ) -> Sent:
        """Put a message into the queue; with ``session=``, when the session commits.

        Raises:
            ConfigurationError: the body is nothing that JSON has, or an option is out of range.
            MessageTooLarge: it is longer than ``max_bytes``.
        """
        draft = Draft(body, delay=delay, ttl=ttl, headers=headers, group=group, dedup=dedup)
        return self._run(self._sending([draft]), session)[0]

    def send_many(
        self, messages: Iterable[Any], *, session: Session | Connection | None = None
    ) -> list[Sent]:
        """Send bodies, or :class:`~optilock.queue.Draft` with options: all of them, or none."""
        return self._run(self._sending(messages), session)

    # -- receiving -------------------------------------------------------------------------------

    def receive(
        self,
        n: int = 1,
        *,
        visibility: Duration | None = None,
        wait: Duration = 0,
        done: Iterable[Message] = (),
    ) -> Received:
        """Up to ``n`` messages, hidden from others for ``visibility`` seconds.

        Those in ``done`` are deleted first, on PostgreSQL in the same trip. Where there is no
        message, ``wait`` so many seconds for the first.
        """
        left = milliseconds("wait", wait) / 1000
        found = self._run(self._receiving(n, visibility, done))
        if found or not left:
            return found
        expired, end = found.expired, time.monotonic() + left
        waiter = self._taken_waiter()
        try:
            while not found and (left := end - time.monotonic()) > 0:
                waiter.wait(left)
                found = self._run(self._receiving(n, visibility, ()))
        except BaseException:
            waiter.close()
            raise
        waiter.reset()
        self._waiters.append(waiter)
        return Received(found, expired)

    def _taken_waiter(self) -> Waiter:
        try:
            return self._waiters.pop()
        except IndexError:
            return self.waiter()

    def waiter(self) -> Waiter:
        """Something that waits for messages of this queue: see :mod:`optilock.queue.waiting`."""
        store = self._operations.store
        listening = Listening.opened(self.engine, store) if self._listen else None
        return listening or Asking(self.connections, store)

    def peek(self, n: int = 1) -> list[Message]:
        """Up to ``n`` messages that wait, without receiving them."""
        count("n", n)
        return self._run(lambda connection, inside: self._operations.peek(connection, n))

    def pop(self, n: int = 1) -> list[Message]:
        """Receive and delete: for messages that may be lost with whoever has them."""
        count("n", n)
        return self._run(lambda connection, inside: self._operations.pop(connection, n))

    # -- what becomes of a message ---------------------------------------------------------------

    def delete(
        self, *messages: Message | Sent, session: Session | Connection | None = None
    ) -> None:
        """The messages are done; with ``session=``, when the session commits.

        Raises:
            MessageNotFound: it is not there any more.
            ReceiptExpired: it was given to somebody else. The other messages are deleted.
        """
        self._run(self._deleting(messages, archive=False), session)

    def archive(
        self, *messages: Message | Sent, session: Session | Connection | None = None
    ) -> None:
        """The messages are done, and are kept in the archive."""
        self._run(self._deleting(messages, archive=True), session)

    def update(
        self,
        message: Any,
        *,
        visibility: Duration,
        body: Any = KEEP,
        session: Session | Connection | None = None,
    ) -> Any:
        """Hide the message for longer, or give it back (``visibility=0``); change its body.

        The message that comes back has a new receipt, and the old one is not good any more.
        """
        return self._run(self._updating(message, visibility, body), session)

    def fail(
        self,
        message: Message,
        error: object,
        *,
        delay: Duration = 0,
        session: Session | Connection | None = None,
    ) -> bool:
        """Give the message back and note why; ``True``: it was the last time, it is dead now."""
        return self._run(self._failing(message, error, delay), session)

    def beat(self, messages: Iterable[Message], *, visibility: Duration | None = None) -> set[int]:
        """Hide messages for longer, with the receipts that they have; the ids of those still ours.

        A heartbeat: unlike ``update`` it takes several, and waits for nobody who is deleting one.
        """
        return self._run(self._beating(messages, visibility))

    def give_back(self, messages: Iterable[Message]) -> None:
        """Messages that nobody has begun with can be received at once, and were never received."""
        self._run(self._giving_back(messages))

    # -- workers ---------------------------------------------------------------------------------

    def worker(
        self,
        handler: Callable[..., object],
        *,
        concurrency: int = 1,
        batch: int = 10,
        sessions: Any = None,
        heartbeat: bool = True,
        retry: Callable[[int], float] = backoff,
        grace: Duration = 25,
        timeout: Duration | None = None,
        signals: bool = True,
    ) -> Worker:
        """A loop that hands each message to ``handler(message)``: see :mod:`optilock.queue.worker`.

        With ``sessions``, to ``handler(message, session)``, in the transaction that deletes it.
        """
        limit = None if timeout is None else seconds("timeout", timeout)
        settings = Settings(
            concurrency, batch, heartbeat, retry, seconds("grace", grace), limit, signals
        )
        return Worker(self, handler, sessions, settings)

    # -- all of them -----------------------------------------------------------------------------

    @cached_property
    def dead_letters(self) -> Queue:
        """The messages that were received too often, as a queue; it has our connections."""
        dead = Queue(self.engine, self._dead.name, **self._options_of_dead())
        dead.connections = self.connections
        return dead

    def redrive(self, n: int = 1) -> int:
        """Put up to ``n`` dead letters into the queue again; how many."""
        count("n", n)
        work = self._operations.redrive
        return self._run(lambda connection, inside: work(connection, self._dead, n))

    def purge(self, *, expired: bool = False) -> int:
        """Delete all messages, or those that have expired; how many."""
        return self._run(lambda connection, inside: self._operations.purge(connection, expired))

    def metrics(self, exact: bool = False) -> Metrics:
        """How many messages wait, and for how long; counted up to 10,000 unless ``exact``."""
        return self._run(lambda connection, inside: self._operations.metrics(connection, exact))


def _connection_of(session: Any) -> Connection:
    if isinstance(session, Connection):
        return session
    if isinstance(getattr(session, "registry", None), object) and callable(
        getattr(session, "connection", None)
    ):
        found = session.connection()
        if isinstance(found, Connection):
            return found
    raise ConfigurationError(f"session takes a Session or a Connection, not {described(session)}.")
