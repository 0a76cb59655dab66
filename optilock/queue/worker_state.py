"""What a worker holds, and how it keeps it: the part of a worker that is the same for threads and
asyncio.

A message is *held* from the receive until it is acknowledged, failed or given back, whether its
handler runs or it only waits for its turn. Every third of the visibility timeout a heartbeat hides
what is held for another whole one. A message is let go **before** it is given back, and never while
a heartbeat is under way: one that came after would hide it from its next receiver.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy.exc import DBAPIError

from optilock.dialects.transient import commit_outcome_unknown, is_transient
from optilock.errors import CommitOutcomeUnknown, ConfigurationError
from optilock.queue.errors import QueueError
from optilock.queue.limits import WEEK, Duration, count, milliseconds
from optilock.queue.messages import Message

__all__ = ["HandlerTimeout", "Held", "Settings", "backoff", "failed", "lost", "no_answer", "passes"]

_LONGEST_PAUSE = 300.0
#: Seconds between two looks at what there is to do, while handlers run.
TICK = 0.2
#: Seconds for which an acknowledgement waits for others.
TOGETHER = 0.1
AFTER_AN_ERROR = 1.0
IDLE = 3600.0


def passes(error: BaseException) -> bool:
    """Is it worth another try: what is transient, and also a database that cannot be reached.

    So is a COMMIT whose answer was lost: what a worker itself sends may be sent twice.
    """
    if is_transient(error) or isinstance(error, CommitOutcomeUnknown):
        return True
    if not isinstance(error, DBAPIError):
        return False
    return error.statement is None or commit_outcome_unknown(error)


class HandlerTimeout(QueueError):
    """The handler has not returned within ``timeout``; its message was given back."""

    status = 500


def backoff(receives: int) -> float:
    """Seconds until the next attempt: 1, 2, 4 … 300, and a random part less."""
    return float(min(_LONGEST_PAUSE, 2.0 ** (receives - 1)) * random.uniform(0.5, 1))


@dataclass(frozen=True)
class Settings:
    """The options of a worker, checked."""

    concurrency: int = 1
    batch: int = 10
    heartbeat: bool = True
    retry: Callable[[int], float] = backoff
    grace: float = 25.0
    timeout: float | None = None
    signals: bool = True

    def __post_init__(self) -> None:
        count("concurrency", self.concurrency)
        count("batch", self.batch)
        seconds("grace", self.grace)
        if self.timeout is not None:
            seconds("timeout", self.timeout)
        if not callable(self.retry):
            raise ConfigurationError("retry takes a function: receives -> seconds.")


def seconds(name: str, value: Duration) -> float:
    return milliseconds(name, value, most=WEEK) / 1000


@dataclass
class Held:
    """Messages that are ours at the moment."""

    messages: dict[int, Message] = field(default_factory=dict)
    #: Of those whose handler runs: since when.
    running: dict[int, float] = field(default_factory=dict)

    def take(self, messages: list[Message]) -> None:
        self.messages.update({message.id: message for message in messages})

    def begin(self, message: Message) -> bool:
        """Its handler is to run; ``False``: it is not ours any more."""
        if self.messages.get(message.id) is not message:
            return False
        self.running[message.id] = time.monotonic()
        return True

    def let_go(self, message: Message) -> bool:
        """No more heartbeats for it; was it still held?"""
        held = self.messages.get(message.id) is message
        if held:
            del self.messages[message.id]
            self.running.pop(message.id, None)
        return held

    def keep(self, there: set[int], asked: list[Message]) -> list[Message]:
        """What a heartbeat has not found is somebody else's by now: those, let go."""
        return [one for one in asked if one.id not in there and self.let_go(one)]

    def late(self, timeout: float | None) -> list[Message]:
        """Those whose handlers run for too long."""
        if timeout is None:
            return []
        before = time.monotonic() - timeout
        return [self.messages[n] for n, since in self.running.items() if since < before]


# -- the log: numbers, names and kinds of errors; no body, receipt or text of an error -------------

_log = logging.getLogger("optilock.queue")


def failed(queue: str, message: Message, error: BaseException) -> None:
    _log.warning(
        "The handler of the queue %s failed on message %s (delivery %s): %s",
        queue,
        message.id,
        message.receives,
        type(error).__name__,
    )


def lost(queue: str, number: int) -> None:
    _log.warning(
        "Message %s of the queue %s was handled, and is somebody else's by now: its visibility"
        " timeout was over.",
        number,
        queue,
    )


def no_answer(queue: str, error: BaseException) -> None:
    _log.warning("The queue %s does not answer: %s", queue, type(error).__name__)
