"""The calls of a queue, declared once for threads and for asyncio.

Each call checks its arguments, and makes ``work(connection, inside)`` of them. That runs on a
connection of the queue, or on that of the caller's session (``inside``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine
from sqlalchemy.pool import QueuePool

from optilock._coroutines import dual_method, result_of
from optilock._watched.guard.stored_work import note_sent
from optilock.dialects import database_of
from optilock.dialects.queue_sql import Messages, Place
from optilock.errors import ConfigurationError, describe
from optilock.queue.connections import (
    ENDING,
    SENDING,
    Caller,
    OnConnections,
    RepeatableWork,
    Work,
    run_once_only,
)
from optilock.queue.enclosing_units import separate_work
from optilock.queue.handler_failures import Failure, failure_of
from optilock.queue.message_operations import Operations
from optilock.queue.messages import (
    WEEK,
    Draft,
    Duration,
    Limits,
    Message,
    Metrics,
    Received,
    Sent,
    check_count,
    check_id,
    check_text,
    dead_letters_of,
    lifetime,
    milliseconds,
    receipt_of,
    require_receipts,
)
from optilock.queue.sending import KEEP
from optilock.queue.waiters import RestingWaiters
from optilock.queue.worker_state import Settings, backoff
from optilock.tables.queue import NAME, message_tables

R = TypeVar("R")
Handler = TypeVar("Handler")
WorkerT = TypeVar("WorkerT")


class Calls(OnConnections[Caller], Generic[Caller, Handler, WorkerT]):
    """The settings and calls of a queue."""

    _worker: Callable[[Any, Handler, Any, Settings], WorkerT]

    def __init__(
        self,
        engine: Any,
        name: str,
        *,
        tenant: str = "",
        visibility: Duration = 30,
        ttl: Duration | None = WEEK,
        max_receives: int | None = 5,
        dead_letters: str | None = None,
        dedup_window: Duration = 300,
        max_bytes: int = 1_048_576,
        table: str = NAME,
        schema: str | None = None,
        listen: bool = True,
        clock: ColumnElement[Any] | None = None,
    ) -> None:
        """``clock`` is a SQL expression of the current time in UTC, for tests."""
        sync = getattr(engine, "sync_engine", engine)
        if not isinstance(sync, Engine):
            raise ConfigurationError(
                f"A queue takes an Engine or an AsyncEngine, not {describe(engine)}."
            )
        self.engine = engine
        self.name = check_text("name", name)
        self.tenant = check_text("tenant", tenant, empty=True)
        self.tables = message_tables(table=check_text("table", table), schema=schema)
        self._listen = listen
        limits = Limits(
            visibility=milliseconds("visibility", visibility, least=0.001),
            ttl=lifetime(ttl),
            max_receives=None
            if max_receives is None
            else check_count("max_receives", max_receives),
            dead_letters=dead_letters_of(self.name, dead_letters),
            dedup_window=milliseconds("dedup_window", dedup_window),
            max_bytes=check_count("max_bytes", max_bytes, most=1 << 30),
        )
        place = Place(self.tables, self.tenant, self.name, clock)
        self._operations = Operations(database_of(sync.dialect).messages(place), limits)
        buried = replace(limits, max_receives=None)
        there = Place(self.tables, self.tenant, limits.dead_letters, clock)
        self._dead = Operations(database_of(sync.dialect).messages(there), buried)
        self._resting = RestingWaiters()
        # Another pool may give one connection to several callers, or have only one.
        self._keeps = isinstance(sync.pool, QueuePool) and sync.pool.size() != 1

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def store(self) -> Messages:
        """The statements of this queue."""
        return self._operations.store

    @property
    def visibility(self) -> float:
        """Seconds for which a message that is received is hidden."""
        return self._operations.limits.visibility / 1000

    @cached_property
    def dead_letters(self) -> Self:
        """The messages that were received too often, as a queue with the same connections."""
        messages = self.tables.messages
        dead = type(self)(
            self.engine,
            self._dead.name,
            tenant=self.tenant,
            max_receives=None,
            dead_letters=self._dead.name,
            visibility=self.visibility,
            table=messages.name,
            schema=messages.schema,
            listen=self._listen,
            clock=self._operations.store.place.clock,
        )
        dead.connections = self.connections
        return dead

    @dual_method
    async def close(self) -> None:
        """Give back the connections that the queue keeps. It can be used again."""
        await self._resting.close(self.connections.home())
        await result_of(self.connections.close())

    # -- sending ---------------------------------------------------------------------------------

    @dual_method
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
        """Put a message into the queue; with ``session=``, when the session commits.

        Raises:
            ConfigurationError: JSON cannot express the body, or an option is out of range.
            MessageTooLarge: it is longer than ``max_bytes``.
        """
        draft = Draft(body, delay=delay, ttl=ttl, headers=headers, group=group, dedup=dedup)
        return (await self._run(self._sending("send", [draft], session), session))[0]

    @dual_method
    async def send_many(
        self, messages: Iterable[Any], *, session: Caller | None = None
    ) -> list[Sent]:
        """Send bodies, or :class:`~optilock.queue.Draft` with options: all of them, or none."""
        return await self._run(self._sending("send_many", messages, session), session)

    def _sending(
        self, call: str, drafts: Iterable[Any], session: Caller | None
    ) -> Work[list[Sent]]:
        made = [one if isinstance(one, Draft) else Draft(one) for one in drafts]
        ready = [self._operations.ready(draft) for draft in made]
        if not ready:
            return lambda connection, inside: []

        def send(connection: Connection, inside: bool) -> list[Sent]:
            sent = self._operations.send(connection, ready, inside)
            if not inside and any(one.dedup is None for one in ready):
                note_sent(f"messages of the queue {self.name!r}")
            return sent

        work = self._separate(call, send) if session is None else send
        if all(one.dedup is not None for one in ready):
            return RepeatableWork(work)
        return run_once_only(SENDING.format(name=self.name), work)

    # -- receiving -------------------------------------------------------------------------------

    @dual_method
    async def receive(
        self,
        n: int = 1,
        *,
        visibility: Duration | None = None,
        wait: Duration = 0,
        done: Iterable[Message] = (),
    ) -> Received:
        """Return up to ``n`` messages, which are hidden from others for ``visibility`` seconds.

        The messages in ``done`` are deleted first, on PostgreSQL in the same round trip. If there
        is no message, ``wait`` so many seconds for the first.
        """
        left = milliseconds("wait", wait) / 1000
        found = await self._run(self._receiving(n, visibility, done))
        if found or not left:
            return found
        expired, end = found.expired, time.monotonic() + left
        waiter = await self._free_waiter()
        try:
            while not found and (left := end - time.monotonic()) > 0:
                await result_of(waiter.wait(left))
                found = await self._run(self._receiving(n, visibility, ()))
        except BaseException:
            await result_of(waiter.close())
            raise
        await self._resting.put(self.connections.home(), waiter)
        return Received(found, expired)

    def _receiving(
        self, n: int, visibility: Duration | None, done: Iterable[Message]
    ) -> Work[Received]:
        check_count("n", n)
        length, ended = self._length(visibility), list(done)
        operations = self._operations
        return lambda connection, inside: operations.receive(connection, n, length, ended)

    def _length(self, visibility: Duration | None) -> int:
        if visibility is None:
            return self._operations.limits.visibility
        return milliseconds("visibility", visibility, least=0.001)

    async def _free_waiter(self) -> Any:
        resting = await self._resting.take(self.connections.home())
        return resting or await result_of(self.waiter())

    def waiter(self) -> Any:
        """Return an object that waits for messages: see :mod:`optilock.queue.waiters`."""
        raise NotImplementedError

    @dual_method
    async def peek(self, n: int = 1) -> list[Message]:
        """Return up to ``n`` waiting messages, without receiving them."""
        check_count("n", n)
        return await self._run(lambda connection, inside: self._operations.peek(connection, n))

    @dual_method
    async def pop(self, n: int = 1) -> list[Message]:
        """Receive and delete messages. They are lost if their receiver dies."""
        check_count("n", n)
        return await self._run(lambda connection, inside: self._operations.pop(connection, n))

    # -- the end of a message --------------------------------------------------------------------

    @dual_method
    async def delete(self, *messages: Message | Sent, session: Caller | None = None) -> None:
        """Delete messages that are done; with ``session=``, when the session commits.

        Raises:
            MessageNotFound: a message is not in the queue any more.
            ReceiptExpired: another receiver got a message. The other messages are deleted.
        """
        await self._end("delete", messages, session)

    @dual_method
    async def archive(self, *messages: Message | Sent, session: Caller | None = None) -> None:
        """Move messages that are done to the archive."""
        await self._end("archive", messages, session)

    async def _end(self, call: str, messages: Any, session: Caller | None) -> None:
        require_receipts(messages)
        if not messages:
            return
        end = getattr(self._operations, call)
        work: Work[None] = lambda connection, inside: end(connection, messages, inside)  # noqa: E731
        if session is None:
            work = self._separate(call, work)
        await self._run(self._ending(work), session)

    def _separate(self, call: str, work: Work[R]) -> Work[R]:
        """Return work that commits on its own; a unit of work around it may refuse that."""
        return separate_work(
            getattr(self.engine, "sync_engine", self.engine), self.store, call, work
        )

    def _ending(self, work: Work[R]) -> Work[R]:
        return run_once_only(ENDING.format(name=self.name), work)

    @dual_method
    async def update(
        self,
        message: Any,
        *,
        visibility: Duration,
        body: Any = KEEP,
        session: Caller | None = None,
    ) -> Any:
        """Hide the message for longer, or give it back (``visibility=0``); change its body.

        Return the message with a new receipt. The old receipt is not valid any more.
        """
        require_receipts([message])
        length = milliseconds("visibility", visibility)

        def work(connection: Connection, inside: bool) -> Any:
            token = self._operations.update(connection, message, length, body, inside)
            changed = {} if body is KEEP or isinstance(message, Sent) else {"body": body}
            return replace(message, receipt=receipt_of(message.id, token), **changed)

        return await self._run(self._ending(work), session)

    @dual_method
    async def fail(
        self,
        message: Message,
        error: object,
        *,
        delay: Duration = 0,
        session: Caller | None = None,
    ) -> bool:
        """Give the message back and store the error; return ``True`` if it is a dead letter now."""
        failure = failure_of(error)
        return await self._run(self._failing(message, failure, delay), session)

    @dual_method
    async def fail_within(
        self, lock_wait: int, message: Message, failure: Failure, delay: Duration
    ) -> bool:
        """Fail the message, and wait for a lock no longer than ``lock_wait`` milliseconds."""
        return await self._run(self._failing(message, failure, delay, lock_wait))

    def _failing(
        self, message: Message, failure: Failure, delay: Duration, lock_wait: int | None = None
    ) -> Work[bool]:
        require_receipts([message])
        length = milliseconds("delay", delay)

        def work(connection: Connection, inside: bool) -> bool:
            fail = self._operations.fail
            return fail(connection, message, failure, length, inside, lock_wait)

        return self._ending(work)

    @dual_method
    async def beat(
        self, messages: Iterable[Message], *, visibility: Duration | None = None
    ) -> set[int]:
        """Hide messages for longer, with the receipts that they have; return ids still ours.

        A heartbeat: unlike ``update`` it takes several messages, and skips those that another
        transaction is deleting.
        """
        length, held = self._length(visibility), require_receipts(list(messages))
        return await self._run(
            lambda connection, _: self._operations.beat(connection, held, length)
        )

    @dual_method
    async def give_back(self, messages: Iterable[Message]) -> None:
        """Give back messages that were not begun: visible at once, the receive does not count."""
        held = require_receipts(list(messages))
        await self._run(lambda connection, inside: self._operations.give_back(connection, held))

    @dual_method
    async def find(self, message: int | Sent) -> Message | None:
        """Return the message with this id, without receiving it; ``None``: it is not here."""
        number = message.id if isinstance(message, Sent) else check_id(message)
        return await self._run(lambda connection, _: self._operations.find(connection, number))

    @dual_method
    async def cancel(
        self, message: int | Sent, *, held: bool = False, session: Caller | None = None
    ) -> bool:
        """Delete a message that no receiver has, by its id; return whether it was there.

        ``False``: a receiver has it, or it was done, has expired, or never was in this queue. Its
        deduplication key is free again. With ``held=True`` one that a receiver has is deleted, too;
        the receiver's own delete raises ``MessageNotFound``.
        """
        number = message.id if isinstance(message, Sent) else check_id(message)
        work: Work[bool] = lambda connection, inside: self._operations.cancel(  # noqa: E731
            connection, number, inside, held
        )
        if session is None:
            work = self._separate("cancel", work)
        return await self._run(self._ending(work), session)

    # -- the whole queue -------------------------------------------------------------------------

    @dual_method
    async def redrive(self, n: int = 1) -> int:
        """Put up to ``n`` dead letters into the queue again; return their number."""
        check_count("n", n)
        work = self._operations.redrive
        return await self._run(lambda connection, inside: work(connection, self._dead, n))

    @dual_method
    async def purge(self, *, expired: bool = False) -> int:
        """Delete all messages, or only the expired ones; return their number."""
        return await self._run(
            lambda connection, inside: self._operations.purge(connection, expired)
        )

    @dual_method
    async def metrics(self, exact: bool = False) -> Metrics:
        """Return the numbers of messages, counted up to 10,000 unless ``exact``."""
        return await self._run(
            lambda connection, inside: self._operations.metrics(connection, exact)
        )

    def worker(
        self,
        handler: Handler,
        *,
        concurrency: int = 1,
        batch: int = 10,
        sessions: Any = None,
        heartbeat: bool = True,
        retry: Callable[[int], float] = backoff,
        grace: Duration = 25,
        timeout: Duration | None = None,
        signals: bool = True,
    ) -> WorkerT:
        """Return a loop that calls ``handler(message)``: see :mod:`optilock.queue.worker`.

        With ``sessions`` it calls ``handler(message, session)``, in the transaction that deletes
        the message.
        """
        settings = Settings(concurrency, batch, heartbeat, retry, grace, timeout, signals)
        return self._worker(self, handler, sessions, settings)
