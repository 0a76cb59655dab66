"""The messages that a worker holds, its options, and its log.

A message is *held* from the receive until it is acknowledged, failed or given back, whether its
handler runs or has not begun. Three times in each visibility timeout, a heartbeat hides held
messages for another whole timeout. A message is let go **before** it is given back, and never
during a heartbeat: a later heartbeat would hide it from its next receiver.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import DBAPIError, TimeoutError

from optilock.dialects import database_of_error
from optilock.dialects.transient import commit_outcome_unknown, is_transient
from optilock.errors import CommitOutcomeUnknown, ConfigurationError
from optilock.queue.errors import QueueError
from optilock.queue.handler_failures import Failure, failure_of
from optilock.queue.messages import WEEK, Message, check_count, milliseconds

_LONGEST_PAUSE = 300.0
#: More would only make a number that Python cannot hold.
_DOUBLINGS = 16
#: Seconds for which the loop waits for running handlers.
TICK = 0.2
#: Seconds for which an acknowledgement waits for others.
TOGETHER = 0.1
AFTER_AN_ERROR = 1.0
#: The longest wait for a lock of a message that fails, in milliseconds.
LOCK_WAIT = 2_000
#: Seconds for which the transaction of a handler may wait for the lock of its message.
LOCK_FIRST = 30.0
#: Seconds after which an idle worker asks in spite of the silence: a firewall may have dropped its
#: connection, which no notification tells.
IDLE = 60.0


def can_continue_after(error: BaseException) -> bool:
    """Return whether a worker tries again.

    It does so after transient errors, without a connection, and while the server is hindered. A
    lost answer to COMMIT is no reason to end either: a worker may send its own statements twice.
    """
    if is_transient(error) or isinstance(error, (CommitOutcomeUnknown, TimeoutError)):
        return True
    if not isinstance(error, DBAPIError):
        return False
    hindered = database_of_error(error.orig).is_hindered(error)
    return hindered or error.statement is None or commit_outcome_unknown(error)


class HandlerTimeout(QueueError):
    """The handler has not returned within ``timeout``; its message was given back."""

    status = 500


def backoff(receives: int) -> float:
    """Return the seconds until the next attempt: 1, 2, 4 … 300, less a random part."""
    doublings = min(receives - 1, _DOUBLINGS)
    return float(min(_LONGEST_PAUSE, 2.0**doublings) * random.uniform(0.5, 1))


@dataclass(frozen=True)
class Settings:
    """The options of a worker, checked."""

    concurrency: int = 1
    batch: int = 10
    heartbeat: bool = True
    retry: Callable[[int], float] = backoff
    #: Seconds, as the next one; a ``timedelta`` is converted.
    grace: Any = 25.0
    timeout: Any = None
    signals: bool = True

    def __post_init__(self) -> None:
        check_count("concurrency", self.concurrency)
        check_count("batch", self.batch)
        for name in ("grace", "timeout"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, milliseconds(name, given) / 1000)
        if not callable(self.retry):
            raise ConfigurationError("retry takes a function: receives -> seconds.")

    def delay(self, queue: str, message: Message) -> float:
        """Return the seconds until the next attempt; those of ``backoff`` if ``retry`` fails."""
        try:
            return min(max(0.0, float(self.retry(message.receives))), WEEK)
        except BaseException as error:
            log_retry(queue, failure_of(error))
            return backoff(message.receives)


@dataclass
class HeldMessages:
    """The messages that a worker holds."""

    messages: dict[int, Message] = field(default_factory=dict)
    #: Ids of messages whose handlers run, with the time of their begin.
    running: dict[int, float] = field(default_factory=dict)
    #: Receipts of those whose handlers have the lock of their message, with the time.
    locked: dict[str | None, float] = field(default_factory=dict)

    def take(self, messages: list[Message]) -> None:
        self.messages.update({message.id: message for message in messages})

    def begin(self, message: Message) -> bool:
        """Note that its handler begins; return ``False`` if another receiver has the message."""
        if self.messages.get(message.id) is not message:
            return False
        self.running[message.id] = time.monotonic()
        return True

    def has_lock(self, message: Message) -> None:
        """Note that its handler's transaction has deleted it: its time begins. From any thread."""
        self.locked[message.receipt] = time.monotonic()
        if self.messages.get(message.id) is not message:  # last: it may be let go at any moment
            self.locked.pop(message.receipt, None)

    def let_go(self, message: Message) -> bool:
        """Send no more heartbeats for it; return whether it was still held."""
        held = self.messages.get(message.id) is message
        if held:
            del self.messages[message.id]
            self.running.pop(message.id, None)
            self.locked.pop(message.receipt, None)
        return held

    def keep(self, there: set[int], asked: list[Message]) -> list[Message]:
        """Let go of the messages that a heartbeat has not found, and return them."""
        return [one for one in asked if one.id not in there and self.let_go(one)]

    def late(self, seconds: float, *, lock_first: bool) -> list[Message]:
        """Return the messages whose handlers run for longer.

        With ``lock_first`` a handler may wait half a minute for the lock of its message: on SQLite
        it waits for all others.
        """
        now, late = time.monotonic(), []
        for number, begun in self.running.items():
            message = self.messages[number]
            since, limit = self.locked.get(message.receipt), seconds
            if lock_first and since is None:
                limit = max(seconds, LOCK_FIRST)
            if now - (begun if since is None else since) > limit:
                late.append(message)
        return late


class ThreadLock:
    """A lock for threads, used like one of asyncio."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


# -- the log: numbers, names and kinds of errors; no body, receipt or text of an error -------------

_log = logging.getLogger("optilock.queue")


def log_failure(queue: str, message: Message, failure: Failure) -> None:
    _log.warning(
        "The handler of the queue %s failed on message %s (delivery %s): %s",
        queue,
        message.id,
        message.receives,
        failure.kind,
    )


def log_retry(queue: str, failure: Failure) -> None:
    _log.warning(
        "retry= of a worker of the queue %s gave no number of seconds: %s", queue, failure.kind
    )


def log_lost(queue: str, number: int) -> None:
    _log.warning(
        "Message %s of the queue %s was handled, but another receiver has it by now: its visibility"
        " timeout was over.",
        number,
        queue,
    )


def log_locked(queue: str, number: int) -> None:
    _log.warning(
        "Message %s of the queue %s could not be failed: a transaction that has not ended holds its"
        " lock. It comes back when that transaction has ended.",
        number,
        queue,
    )


class Silence:
    """The log of a database that does not answer: one line a minute, however often it is asked."""

    _INTERVAL = 60.0

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._due = 0.0

    def note(self, error: BaseException) -> None:
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self._INTERVAL
            _log.warning("The queue %s does not answer: %s", self._queue, type(error).__name__)
