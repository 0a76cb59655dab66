"""Messages are received; what has expired, or was received too often, is not handed out."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection

from optilock.dialects.messages import Messages
from optilock.queue.ending import Ending, Held
from optilock.queue.errors import MessageNotFound, ReceiptExpired
from optilock.queue.limits import Limits
from optilock.queue.messages import Message, Received, filled, tail_of, token_of

__all__ = ["Receiving"]

#: Seconds after which a receive looks at the groups first, however many others there are; where
#: there are some, every second one does.
_GROUPS_AFTER = 1.0
_decoded = json.JSONDecoder().raw_decode


class Receiving(Ending):
    def __init__(self, store: Messages, limits: Limits) -> None:
        super().__init__(store, limits)
        self._looked = 0.0
        self._grouped = False

    def receive(
        self, connection: Connection, n: int, length: int, done: Sequence[Held] = ()
    ) -> Received:
        token = uuid4()
        expired: tuple[int, ...] = ()
        groups_first = self._grouped or time.monotonic() - self._looked > _GROUPS_AFTER
        found: list[Message] = []
        if done and (groups_first or not self._goes_along(done)):
            expired, done = self._done(connection, done), ()
        if groups_first:
            found = self._receive_groups(connection, n, length, token)
            self._grouped = False
        while len(found) < n:
            more = n - len(found)
            if done:
                expired, rows = self._done_and_claimed(connection, done, more, length, token)
                done = ()
            else:
                rows = self.store.claim(connection, more, length, token)
            found += self._good(connection, rows, token)
            if len(rows) < more:
                break
        if len(found) < n and not groups_first:
            grouped = self._receive_groups(connection, n - len(found), length, token)
            self._grouped = bool(grouped)
            found += grouped
        return Received(found, expired)

    def _goes_along(self, done: Sequence[Held]) -> bool:
        """Can these be deleted in the trip that receives the next?"""
        token = token_of(done[0].id, done[0].receipt)
        if token is None or not self.store.one_trip:
            return False
        end = tail_of(token)
        return all(
            one.receipt == f"{one.id}{end}" and one.group is None and one.dedup is None
            for one in done
        )

    def _done(self, connection: Connection, done: Sequence[Held]) -> tuple[int, ...]:
        try:
            self.delete(connection, done, False)
        except ReceiptExpired as error:
            return error.ids
        except MessageNotFound:
            return ()
        return ()

    def _done_and_claimed(
        self, connection: Connection, done: Sequence[Held], n: int, length: int, token: UUID
    ) -> tuple[tuple[int, ...], list[Any]]:
        old = token_of(done[0].id, done[0].receipt)
        assert old is not None
        ids = [one.id for one in done]
        count, rows = self.store.acknowledge_and_claim(connection, (ids, old), n, length, token)
        if count == len(set(ids)):
            return (), rows
        there = self.store.look(connection, ids)
        return tuple(number for number, receipt in there.items() if receipt != token), rows

    def _receive_groups(
        self, connection: Connection, n: int, length: int, token: UUID
    ) -> list[Message]:
        self._looked = time.monotonic()
        if not self.store.has_groups(connection):
            return []
        with self.store.atomic(connection):
            rows, empty = self.store.claim_groups(connection, n, length, token)
        if empty:
            with self.store.atomic(connection):
                self.store.remove_groups(connection, empty)
        return self._good(connection, rows, token)

    def _good(self, connection: Connection, rows: list[Any], token: UUID) -> list[Message]:
        """Those to be handed out: not what has expired, or was handed out too often."""
        good, over = [], []
        tail = tail_of(token)
        most = self.limits.max_receives
        for row in rows:
            if row[10]:  # expired
                over.append(row)
            elif most is not None and row[6] > most:
                error = row.last_error or "It was received, and nobody deleted it or said why."
                self._bury(connection, _message(row, tail), error, False)
            else:
                good.append(_message(row, tail))
        if over:
            self._remove_expired(connection, over, token)
        return good

    def _remove_expired(self, connection: Connection, rows: list[Any], token: UUID) -> None:
        ids = [row.id for row in rows]
        keys = [row.group_key for row in rows if row.group_key is not None]
        with self._atomic(connection, not keys):
            self.store.remove(connection, ids, token)
            if keys:
                self.store.reschedule(connection, keys, ids, length=0, done=True)

    def peek(self, connection: Connection, n: int) -> list[Message]:
        return [_message(row, None) for row in self.store.peek(connection, n)]

    def pop(self, connection: Connection, n: int) -> list[Message]:
        found = self.receive(connection, n, self.limits.visibility)
        gone = self._done(connection, found) if found else ()
        return [one for one in found if one.id not in gone]


def _message(row: Any, tail: str | None) -> Message:
    """``tail`` is what the receipts of all that were received together end with."""
    number, body, headers, sent_at, expires_at, visible_at, receives, group, dedup, error, *_ = row
    return filled(
        Message,
        id=number,
        body=_value(body),
        receipt=None if tail is None else f"{number}{tail}",
        receives=receives,
        sent_at=sent_at,
        expires_at=expires_at,
        visible_at=None if tail is None else visible_at,
        headers=_value(headers) if headers else {},
        group=group,
        dedup=dedup,
        last_error=error,
    )


def _value(text: str) -> Any:
    """JSON; as we have written it, without white space around, it is read twice as fast."""
    try:
        value, end = _decoded(text)
    except ValueError:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)
