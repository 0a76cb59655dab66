"""The errors of a queue: a message is gone, its receipt is not valid, or it is too large.

::

    QueueError
    ├── MessageNotFound (LookupError)   the message is not in the queue (any more)  404
    ├── ReceiptExpired                  another receiver has it, or wrong receipt   400
    ├── MessageTooLarge (ValueError)    its body, or its headers                    413
    ├── DeduplicationKeyInUse           a transaction that sends with it is open    409
    ├── HandlerTimeout                  a worker has given up a handler (in queue.worker_state)
    └── QueueNotFound (LookupError)     the tables are not there                    404

No message, attribute or ``repr`` has a receipt, a body or a header.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from optilock.errors import OptilockError, pickled_state

__all__ = [
    "DeduplicationKeyInUse",
    "MessageNotFound",
    "MessageTooLarge",
    "QueueError",
    "QueueNotFound",
    "ReceiptExpired",
]


class QueueError(OptilockError):
    """Base of a queue's errors, except ``ConfigurationError``; ``status`` is that of HTTP."""

    status = 400


class _OfMessages(QueueError):
    """An error about messages; ``ids`` are theirs."""

    queue: str
    ids: tuple[int, ...]

    def __init__(self, queue: str, ids: Iterable[int]) -> None:
        self.queue, self.ids = queue, tuple(ids)
        super().__init__(self._text(_which(self.ids)))

    def _text(self, which: str) -> str:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.queue, self.ids), pickled_state(self))


class MessageNotFound(_OfMessages, LookupError):
    """There is no such message in this queue: it was deleted, has expired, or never was here."""

    status = 404

    def _text(self, which: str) -> str:
        return (
            f"{which} of the queue {self.queue!r} is not there: it was deleted, was moved to the"
            " dead letters, or its time to live has ended. If an earlier attempt of the same call"
            " deleted it, there is nothing to do."
        )


class ReceiptExpired(_OfMessages):
    """The receipt is not that of the last delivery of the message, or is none at all."""

    def _text(self, which: str) -> str:
        return (
            f"The receipt for {_small(which)} of the queue {self.queue!r} is not, or not any more,"
            " in force, and nothing was done to it. Usually the work took longer than its"
            " visibility timeout, and the message was given to another receiver, with a receipt of"
            " its own. Undo what was done for it, or do it in the transaction that deletes the"
            " message (session=); and use a longer visibility=, or a worker, which renews it."
        )


class MessageTooLarge(QueueError, ValueError):
    """More bytes than the queue takes (``max_bytes``)."""

    status = 413


class DeduplicationKeyInUse(QueueError):
    """Another transaction sends a message with the key, and has not ended: nothing was sent."""

    status = 409

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"A message with a deduplication key was not sent to the queue {queue!r}: it waited for"
            " a transaction that has not ended. Usually that one sends a message with the same key,"
            " and until it ends, it is unknown whether this one is a duplicate. (On SQLite it may"
            " be any writer.) Nothing was sent. Send it again later."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.queue,), pickled_state(self))


class QueueNotFound(QueueError, LookupError):
    """The tables of the queue are not in the database."""

    status = 404

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f"The table {table} is not there, so there is no queue. Make it in a migration with"
            ' op.create_optilock_tables("queue"), or name the tables that there are (table=,'
            " schema=)."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.table,), pickled_state(self))


_SHOWN = 5


def _which(ids: tuple[int, ...]) -> str:
    if len(ids) == 1:
        return f"The message {ids[0]}"
    shown = ", ".join(map(str, ids[:_SHOWN]))
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return f"Each of the messages {shown}{more}"


def _small(text: str) -> str:
    return text[0].lower() + text[1:]
