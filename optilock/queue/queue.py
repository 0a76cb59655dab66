"""A queue for programs with threads: :class:`Queue`, with its worker."""

from __future__ import annotations

import queue as threads
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from optilock._coroutines import ThreadClass, run_to_end
from optilock.errors import ConfigurationError, describe
from optilock.queue.base import Calls
from optilock.queue.connections import Connections, Work
from optilock.queue.handler_failures import Failure, failure_of
from optilock.queue.messages import Message
from optilock.queue.signals import stopping_in_thread
from optilock.queue.waiters import ListeningWaiter, PollingWaiter
from optilock.queue.worker import WorkerLoop
from optilock.queue.worker_state import IDLE, Settings, ThreadLock

R = TypeVar("R")


class Worker(WorkerLoop):
    """The loop of one process over one queue, with handlers in threads."""

    _pause = staticmethod(time.sleep)
    _signals = staticmethod(stopping_in_thread)

    def __init__(
        self, queue: Any, handler: Callable[..., object], sessions: Any, settings: Settings
    ) -> None:
        super().__init__(queue, handler, sessions, settings)
        self._lock = ThreadLock()
        self._asleep = False
        self._started = 0
        #: Receipts of the messages whose handlers were given up, and have not ended.
        self._left: set[str | None] = set()
        self._next: threads.SimpleQueue[Message | None] = threads.SimpleQueue()
        self._over: threads.SimpleQueue[tuple[Message, Failure | None]]
        self._over = threads.SimpleQueue()

    def run(self) -> None:
        """Work until it is stopped."""
        for _ in range(self._settings.concurrency):
            self._start_thread()
        ended = threading.Event()
        background = [
            threading.Thread(
                target=lambda loop=loop: run_to_end(loop(ended.wait)),
                daemon=True,
                name="optilock-heartbeat",
            )
            for loop in self._background()
        ]
        for thread in background:
            thread.start()
        try:
            run_to_end(self._run())
        finally:
            ended.set()
            for thread in background:
                thread.join()
            for _ in range(self._started):  # a thread that was left ends when its handler does
                self._next.put(None)

    def _busy(self) -> int:
        return len(self._held.running)

    async def _sleep(self) -> None:
        self._asleep = True
        if self._over.empty() and not self._stopped:
            self._waiter.wait(IDLE)
        self._asleep = False

    async def _collect(self, seconds: float) -> None:
        with suppress(threads.Empty):
            if seconds:
                await self._finished(*self._over.get(timeout=seconds))
            while True:
                await self._finished(*self._over.get_nowait())

    # -- threads ---------------------------------------------------------------------------------

    def _leave(self, message: Message) -> None:
        with suppress(RuntimeError):  # there is no thread left: its own goes on when it returns
            self._start_thread()
            self._left.add(message.receipt)

    def _returned(self, message: Message) -> None:
        if message.receipt in self._left:  # its thread takes messages again: one too many
            self._left.remove(message.receipt)
            self._started -= 1
            self._next.put(None)

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, daemon=True, name="optilock-handler").start()
        self._started += 1

    def _begin(self, message: Message) -> None:
        self._next.put(message)

    def _work(self) -> None:
        while (message := self._next.get()) is not None:
            failure = None
            try:
                self._handle(message)
            except BaseException as error:
                failure = failure_of(error)
            self._transactions.over(message)
            self._over.put((message, failure))
            if self._asleep:
                self._waiter.wake()

    def _handle(self, message: Message) -> None:
        if self._sessions is None:
            self._handler(message)
            return
        with self._sessions() as session, session.begin():
            self._queue.delete(message, session=session)  # first: this locks it for the handler
            self._transactions.begun(message, session.connection())
            self._held.has_lock(message)
            self._handler(message, session)


# -- the queue ------------------------------------------------------------------------------------


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
