"""The loop of :mod:`optilock.queue.worker` for asyncio: handlers are tasks.

What it does, in which order and why is said there. A handler that does not return in time is
cancelled.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from optilock.queue import worker_state
from optilock.queue.errors import MessageNotFound, ReceiptExpired
from optilock.queue.limits import MOST
from optilock.queue.messages import Message
from optilock.queue.worker_state import (
    AFTER_AN_ERROR,
    IDLE,
    TICK,
    TOGETHER,
    HandlerTimeout,
    Held,
    Settings,
    passes,
)

__all__ = ["AsyncWorker"]


class AsyncWorker:
    """One event loop's loop over one queue."""

    def __init__(
        self,
        queue: Any,
        handler: Callable[..., Awaitable[object]],
        sessions: Any,
        settings: Settings,
    ) -> None:
        """``queue`` is an ``AsyncQueue``, which makes its workers."""
        self._queue = queue
        self._handler = handler
        self._sessions = sessions
        self._settings = settings
        self._stopped = False
        self._lock = asyncio.Lock()  # of what is held; a heartbeat has it while it is under way
        self._held = Held()
        self._tasks: dict[asyncio.Task[None], Message] = {}
        self._waiting: list[Message] = []
        self._done: list[Message] = []
        self._done_since = 0.0
        self._waiter: Any = None
        self._changed = asyncio.Event()

    # -- from outside ----------------------------------------------------------------------------

    def stop(self) -> None:
        """End as soon as the handlers that run are done."""
        self._stopped = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        if self._waiter is not None:
            self._waiter.wake()

    async def run(self) -> None:
        """Work until it is stopped, or cancelled: then handlers are cancelled, too."""
        self._waiter = await self._queue.waiter()
        beating = asyncio.create_task(self._beat()) if self._settings.heartbeat else None
        try:
            with self._signals():
                while not self._stopped:
                    await self._step()
        finally:
            try:
                await self._finish()
            finally:
                if beating is not None:
                    beating.cancel()
                if self._waiter is not None:
                    await self._waiter.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop it, where the loop can be told of them."""
        loop, names = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
        heard = []
        if self._settings.signals:
            for name in names:
                try:
                    loop.add_signal_handler(name, self.stop)
                except (NotImplementedError, RuntimeError, ValueError):  # not the main thread
                    break
                heard.append(name)
        try:
            yield
        finally:
            for name in heard:
                loop.remove_signal_handler(name)

    # -- the loop --------------------------------------------------------------------------------

    async def _step(self) -> None:
        try:
            short = await self._receive()
            await self._wait(short)
            await self._collect()
        except Exception as error:
            if not passes(error):
                raise
            worker_state.no_answer(self._queue.name, error)
            await self._recover()

    async def _recover(self) -> None:
        """The connection of the waiter may be the one that was lost."""
        waiter, self._waiter = self._waiter, None
        await waiter.close()
        while not self._stopped:
            await asyncio.sleep(AFTER_AN_ERROR)
            try:
                self._waiter = await self._queue.waiter()
                return
            except Exception as error:
                if not passes(error):
                    raise
                worker_state.no_answer(self._queue.name, error)

    async def _receive(self) -> bool:
        """Fill up when there is nothing left to begin with; was there nothing more?"""
        short = False
        if len(self._tasks) < self._settings.concurrency and not self._waiting:
            short = await self._fill()
        elif self._done and asyncio.get_running_loop().time() - self._done_since > TOGETHER:
            await self._acknowledge()
        while self._waiting and len(self._tasks) < self._settings.concurrency:
            message = self._waiting.pop(0)
            if self._held.begin(message):
                self._begin(message)
        return short

    async def _fill(self) -> bool:
        most = max(self._settings.batch, self._settings.concurrency)
        room = min(most - len(self._held.messages), MOST)
        if room <= 0:
            return False
        done, self._done = self._done, []
        try:
            found = await self._queue.receive(room, done=done)
        except Exception:
            self._done = done
            raise
        for number in found.expired:
            worker_state.lost(self._queue.name, number)
        self._held.take(found)
        self._waiting += found
        if found:
            self._waiter.reset()
        return not found

    def _begin(self, message: Message) -> None:
        task = asyncio.create_task(self._handle(message))
        self._tasks[task] = message
        task.add_done_callback(lambda _: self._wake())

    async def _wait(self, short: bool) -> None:
        """Until a handler is done; or, when there was nothing more, until there are messages."""
        if self._stopped or any(task.done() for task in self._tasks):
            return
        self._changed.clear()
        if short and not self._done:
            await self._waiter.wait(IDLE)
        elif self._tasks:
            await asyncio.wait(self._tasks, timeout=TICK, return_when=asyncio.FIRST_COMPLETED)

    async def _handle(self, message: Message) -> None:
        async with _limited(self._settings.timeout):
            if self._sessions is None:
                await self._handler(message)
                return
            async with self._sessions() as session, session.begin():
                await self._queue.delete(message, session=session)
                await self._handler(message, session)

    async def _collect(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            message = self._tasks.pop(task)
            async with self._lock:
                if not self._held.let_go(message):
                    continue
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                await self._failed(message, error)
            elif self._sessions is None:
                if not self._done:
                    self._done_since = asyncio.get_running_loop().time()
                self._done.append(message)

    async def _failed(self, message: Message, error: BaseException) -> None:
        if isinstance(error, (ReceiptExpired, MessageNotFound)) and message.id in error.ids:
            worker_state.lost(self._queue.name, message.id)
            return
        worker_state.failed(self._queue.name, message, error)
        try:
            delay = max(0.0, self._settings.retry(message.receives))
            await self._queue.fail(message, error, delay=delay)
        except (ReceiptExpired, MessageNotFound):
            worker_state.lost(self._queue.name, message.id)

    async def _acknowledge(self) -> None:
        done, self._done = self._done, []
        if not done:
            return
        try:
            await self._queue.delete(*done)
        except ReceiptExpired as error:
            for number in error.ids:
                worker_state.lost(self._queue.name, number)
        except MessageNotFound:
            pass  # done is done
        except Exception:
            self._done = done
            raise

    # -- heartbeats ------------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._queue.visibility / 3)
            try:
                await self._beat_once()
            except Exception as error:
                worker_state.no_answer(self._queue.name, error)

    async def _beat_once(self) -> None:
        async with self._lock:
            asked = list(self._held.messages.values())
            if self._sessions is not None:  # those that run are locked: nobody else can have them
                asked = [one for one in asked if one.id not in self._held.running]
            if asked:
                self._held.keep(await self._queue.beat(asked), asked)

    # -- the end ---------------------------------------------------------------------------------

    async def _finish(self) -> None:
        async with self._lock:
            back = [one for one in self._waiting if self._held.let_go(one)]
        self._waiting = []
        try:
            if back:
                await self._queue.give_back(back)
            loop = asyncio.get_running_loop()
            end = loop.time() + self._settings.grace
            while self._tasks and (left := end - loop.time()) > 0:
                await asyncio.wait(
                    self._tasks, timeout=min(left, TICK), return_when=asyncio.FIRST_COMPLETED
                )
                await self._collect()
            await self._acknowledge()
        except Exception as error:
            if not passes(error):
                raise
            worker_state.no_answer(self._queue.name, error)
        finally:
            for task in self._tasks:  # what is not done comes back by itself
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def _limited(seconds: float | None) -> AsyncIterator[None]:
    """Raises ``HandlerTimeout`` when it has lasted for so long."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise HandlerTimeout("The handler has not returned in time, and was cancelled.") from error
