"""Queues in SQL tables: each message goes to one receiver at a time, and none is lost.

::

    queue = Queue(engine, "mails")
    queue.send({"to": "ada@example.org"}, session=session)     # sent when the session commits
    for message in queue.receive(10):
        deliver(message.body)
        queue.delete(message)

A received message is hidden for a while. Delete it with its receipt when its work is done;
otherwise it becomes visible again, and another receiver gets it. So a message is delivered once or
more often, never less. A receiver that deletes it in the transaction of the effects has them
exactly once. All times are the database's.

===================== ==============================================================================
queue                 :class:`Queue`, with its worker
async_queue           :class:`AsyncQueue`, with its connections, waiters and worker
base                  the calls of both: arguments are checked, and become work for a connection
message_operations    receive and end messages, on a connection
whole_queue           count, find, cancel, purge and redrive, on a connection
kept_keys             removes deduplication keys whose window has ended
sending               check and store messages, on a connection
connections           connections that a queue keeps, and the work that may run on them again
waiters               objects that wait for messages
worker                a loop that calls a function with each message
signals               SIGTERM and SIGINT, which stop workers
handler_transactions  end the transaction of a handler that does not return
worker_state          the messages that a worker holds, its options, and its log
messages              messages, drafts and receipts; checks of arguments
stored_messages       rows as messages, also those that cannot be read
summaries             all queues of a database
queue_command         the command ``optilock queue``
enclosing_units       calls without session= inside a unit of work
handler_failures      the error of a handler, read once
errors                the errors of a queue
===================== ==============================================================================

The statements are in the folders of the engines, in ``optilock/dialects``; the tables in
:mod:`optilock.tables.queue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optilock._coroutines import load_of_asyncio
from optilock.queue.errors import (
    DeduplicationKeyInUse,
    MessageNotFound,
    MessageTooLarge,
    QueueError,
    QueueNotFound,
    ReceiptExpired,
)
from optilock.queue.messages import Draft, Message, Metrics, Received, Sent, Unreadable
from optilock.queue.queue import Queue, Worker
from optilock.queue.summaries import QueueSummary, queues
from optilock.queue.worker_state import HandlerTimeout

if TYPE_CHECKING:
    from optilock.queue.async_queue import AsyncQueue

__all__ = [
    "AsyncQueue",
    "DeduplicationKeyInUse",
    "Draft",
    "HandlerTimeout",
    "Message",
    "MessageNotFound",
    "MessageTooLarge",
    "Metrics",
    "Queue",
    "QueueError",
    "QueueNotFound",
    "QueueSummary",
    "ReceiptExpired",
    "Received",
    "Sent",
    "Unreadable",
    "Worker",
    "queues",
]


def __getattr__(name: str) -> Any:
    """Load ``AsyncQueue`` when it is first used: it needs greenlet, which may be absent."""
    if name == "AsyncQueue":
        return load_of_asyncio(f"{__name__}.async_queue", name)
    raise AttributeError(f"module 'optilock.queue' has no attribute {name!r}")
