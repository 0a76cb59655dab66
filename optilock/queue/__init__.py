"""Queues in SQL tables: each message goes to one receiver at a time, and none is lost.

::

    queue = Queue(engine, "mails")
    queue.send({"to": "ada@example.org"}, session=session)     # sent when the session commits
    for message in queue.receive(10):
        deliver(message.body)
        queue.delete(message)

A message that is received is hidden for a while. Who has done what it asks for deletes it, with the
receipt that came along; else it comes back and somebody else receives it. So a message is delivered
once or more often, never less; who deletes it in the transaction that writes the effects has them
exactly once. All times are the database's.

=============  =====================================================================================
queue          :class:`Queue`
async_queue    :class:`AsyncQueue`, the same for asyncio
base           the calls of both: arguments are checked, and become work for a connection
operations     metrics, purge and redrive, on a connection
receiving      send, receive and end messages, on a connection
target         the queue that operations work on: its statements and limits
connections    connections that a queue keeps
waiting        how to wait for messages, and async_waiting the same for asyncio
worker         a loop that hands each message to a function, and async_worker for asyncio
worker_state   the messages that a worker holds, its options, and its log
messages       messages, drafts and receipts: values
limits         checks of arguments
errors         the errors of a queue
=============  =====================================================================================

The statements are in the folders of the engines, in ``optilock/dialects``; the tables in
:mod:`optilock.tables.queue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optilock.queue.errors import (
    MessageNotFound,
    MessageTooLarge,
    QueueError,
    QueueNotFound,
    ReceiptExpired,
)
from optilock.queue.messages import Draft, Message, Metrics, Received, Sent
from optilock.queue.queue import Queue
from optilock.queue.worker import Worker
from optilock.queue.worker_state import HandlerTimeout

if TYPE_CHECKING:
    from optilock.queue.async_queue import AsyncQueue

__all__ = [
    "AsyncQueue",
    "Draft",
    "HandlerTimeout",
    "Message",
    "MessageNotFound",
    "MessageTooLarge",
    "Metrics",
    "Queue",
    "QueueError",
    "QueueNotFound",
    "ReceiptExpired",
    "Received",
    "Sent",
    "Worker",
]


def __getattr__(name: str) -> Any:
    """``AsyncQueue`` needs greenlet, which may be absent: loaded when it is asked for."""
    if name == "AsyncQueue":
        from optilock.queue.async_queue import AsyncQueue

        return AsyncQueue
    raise AttributeError(f"module 'optilock.queue' has no attribute {name!r}")
