"""The transactions of handlers, which a worker can end while the handler still runs.

With ``sessions=`` a handler's transaction has deleted its message, so it has the lock of that row,
and on SQLite that of the whole database. If the handler never returns, its message cannot be
failed, and SQLite cannot be written, until this transaction ends. A program cannot end its threads,
but it can end a transaction: :meth:`~optilock.dialects.queue_sql.Messages.end_handler`. After that
the handler can store nothing: each of its statements, and its COMMIT, raises an error.
"""

from __future__ import annotations

import logging
from typing import Any

from sqlalchemy import Connection

from optilock._coroutines import result_of
from optilock.dialects import database_of
from optilock.dialects.connections import watch_errors
from optilock.dialects.queue_sql import HandlerConnection, Messages
from optilock.dialects.transaction_ends import share_transaction
from optilock.queue.messages import Message, token_of

_log = logging.getLogger("optilock.queue")


class HandlerTransactions:
    """The transactions of one worker's handlers."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._store: Messages = queue.store
        self._open: dict[str | None, HandlerConnection] = {}

    def begun(self, message: Message, connection: Connection) -> None:
        """Note the connection on which the handler of ``message`` works."""
        watch_errors(connection, database_of(connection.dialect))
        share_transaction(connection)
        known = self._store.known_by(connection)
        self._open[message.receipt] = HandlerConnection(connection, known)

    def over(self, message: Message) -> None:
        """Forget it: the handler has returned."""
        self._open.pop(message.receipt, None)

    async def end(self, message: Message) -> None:
        """Roll back the transaction of a handler that has not returned in time."""
        given = self._open.pop(message.receipt, None)
        if given is None:  # it has no transaction yet, or none that this worker knows
            return
        token = token_of(message.id, message.receipt)

        def work(connection: Connection) -> None:
            self._store.end_handler(connection, given, message.id, token)

        try:
            await result_of(self._queue.connections.run(work))
        except Exception as error:  # a right is missing, or the database does not answer
            _log.warning(
                "The transaction of the handler of message %s of the queue %s could not be ended:"
                " %s. The message comes back when that transaction has ended.",
                message.id,
                self._queue.name,
                type(error).__name__,
            )
        given.leave_pool()
