"""A loop that receives messages and hands each to a function.

::

    def handle(message):
        send_mail(message.body)

    queue.worker(handle, concurrency=4).run()       # until SIGTERM, SIGINT or stop()

The thread that calls ``run`` receives, acknowledges and keeps the time; ``concurrency`` others run
the handler. When a handler returns, its message is deleted; when it raises, the message is failed,
and comes back after ``retry(receives)`` seconds, or is a dead letter. With ``sessions=`` a handler
gets a session, too, whose transaction has already deleted the message: what it writes there it
writes exactly once.

The end: what waits for its turn is given back at once, as if it had not been received. Handlers
that run have ``grace`` seconds, and heartbeats go on for them; what is not done then is left to
come back by itself. So it does, too, when the process is killed.
"""

from __future__ import annotations

import queue as threads
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from optilock.queue import worker_state
from optilock.queue.errors import MessageNotFound, ReceiptExpired
from optilock.queue.limits import MOST
from optilock.queue.messages import Message
from optilock.queue.waiting import LONGEST, Silent, Waiter
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

__all__ = ["Worker"]

Outcome = tuple[Message, BaseException | None]


class Worker:
    """One process's loop over one queue."""

    def __init__(
        self, queue: Any, handler: Callable[..., object], sessions: Any, settings: Settings
    ) -> None:
        """``queue`` is a :class:`~optilock.queue.Queue`, which makes its workers."""
        self._queue = queue
        self._handler = handler
        self._sessions = sessions
        self._settings = settings
        self._stopped = self._asleep = self._short = False
        self._lock = threading.Lock()  # of what is held; a heartbeat has it while it is under way
        self._held = Held()
        self._next: threads.SimpleQueue[Message | None] = threads.SimpleQueue()
        self._over: threads.SimpleQueue[Outcome] = threads.SimpleQueue()
        self._waiting: list[Message] = []
        self._done: list[Message] = []
        self._done_since = 0.0
        self._waiter: Waiter = queue.waiter()

    # -- from outside ----------------------------------------------------------------------------

    def stop(self) -> None:
        """End as soon as the handlers that run are done. From any thread, or a signal's handler."""
        self._stopped = True
        self._waiter.wake()

    def run(self) -> None:
        """Work until it is stopped."""
        for _ in range(self._settings.concurrency):
            self._start_thread()
        beating = threading.Thread(target=self._beat, daemon=True, name="optilock-heartbeat")
        ended = self._ended = threading.Event()
        if self._settings.heartbeat:
            beating.start()
        try:
            with self._signals():
                while not self._stopped:
                    self._step()
        finally:
            self._finish()
            ended.set()
            if self._settings.heartbeat:
                beating.join()
            for _ in range(self._settings.concurrency):
                self._next.put(None)
            self._waiter.close()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT stop it, where it runs in the main thread."""
        if not self._settings.signals or threading.current_thread() is not threading.main_thread():
            yield
            return
        names = (signal.SIGTERM, signal.SIGINT)
        before = {one: signal.signal(one, lambda *_: self.stop()) for one in names}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    # -- the loop --------------------------------------------------------------------------------

    def _step(self) -> None:
        try:
            self._receive()
            self._wait()
        except Exception as error:
            if not passes(error):
                raise
            worker_state.no_answer(self._queue.name, error)
            self._recover()

    def _recover(self) -> None:
        """The connection of the waiter may be the one that was lost."""
        self._waiter.close()
        self._waiter = Silent()  # stop() may wake it
        while not self._stopped:
            time.sleep(AFTER_AN_ERROR)
            try:
                self._waiter = self._queue.waiter()
                return
            except Exception as error:
                if not passes(error):
                    raise
                worker_state.no_answer(self._queue.name, error)

    def _room(self) -> int:
        with self._lock:
            self._waiting = [m for m in self._waiting if m.id in self._held.messages]
            most = max(self._settings.batch, self._settings.concurrency)
            return min(most - len(self._held.messages), MOST)

    def _receive(self) -> None:
        """Fill up when there is nothing left to begin with; what is done goes along."""
        idle = self._settings.concurrency - len(self._held.running)
        if idle <= 0 or self._waiting:
            self._acknowledge_late()
            self._hand_out()
            return
        room = self._room()
        if room > 0:
            done = self._taken_done()
            try:
                found = self._queue.receive(room, done=done)
            except Exception:
                self._done = done
                raise
            for number in found.expired:
                self._lost(number)
            self._short = not found
            with self._lock:
                self._held.take(found)
            self._waiting += found
            if found:
                self._waiter.reset()
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and len(self._held.running) < self._settings.concurrency:
            message = self._waiting.pop(0)
            with self._lock:
                begun = self._held.begin(message)
            if begun:
                self._next.put(message)

    def _wait(self) -> None:
        """Until a handler is done; or, when there was nothing more, until there are messages."""
        if self._short and not self._done:
            self._sleep()
        with suppress(threads.Empty):
            if self._held.running and not self._short:
                self._finished(*self._over.get(timeout=TICK))
            while True:
                self._finished(*self._over.get_nowait())
        self._give_up_late()

    def _sleep(self) -> None:
        """Until there are messages, or a handler is done, which wakes us up."""
        self._asleep = True
        if self._over.empty() and not self._stopped:
            watched = self._held.running and self._settings.timeout is not None
            self._waiter.wait(LONGEST if watched else IDLE)
        self._asleep = False

    def _finished(self, message: Message, error: BaseException | None) -> None:
        with self._lock:
            if not self._held.let_go(message):
                return  # it was given up before
        if error is None and self._sessions is None:
            self._done_since = self._done_since if self._done else time.monotonic()
            self._done.append(message)
        elif error is not None:
            self._failed(message, error)

    def _failed(self, message: Message, error: BaseException) -> None:
        if isinstance(error, (ReceiptExpired, MessageNotFound)) and message.id in error.ids:
            self._lost(message.id)
            return
        worker_state.failed(self._queue.name, message, error)
        try:
            delay = max(0.0, self._settings.retry(message.receives))
            self._queue.fail(message, error, delay=delay)
        except (ReceiptExpired, MessageNotFound):
            self._lost(message.id)

    def _lost(self, number: int) -> None:
        worker_state.lost(self._queue.name, number)

    # -- acknowledgements ------------------------------------------------------------------------

    def _taken_done(self) -> list[Message]:
        done, self._done = self._done, []
        return done

    def _acknowledge_late(self) -> None:
        if self._done and time.monotonic() - self._done_since > TOGETHER:
            self._acknowledge()

    def _acknowledge(self) -> None:
        done = self._taken_done()
        if not done:
            return
        try:
            self._queue.delete(*done)
        except ReceiptExpired as error:
            for number in error.ids:
                self._lost(number)
        except MessageNotFound:
            pass  # done is done
        except Exception:
            self._done = done
            raise

    # -- heartbeats ------------------------------------------------------------------------------

    def _beat(self) -> None:
        every = self._queue.visibility / 3
        while not self._ended.wait(every):
            try:
                self._beat_once()
            except Exception as error:
                worker_state.no_answer(self._queue.name, error)

    def _beat_once(self) -> None:
        with self._lock:
            asked = list(self._held.messages.values())
            if self._sessions is not None:  # those that run are locked: nobody else can have them
                asked = [one for one in asked if one.id not in self._held.running]
            if asked:
                self._held.keep(self._queue.beat(asked), asked)

    def _give_up_late(self) -> None:
        """Handlers that do not return: their threads are left alone, others take their place."""
        with self._lock:
            late = self._held.late(self._settings.timeout)
            for message in late:
                self._held.let_go(message)
        for message in late:
            self._start_thread()
            self._failed(message, HandlerTimeout("The handler has not returned in time."))

    # -- threads ---------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, daemon=True, name="optilock-handler").start()

    def _work(self) -> None:
        while (message := self._next.get()) is not None:
            try:
                self._handle(message)
            except BaseException as error:
                self._over.put((message, error))
            else:
                self._over.put((message, None))
            if self._asleep:
                self._waiter.wake()

    def _handle(self, message: Message) -> None:
        if self._sessions is None:
            self._handler(message)
            return
        with self._sessions() as session, session.begin():
            self._queue.delete(message, session=session)  # first: then nobody else has it
            self._handler(message, session)

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        with self._lock:
            back = [one for one in self._waiting if self._held.let_go(one)]
        self._waiting = []
        try:
            if back:
                self._queue.give_back(back)
            end = time.monotonic() + self._settings.grace
            while self._held.running and (left := end - time.monotonic()) > 0:
                with suppress(threads.Empty):
                    self._finished(*self._over.get(timeout=min(left, TICK)))
                self._give_up_late()
                self._acknowledge_late()
            self._acknowledge()
        except Exception as error:
            if not passes(error):
                raise
            worker_state.no_answer(self._queue.name, error)
        with self._lock:
            self._held = Held()  # what is not done comes back by itself
