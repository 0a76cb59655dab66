"""A loop that receives messages and calls a function with each.

::

    def handle(message):
        send_mail(message.body)

    queue.worker(handle, concurrency=4).run()       # until SIGTERM, SIGINT or stop()

The thread that calls ``run`` receives and acknowledges messages; ``concurrency`` other threads (or
tasks) run the handler. When a handler returns, its message is deleted; when it raises, the message
is failed, and comes back after ``retry(receives)`` seconds, or is a dead letter. With ``sessions=``
a handler also gets a session, whose transaction has already deleted the message: its writes there
are stored exactly once.

When the worker stops, it gives back the messages whose handlers have not begun, as if they had not
been received. Running handlers have ``grace`` seconds more, and heartbeats go on for them. After
that, unfinished messages become visible by themselves, as they do when the process is killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from sqlalchemy.exc import DBAPIError

from optilock import events
from optilock._coroutines import result_of
from optilock.dialects import Cause
from optilock.dialects.transient import cause_of, is_transient
from optilock.queue.errors import MessageNotFound, ReceiptExpired
from optilock.queue.handler_failures import Failure, failure_of
from optilock.queue.handler_transactions import HandlerTransactions
from optilock.queue.messages import MOST, Message
from optilock.queue.waiters import NoWaiter
from optilock.queue.worker_state import (
    AFTER_AN_ERROR,
    LOCK_WAIT,
    TICK,
    TOGETHER,
    HandlerTimeout,
    HeldMessages,
    Settings,
    Silence,
    can_continue_after,
    log_failure,
    log_locked,
    log_lost,
)


class WorkerLoop:
    """The loop of a worker over one queue; threads or tasks run its handlers."""

    #: Of the held messages. A heartbeat has it until it ends. Used with ``async with``.
    _lock: Any
    #: Seconds that a handler has, after its timeout, to end when it is cancelled.
    _patience = 0.0
    #: Sleep for seconds.
    _pause: Callable[[float], Any]
    #: Call a function at SIGTERM and SIGINT, during a block.
    _signals: Callable[[Callable[[], None]], AbstractContextManager[None]]

    def __init__(self, queue: Any, handler: Callable[..., Any], sessions: Any, settings: Settings):
        """``queue`` is a ``Queue`` or an ``AsyncQueue``, which makes its workers."""
        self._queue = queue
        self._handler = handler
        self._sessions = sessions
        self._settings = settings
        self._stopped = False
        #: The server has answered: later refusals may pass, as in an outage.
        self._answered = False
        self._held = HeldMessages()
        self._waiting: list[Message] = []
        self._done: list[Message] = []
        self._done_since = 0.0
        self._waiter: Any = NoWaiter()
        self._silence = Silence(queue.name)
        self._transactions = HandlerTransactions(queue)

    def stop(self) -> None:
        """End as soon as the running handlers are done. From any thread, or a signal's handler."""
        self._stopped = True
        self._waiter.wake()

    async def _run(self) -> None:
        try:
            with self._signals(self.stop) if self._settings.signals else nullcontext():
                await self._start_waiting()
                while not self._stopped:
                    await self._step()
        finally:
            try:
                await self._finish()
            finally:
                await result_of(self._waiter.close())

    async def _start_waiting(self) -> None:
        """Open the first waiter, when the server is there."""
        try:
            self._waiter = await result_of(self._queue.waiter())
        except Exception as error:
            self._require_no_answer(error)
            await self._recover()

    # -- the loop --------------------------------------------------------------------------------

    async def _step(self) -> None:
        try:
            none_left = await self._receive()
            self._answered = True
            if none_left and not self._done:
                await self._sleep()
            await self._collect(TICK if self._busy() and not none_left else 0)
        except Exception as error:
            self._require_no_answer(error)
            await self._recover()

    def _require_no_answer(self, error: Exception) -> None:
        if not can_continue_after(error) or self._is_refused(error):
            raise error
        self._silence.note(error)

    def _is_refused(self, error: Exception) -> bool:
        """Return whether the first connect has failed for good, as with a wrong password."""
        if self._answered or not isinstance(error, DBAPIError):
            return False
        return error.statement is None and not is_transient(error)

    async def _recover(self) -> None:
        """Open another waiter: its connection may be the one that was lost."""
        waiter, self._waiter = self._waiter, NoWaiter()
        await result_of(waiter.close())
        while not self._stopped:
            await result_of(self._pause(AFTER_AN_ERROR))
            try:
                self._waiter = await result_of(self._queue.waiter())
                return
            except Exception as error:
                self._require_no_answer(error)

    async def _receive(self) -> bool:
        """Receive when all messages have begun; return whether there were none."""
        none_left = False
        if self._busy() < self._settings.concurrency and not self._waiting:
            none_left = await self._fill()
        else:
            await self._acknowledge_late()
        while self._waiting and self._busy() < self._settings.concurrency:
            message = self._waiting.pop(0)
            async with self._lock:
                begun = self._held.begin(message)
            if begun:
                self._begin(message)
        return none_left

    async def _fill(self) -> bool:
        """Receive, and acknowledge done messages with it; return whether there were none."""
        most = max(self._settings.batch, self._settings.concurrency)
        room = min(most - len(self._held.messages), MOST)
        if room <= 0:
            return False
        done = self._take_done()
        try:
            found = await result_of(self._queue.receive(room, done=done))
        except Exception:
            self._done = done
            raise
        for number in found.expired:
            log_lost(self._queue.name, number)
        async with self._lock:
            self._held.take(found)
        self._waiting += found
        if found:
            self._waiter.reset()
        return not found

    async def _finished(self, message: Message, failure: Failure | None) -> None:
        async with self._lock:
            if not self._held.let_go(message):
                self._returned(message)  # it was given up before
                return
        if failure is not None:
            await self._failed(message, failure)
            return
        self._report_handled(message)
        if self._sessions is None:
            self._done_since = self._done_since if self._done else time.monotonic()
            self._done.append(message)

    async def _failed(self, message: Message, failure: Failure) -> None:
        if message.id in failure.lost:
            log_lost(self._queue.name, message.id)
            return
        self._report_failed(message, failure)
        try:
            await self._fail(message, failure)
        except (ReceiptExpired, MessageNotFound):
            log_lost(self._queue.name, message.id)

    async def _given_up(self, message: Message) -> None:
        """Fail the message of a handler that has not returned in time.

        The handler may return at the last moment. If its own transaction has deleted the message by
        then, the message is handled.
        """
        handled, failure = (
            False,
            failure_of(HandlerTimeout("The handler has not returned in time.")),
        )
        try:
            await self._fail(message, failure)
        except MessageNotFound:
            handled = self._sessions is not None
            if not handled:
                log_lost(self._queue.name, message.id)
        except ReceiptExpired:
            log_lost(self._queue.name, message.id)
        finally:
            if handled:
                self._report_handled(message)
            else:
                self._report_failed(message, failure)

    def _report_handled(self, message: Message) -> None:
        name = self._queue.name
        events.emit(lambda: events.Handled(name, message.id, message.receives))

    def _report_failed(self, message: Message, failure: Failure) -> None:
        name, error = self._queue.name, failure.error
        log_failure(name, message, failure)
        if error is not None:
            events.emit(lambda: events.HandlingFailed(name, message.id, message.receives, error))

    async def _fail(self, message: Message, failure: Failure) -> None:
        delay = self._settings.delay(self._queue.name, message)
        try:
            await result_of(self._queue.fail_within(LOCK_WAIT, message, failure, delay))
        except DBAPIError as error:
            if cause_of(error) is Cause.LOCK_TIMEOUT:
                log_locked(self._queue.name, message.id)
                return
            if can_continue_after(error):
                raise
            # The database may lack a character of the text.
            ascii_only = failure.in_ascii()
            await result_of(self._queue.fail_within(LOCK_WAIT, message, ascii_only, delay))

    # -- acknowledgements ------------------------------------------------------------------------

    def _take_done(self) -> list[Message]:
        done, self._done = self._done, []
        return done

    async def _acknowledge_late(self) -> None:
        if self._done and time.monotonic() - self._done_since > TOGETHER:
            await self._acknowledge()

    async def _acknowledge(self) -> None:
        done = self._take_done()
        if not done:
            return
        try:
            await result_of(self._queue.delete(*done))
        except ReceiptExpired as error:
            for number in error.ids:
                log_lost(self._queue.name, number)
        except MessageNotFound:
            pass  # it is deleted
        except Exception:
            self._done = done
            raise

    # -- while the loop receives or waits --------------------------------------------------------

    def _background(self) -> list[Callable[[Callable[[float], Any]], Coroutine[Any, Any, None]]]:
        """Return the loops of other threads or tasks; each takes a sleep that ends it."""
        asked = (self._beat, self._settings.heartbeat), (self._watch, self._settings.timeout)
        return [loop for loop, option in asked if option]

    async def _watch(self, ended_within: Callable[[float], Any]) -> None:
        """Give up handlers in time, also while the loop waits for the lock that one of them has."""
        timeout = self._settings.timeout
        while not await result_of(ended_within(min(1.0, max(0.02, timeout / 4)))):
            try:
                await self._give_up_late(timeout + self._patience)
            except Exception as error:
                self._silence.note(error)

    async def _give_up_late(self, seconds: float) -> None:
        """Go on without the handlers that do not return, and fail their messages."""
        async with self._lock:
            late = self._held.late(seconds, lock_first=self._sessions is not None)
            for message in late:
                self._held.let_go(message)
                self._leave(message)
        for message in late:
            await self._transactions.end(message)
        for message in late:
            await self._given_up(message)
        if late:
            self._waiter.wake()

    async def _beat(self, ended_within: Callable[[float], Any]) -> None:
        while not await result_of(ended_within(self._queue.visibility / 3)):
            try:
                await self._beat_once()
            except Exception as error:
                self._silence.note(error)

    async def _beat_once(self) -> None:
        async with self._lock:
            asked = list(self._held.messages.values())
            if self._sessions is not None:  # handlers that run have locked their messages
                asked = [one for one in asked if one.id not in self._held.running]
            if asked:
                self._held.keep(await result_of(self._queue.beat(asked)), asked)

    # -- the end ---------------------------------------------------------------------------------

    async def _finish(self) -> None:
        async with self._lock:
            back = [one for one in self._waiting if self._held.let_go(one)]
        self._waiting = []
        try:
            await self._at_the_end(self._give_back, back)
            end = time.monotonic() + self._settings.grace
            while self._busy() and (left := end - time.monotonic()) > 0:
                await self._at_the_end(self._collect_before, left)
            await self._at_the_end(self._acknowledge)
        finally:
            await self._abandon()

    async def _at_the_end(self, step: Callable[..., Any], *given: Any) -> None:
        """Take a step; if the database does not answer, the next steps come all the same."""
        try:
            await step(*given)
        except Exception as error:
            self._require_no_answer(error)
            await result_of(self._pause(TICK))

    async def _give_back(self, messages: list[Message]) -> None:
        if messages:
            await result_of(self._queue.give_back(messages))

    async def _collect_before(self, left: float) -> None:
        await self._collect(min(left, TICK))
        await self._acknowledge_late()

    # -- in a shell ------------------------------------------------------------------------------

    def _busy(self) -> int:
        """Return the number of running handlers."""
        raise NotImplementedError

    def _begin(self, message: Message) -> None:
        """Run its handler."""
        raise NotImplementedError

    async def _sleep(self) -> None:
        """Wait for messages, or for the end of a handler."""
        raise NotImplementedError

    async def _collect(self, seconds: float) -> None:
        """Wait so long for the end of a handler, and finish all messages whose handlers ended."""
        raise NotImplementedError

    async def _abandon(self) -> None:
        """Leave the handlers that still run: their messages become visible by themselves."""
        await self._cancel()
        async with self._lock:
            left = [self._held.messages[number] for number in self._held.running]
            self._held = HeldMessages()
        if self._sessions is not None:
            for message in left:
                await self._transactions.end(message)

    async def _cancel(self) -> None:
        """Cancel the handlers that still run, if that can be done."""

    def _leave(self, message: Message) -> None:
        """Let its handler run, and have another thread or task for the next one."""
        raise NotImplementedError

    def _returned(self, message: Message) -> None:
        """Note that a handler has ended whose message the worker does not hold any more."""
