"""What a queue does, on a connection: written once for the sync and the async shell.

Each function gets a connection first. ``inside`` says that it is the caller's, with a transaction
of the caller's; else it is one of the queue's own, in AUTOCOMMIT mode, where one statement is one
transaction and :meth:`~optilock.dialects.queue_sql.Messages.atomic` makes one of several.
"""

from __future__ import annotations

import json
from uuid import uuid4

from sqlalchemy import Connection

from optilock.queue.messages import Metrics
from optilock.queue.receiving import Receiving, Sending
from optilock.queue.target import DEDUP, GROUP, KEEP

__all__ = ["KEEP", "Operations"]

_SHOWN = 10_000
#: Messages that are deleted at once.
_CHUNK = 5_000


class Operations(Sending, Receiving):
    """One queue of one tenant."""

    def metrics(self, connection: Connection, exact: bool) -> Metrics:
        most = None if exact else _SHOWN + 1
        found = self.store.counts(connection, self.limits.dead_letters, most)
        oldest = 0.0 if found.oldest is None else (found.now - found.oldest).total_seconds()
        counts = (found.waiting, found.hidden, found.dead)
        sure = exact or max(counts) <= _SHOWN
        return Metrics(*counts, oldest=max(0.0, oldest), exact=sure)

    def purge(self, connection: Connection, expired: bool) -> int:
        total = 0
        while count := self.store.purge(connection, _CHUNK, expired=expired):
            total += count
        with self.store.atomic(connection):
            self.store.purge_groups(connection)
        return total

    def redrive(self, connection: Connection, dead: Operations, n: int) -> int:
        """Dead letters become messages again; how many."""
        token, length = uuid4(), dead.limits.visibility
        rows = dead.store.claim(connection, n, length, token)
        for row in rows:
            headers = json.loads(row.headers) if row.headers else {}
            group = headers.pop(GROUP, None)
            headers.pop(DEDUP, None)
            values = {
                "queue": self.name,
                "group_key": group,
                "receives": 0,
                "receipt": None,
                "headers": json.dumps(headers) if headers else None,
            }
            with self.store.atomic(connection):
                if group is not None:
                    self.store.hold_group(connection, group, 0)
                dead.store.change(connection, [row.id], token, values, length=0)
                self.store.tell_waiting(connection)
        return len(rows)
