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
calls          what both shells do with what they are given, before they have a connection
operations     what a queue does, on a connection
connections    connections that a queue keeps
messages       what goes in and comes out: values
limits         what may be given
errors         what goes wrong
=============  =====================================================================================

The statements are in the folders of the engines, in ``optilock/dialects``; the tables in
:mod:`optilock.tables.queue`.
"""

from __future__ import annotations

from optilock.queue.errors import (
    MessageNotFound,
    MessageTooLarge,
    QueueError,
    QueueNotFound,
    ReceiptExpired,
)
from optilock.queue.messages import Draft, Message, Metrics, Received, Sent
from optilock.queue.queue import Queue

__all__ = [
    "Draft",
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
]
