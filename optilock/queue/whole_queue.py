"""Operations on a whole queue, or on one message by its id: count, find, cancel, purge, redrive."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection

from optilock.queue.messages import Message, Metrics, Unreadable, tail_of
from optilock.queue.sending import DEDUP, GROUP, QueueTable
from optilock.queue.stored_messages import message_of, time_of

_SHOWN = 10_000
#: Messages that are deleted at once.
_CHUNK = 5_000


class QueueOperations(QueueTable):
    """Operations that need no receipt."""

    def metrics(self, connection: Connection, exact: bool) -> Metrics:
        most = None if exact else _SHOWN + 1
        found = self.store.counts(connection, self.limits.dead_letters, most)
        oldest = 0.0 if found.oldest is None else (found.now - found.oldest).total_seconds()
        counts = (found.waiting, found.hidden, 0 if self.is_last else found.dead)
        sure = exact or max(*counts, found.kept) <= _SHOWN
        return Metrics(*counts, oldest=max(0.0, oldest), exact=sure, keys=found.kept)

    def find(self, connection: Connection, number: int) -> Message | None:
        row = self.store.find(connection, number)
        if row is None:
            return None
        message = message_of(row, None)
        with suppress(ValueError):
            message = replace(message, visible_at=time_of(row[5]))
        return message

    def cancel(self, connection: Connection, number: int, inside: bool, held: bool) -> bool:
        with self._atomic(connection, inside):
            return self.store.cancel(connection, number, held=held)

    def purge(self, connection: Connection, expired: bool) -> int:
        total = 0
        last: int | None = -1
        while last is not None:
            last, count = self.store.purge(connection, last, _CHUNK, expired=expired)
            total += count
        with self.store.atomic(connection):
            self.store.purge_groups(connection)
        return total

    def redrive(self, connection: Connection, dead: Any, n: int) -> int:
        """Turn dead letters into messages again; return their number.

        Those that cannot be read stay: they would be dead letters again at once.
        """
        token, length = uuid4(), dead.limits.visibility
        done, unreadable = 0, dict[int, Message]()
        while done < n and (rows := dead.store.claim(connection, n - done, length, token)):
            messages = [message_of(row, tail_of(token)) for row in rows]
            if any(one.id in unreadable for one in messages):  # their visibility is over
                break
            for message in messages:
                if isinstance(message.body, Unreadable):
                    unreadable[message.id] = message
                else:
                    self._revive(connection, dead, message, token)
                    done += 1
        dead.give_back(connection, list(unreadable.values()))
        return done

    def _revive(self, connection: Connection, dead: Any, message: Message, token: UUID) -> None:
        headers = dict(message.headers)
        group = headers.pop(GROUP, None)
        if not isinstance(group, str):
            group = None
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
            dead.store.change(connection, [message.id], token, values, length=0)
            self.store.tell_waiting(connection)
