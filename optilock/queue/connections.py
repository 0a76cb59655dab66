"""Connections that a queue keeps, and the work that may run on them again.

A checkout for each call would take as long as the call. Each connection is in AUTOCOMMIT mode,
where a statement is a transaction and needs no further round trip. A queue keeps as many as its
callers have needed at the same time, up to four. They belong to the engine, and return to its pool
when the queue is closed. A connection that has seen an error is not kept.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import DBAPIError

from optilock._coroutines import ThreadClass, dual_method, result_of
from optilock._undocumented.connections import set_options
from optilock.dialects import Cause
from optilock.dialects.connections import KEPT, give_back, has_ended_idle
from optilock.dialects.queue_sql import Messages
from optilock.dialects.queue_sql.parts import was_undone
from optilock.dialects.transient import answer_unknown, cause_of
from optilock.errors import CommitOutcomeUnknown, OptilockError
from optilock.queue.errors import QueueNotFound
from optilock.tables.queue import MessageTables

R = TypeVar("R")
#: The sessions and connections of a shell.
Caller = TypeVar("Caller")
#: A shell's kind of connection.
C = TypeVar("C")
#: A function of a connection, and of whether it is the caller's, with the caller's transaction.
Work = Callable[[Connection, bool], R]

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT", KEPT: True}
#: Connections, and waiters, that a queue keeps.
FEW = 4
#: Conflicts of the queue's own statements, after which they run again.
_CONFLICTS = frozenset({Cause.CONFLICT, Cause.DEADLOCK})
ATTEMPTS = 5

#: The text of an error: sent or not.
SENDING = (
    "the connection was lost while messages were sent to the queue {name!r}, which commits by"
    " itself, so they may be sent or not. Give each a dedup= of its own, then it can be sent again;"
    " or send in a transaction (session=)."
)
#: Ended or not.
ENDING = (
    "the connection was lost while messages of the queue {name!r} were deleted, changed or handed"
    " back, which commits by itself, so that may be done or not. A message that is not done comes"
    " again when it is visible. Call again: for a message that is done, that raises MessageNotFound"
    " or ReceiptExpired."
)


class KeptConnections(Generic[C]):
    """The connections of one queue."""

    def __init__(self, engine: Any, store: Messages, *, keeps: bool) -> None:
        self._engine = engine
        self._store = store
        self._keeps = keeps
        self._idle: list[C] = []

    @dual_method
    async def run(self, work: Callable[[Connection], R]) -> R:
        """Run ``work`` on a connection."""
        connection = await self._take()
        try:
            result = await self._call(connection, work)
        except OptilockError as error:
            if isinstance(error, CommitOutcomeUnknown):
                await self._call(connection, give_back)
            else:
                await self._keep(connection)
            raise
        except BaseException as error:
            await self._give_back_broken(connection, error)
            raise
        await self._keep(connection)
        return result

    async def _take(self) -> C:
        """Return a kept connection, or a new one.

        A kept one must be alive: a statement sent on a dead one may have arrived, or not.
        """
        while (connection := self._pop()) is not None:
            if not self._has_ended(connection):
                return connection
            await self._call(connection, Connection.invalidate)
            await self._call(connection, give_back)
        connection = await self._open()
        await self._call(connection, self._store.prepare)
        return connection

    async def _keep(self, connection: C) -> None:
        if not (self._keeps and self._put(connection)):
            await self._call(connection, give_back)

    @dual_method
    async def close(self) -> None:
        """Give all back to the pool."""
        while (connection := self._pop()) is not None:
            await self._call(connection, give_back)

    def _pop(self) -> C | None:
        return self._idle.pop() if self._idle else None

    def _put(self, connection: Any) -> bool:
        fits = not connection.invalidated and len(self._idle) < FEW
        if fits:
            self._idle.append(connection)
        return fits

    # -- in a shell ------------------------------------------------------------------------------

    def home(self) -> object:
        """Return what may use a connection that is opened now: a process, or an event loop."""
        raise NotImplementedError

    async def _open(self) -> C:
        raise NotImplementedError

    async def _call(self, connection: C, work: Callable[[Connection], R]) -> R:
        raise NotImplementedError

    def _has_ended(self, connection: C) -> bool:
        raise NotImplementedError

    async def _give_back_broken(self, connection: C, error: BaseException) -> None:
        await self._call(connection, give_back)


class Connections(ThreadClass, KeptConnections[Connection]):
    """Connections for threads."""

    def __init__(self, engine: Engine, store: Messages, *, keeps: bool) -> None:
        super().__init__(engine, store, keeps=keeps)
        self._process = self.home()
        #: Of the process that forked this one. To forget them would roll back on its lines.
        self._of_parent: list[Connection] = []
        self._lock = threading.Lock()

    def home(self) -> int:
        return os.getpid()

    def _pop(self) -> Connection | None:
        with self._lock:
            if self._process != self.home():
                self._of_parent += self._idle
                self._idle, self._process = [], self.home()
            return super()._pop()

    def _put(self, connection: Connection) -> bool:
        with self._lock:
            return super()._put(connection)

    async def _open(self) -> Connection:
        return open_connection(self._engine)

    async def _call(self, connection: Connection, work: Callable[[Connection], R]) -> R:
        return work(connection)

    def _has_ended(self, connection: Connection) -> bool:
        return has_ended_idle(connection)


def open_connection(engine: Engine) -> Connection:
    """Return a new connection in AUTOCOMMIT mode."""
    connection = engine.connect()
    set_options(connection, AUTOCOMMIT)
    return connection


# -- work that may run again ----------------------------------------------------------------------


class RepeatableWork(Generic[R]):
    """Work that finds out whether it was done before, so it can run twice."""

    def __init__(self, work: Work[R]) -> None:
        self._work = work

    def __call__(self, connection: Connection, inside: bool) -> R:
        return self._work(connection, inside)


def run_once_only(unknown: str, work: Work[R]) -> Work[R]:
    """Return work that must not run twice: if its answer is lost, it raises an error.

    Raises:
        CommitOutcomeUnknown: with the text ``unknown``.
    """

    def run(connection: Connection, inside: bool) -> R:
        try:
            return work(connection, inside)
        except DBAPIError as error:
            if inside or not _is_unanswered(error):
                raise
            raise CommitOutcomeUnknown(unknown) from error

    return run


def can_run_again(error: DBAPIError, work: Work[Any]) -> bool:
    """Return whether to run work again that is undone, or finds out that it was done."""
    if isinstance(work, RepeatableWork) and _is_unanswered(error):
        return True
    return not error.connection_invalidated and cause_of(error) in _CONFLICTS


def _is_unanswered(error: DBAPIError) -> bool:
    """Return whether a statement that commits itself may be stored in spite of the error."""
    return not was_undone(error) and answer_unknown(error)


# -- the work of a queue ---------------------------------------------------------------------------


class OnConnections(Generic[Caller]):
    """Runs work on a connection of the queue, or on that of the caller's session."""

    #: A shell's connections, with ``run(work)`` and ``close()``.
    connections: Any
    tables: MessageTables

    async def _run(self, work: Work[R], session: Caller | None = None) -> R:
        if session is not None:
            return await self._run_inside(work, session)
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._run_once(work)
            except DBAPIError as error:
                if not can_run_again(error, work):
                    raise
        return await self._run_once(work)

    async def _run_inside(self, work: Work[R], session: Caller) -> R:
        raise NotImplementedError

    async def _run_once(self, work: Work[R]) -> R:
        def run(connection: Connection) -> R:
            with require_tables(connection, self.tables):
                return work(connection, False)

        result: R = await result_of(self.connections.run(run))
        return result


@contextmanager
def require_tables(connection: Connection, tables: MessageTables) -> Iterator[None]:
    """Raise ``QueueNotFound`` if a statement fails because the table is missing."""
    try:
        yield
    except DBAPIError as error:
        if not error.connection_invalidated and cause_of(error) is Cause.OTHER:
            messages = tables.messages
            with suppress(DBAPIError):  # the first error is raised
                if not inspect(connection).has_table(messages.name, schema=messages.schema):
                    raise QueueNotFound(messages.fullname) from None
        raise
