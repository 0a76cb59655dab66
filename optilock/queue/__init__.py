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
calls          what both shells do with what they are given, before they have a connection
operations     what a queue does, on a connection; its parts are sending, receiving (and so what is
               not handed out), ending (what becomes of a message) and stored (what they all know)
connections    connections that a queue keeps
waiting        how to wait for messages, and async_waiting the same for asyncio
worker         a loop that hands each message to a function, and async_worker for asyncio
holding        what a worker holds, and how it keeps it
told           what workers log
messages       what goes in and comes out: values
limits         what may be given
errors         what goes wrong
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
from optilock.queue.holding import HandlerTimeout
from optilock.queue.messages import Draft, Message, Metrics, Received, Sent
from optilock.queue.queue import Queue
from optilock.queue.worker import Worker

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
