"""Operations of a queue, on a connection.

:class:`Operations` receives messages, and leaves out those that have expired, were received too
often, or cannot be read. :class:`EndOperations` deletes, archives, changes or hands back a received
message, or moves it to the dead letters; :class:`~optilock.queue.sending.SendOperations` stores
messages.

``inside`` is true for the caller's connection with the caller's transaction. A connection of the
queue is in AUTOCOMMIT mode: one statement is one transaction, and
:meth:`~optilock.dialects.queue_sql.Messages.atomic` makes one transaction of several statements.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection

from optilock import events
from optilock.dialects.queue_sql import Messages
from optilock.errors import ConfigurationError, describe
from optilock.queue.errors import MessageNotFound, QueueError, ReceiptExpired
from optilock.queue.handler_failures import Failure
from optilock.queue.kept_keys import KeptKeys
from optilock.queue.messages import (
    Limits,
    Message,
    Received,
    Sent,
    Unreadable,
    json_text,
    tail_of,
    token_of,
)
from optilock.queue.sending import DEDUP, GROUP, KEEP, QueueTable, SendOperations
from optilock.queue.stored_messages import message_of
from optilock.queue.whole_queue import QueueOperations

#: Milliseconds for which a heartbeat waits for a lock: it holds up the loop that has called it.
_BEAT_WAIT = 300

#: Seconds after which a receive looks at the groups first. If there are messages of groups, every
#: second receive does.
_GROUPS_AFTER = 1.0


AnyMessage = Message | Sent
#: Ids by their token, and by whether their deduplication keys stay.
Parts = dict[tuple[UUID, bool], list[int]]


class EndOperations(QueueTable):
    """Operations on received messages."""

    def delete(self, connection: Connection, messages: Sequence[AnyMessage], inside: bool) -> None:
        self._end(connection, messages, inside, archive=False)

    def archive(self, connection: Connection, messages: Sequence[AnyMessage], inside: bool) -> None:
        self._end(connection, messages, inside, archive=True)

    def _end(
        self, connection: Connection, messages: Sequence[AnyMessage], inside: bool, *, archive: bool
    ) -> None:
        parts, wrong = _by_token(messages)
        keys = sorted({one.group for one in messages if one.group is not None})
        several = len(parts) > 1 or archive or keys
        with self._atomic(connection, inside or not several):
            counted = self._end_parts(connection, parts, keys, archive=archive)
            missed = bool(wrong) or counted < sum(map(len, parts.values()))
            there = self.store.look(connection, [m.id for m in messages]) if missed else {}
            if keys:
                self._release_groups(connection, keys, messages, there)
        if missed:
            self._raise_missed(messages, there)

    def _release_groups(
        self, connection: Connection, keys: list[str], messages: Sequence[AnyMessage], there: Any
    ) -> None:
        ended = [one.id for one in messages if one.group is not None and one.id not in there]
        self.store.reschedule(connection, keys, ended, length=0, done=True)

    def _end_parts(
        self, connection: Connection, parts: Parts, keys: list[str], *, archive: bool
    ) -> int:
        """Return the number of ended messages."""
        if keys:
            self.store.lock_groups(connection, keys)
        counted = 0
        for (token, keeps_key), ids in parts.items():
            if archive:
                self.store.archive(connection, ids, token)
            if keeps_key and (window := self.limits.dedup_window):
                counted += self.store.keep_key(connection, ids, token, window)
            else:
                counted += self.store.acknowledge(connection, ids, token)
        return counted

    def _raise_missed(self, messages: Sequence[AnyMessage], there: Any) -> None:
        """Raise the error for messages that were not found with their receipts."""
        ids = [message.id for message in messages]
        expired = [number for number in ids if number in there]
        raise ReceiptExpired(self.name, expired) if expired else MessageNotFound(self.name, ids)

    def update(
        self, connection: Connection, message: AnyMessage, length: int, body: Any, inside: bool
    ) -> UUID:
        """Hide the message for longer, or change its body; return its new token."""
        token, new = token_of(message.id, message.receipt), uuid4()
        values: dict[str, Any] = {"receipt": new}
        if body is not KEEP:
            values["body"] = json_text("body", body, self.limits.max_bytes)
        with self._atomic(connection, inside or message.group is None):
            good = token is not None and self._holds(connection, message, length)
            if not good or not self._changed(connection, message, values, length):
                self._miss(connection, message)
        return new

    def _holds(self, connection: Connection, message: AnyMessage, length: int) -> bool:
        """Return whether it is the last received message of its group, if it has one."""
        if message.group is None or not message.receives:
            return True
        keys = [message.group]
        self.store.lock_groups(connection, keys)
        return bool(
            self.store.reschedule(connection, keys, [message.id], length=length, done=False)
        )

    def _changed(
        self,
        connection: Connection,
        message: AnyMessage,
        values: dict[str, Any],
        length: int | None,
    ) -> int:
        token = token_of(message.id, message.receipt)
        if token is None:
            return 0
        return self.store.change(connection, [message.id], token, values, length=length)

    def _miss(self, connection: Connection, message: AnyMessage) -> None:
        self._raise_missed([message], self.store.look(connection, [message.id]))

    def fail(
        self,
        connection: Connection,
        message: AnyMessage,
        failure: Failure,
        delay: int,
        inside: bool,
        lock_wait: int | None = None,
    ) -> bool:
        """Hand the message back; return ``True`` if it is a dead letter.

        That is decided by ``max_receives``, or by a ``final`` failure. ``lock_wait`` limits the
        wait for each lock, in milliseconds.
        """
        most = self.limits.max_receives
        dead = most is not None and (failure.final or message.receives >= most)
        values = {"receipt": None, "last_error": failure.text}
        block: AbstractContextManager[Any]
        if lock_wait is not None:
            block = self.store.atomic_within(connection, lock_wait)
        else:
            block = self._atomic(connection, inside or message.group is None)
        with block:
            if dead:
                self._bury(connection, message, failure.text)
            else:
                self._let_go(connection, message, values, delay)
        return dead

    def _let_go(
        self, connection: Connection, message: AnyMessage, values: dict[str, Any], length: int
    ) -> None:
        """Change the message and release its group; both are locked in the order of reads."""
        keys = [] if message.group is None else [message.group]
        if keys:
            self.store.lock_groups(connection, keys)
        if not self._changed(connection, message, values, length):
            self._miss(connection, message)
        if keys:
            self.store.reschedule(connection, keys, [message.id], length=length, done=True)

    def _bury(self, connection: Connection, message: AnyMessage, error: str) -> None:
        """Move it to the dead letters; its headers keep its group and deduplication key.

        Headers that cannot be read stay as they are.
        """
        marks = {GROUP: message.group, DEDUP: message.dedup}
        headers = {
            **(message.headers if isinstance(message, Message) else {}),
            **{name: value for name, value in marks.items() if value is not None},
        }
        values = {
            "queue": self.limits.dead_letters,
            "receipt": None,
            "group_key": None,
            "dedup_key": None,
            "expires_at": None,
            "last_error": error,
        }
        content = message.body if isinstance(message, Message) else None
        if not isinstance(content, Unreadable) or content.headers is None:
            values["headers"] = json.dumps(headers) if headers else None
        self._let_go(connection, message, values, 0)
        events.emit(lambda: events.DeadLetter(self.name, message.id, message.receives))

    def give_back(self, connection: Connection, messages: Sequence[AnyMessage]) -> None:
        """Give back messages whose handlers have not begun; their receives do not count."""
        values = {"receipt": None, "receives": self.store.m.c.receives - 1}
        alone = [one for one in messages if one.group is None]
        for (token, _), ids in _by_token(alone)[0].items():
            self.store.change(connection, ids, token, values, length=0)
        for message in messages:
            if message.group is not None:
                # An error means that another receiver has the message, and its group.
                with suppress(QueueError), self._atomic(connection, False):
                    self._let_go(connection, message, values, 0)

    def beat(self, connection: Connection, messages: Sequence[AnyMessage], length: int) -> set[int]:
        """Hide messages for longer with their receipts; return the ids that are still ours."""
        grouped = any(one.group is not None for one in messages)
        held: set[int] = set()
        with self.store.atomic_within(connection, _BEAT_WAIT):
            for (token, _), ids in _by_token(messages)[0].items():
                held |= self.store.beat(connection, ids, token, length, grouped=grouped)
        return held


def _by_token(
    messages: Iterable[AnyMessage],
) -> tuple[Parts, list[AnyMessage]]:
    """Return ids by token, and messages with foreign receipts."""
    parts: dict[tuple[UUID, bool], dict[int, None]] = {}
    wrong: list[AnyMessage] = []
    token, tail = None, ""  # of the message before: those of one receive have the same one
    for message in messages:
        if not isinstance(message, (Message, Sent)):
            raise ConfigurationError(
                f"This takes messages as they were received or sent, not {describe(message)}."
            )
        if token is None or message.receipt != f"{message.id}{tail}":
            token = token_of(message.id, message.receipt)
            tail = "" if token is None else tail_of(token)
        if token is None:
            wrong.append(message)
        else:
            parts.setdefault((token, message.dedup is not None), {})[message.id] = None
    return {key: list(ids) for key, ids in parts.items()}, wrong


class Operations(EndOperations, SendOperations, QueueOperations):
    """The operations of one queue of one tenant; each gets a connection first."""

    def __init__(self, store: Messages, limits: Limits) -> None:
        super().__init__(store, limits)
        self._looked = 0.0
        self._grouped = False
        self._keys = KeptKeys(limits.dedup_window)

    def receive(
        self, connection: Connection, n: int, length: int, done: Sequence[AnyMessage] = ()
    ) -> Received:
        """Claim up to ``n`` messages; delete those in ``done`` first."""
        token = uuid4()
        self._keys.remove_ended(self.store, connection)
        expired: tuple[int, ...] = ()
        groups_first = self._grouped or time.monotonic() - self._looked > _GROUPS_AFTER
        found: list[Message] = []
        if done and (groups_first or not self._fits_one_trip(done)):
            expired, done = self._delete_done(connection, done), ()
        if groups_first:
            found = self._receive_groups(connection, n, length, token)
            self._grouped = False
        while len(found) < n:
            more = n - len(found)
            if done:
                expired, rows = self._delete_and_claim(connection, done, more, length, token)
                done = ()
            else:
                rows = self.store.claim(connection, more, length, token)
            found += self._sorted_out(connection, rows, token)
            if len(rows) < more:
                break
        if len(found) < n and not groups_first:
            grouped = self._receive_groups(connection, n - len(found), length, token)
            self._grouped = bool(grouped)
            found += grouped
        return Received(found, expired)

    def _fits_one_trip(self, done: Sequence[AnyMessage]) -> bool:
        """Return whether these can be deleted in the trip that receives the next ones."""
        token = token_of(done[0].id, done[0].receipt)
        if token is None or not self.store.one_trip:
            return False
        end = tail_of(token)
        return all(
            one.receipt == f"{one.id}{end}" and one.group is None and one.dedup is None
            for one in done
        )

    def _delete_done(self, connection: Connection, done: Sequence[AnyMessage]) -> tuple[int, ...]:
        try:
            self.delete(connection, done, False)
        except ReceiptExpired as error:
            return error.ids
        except MessageNotFound:
            return ()
        return ()

    def _delete_and_claim(
        self, connection: Connection, done: Sequence[AnyMessage], n: int, length: int, token: UUID
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
        return self._sorted_out(connection, rows, token)

    def _sorted_out(self, connection: Connection, rows: list[Any], token: UUID) -> list[Message]:
        """Return messages to hand out; bury or remove the others."""
        good, over = [], []
        tail = tail_of(token)
        most = self.limits.max_receives
        for row in rows:
            if row[10]:  # expired
                over.append(row)
                continue
            message = message_of(row, tail)
            if type(message.body) is Unreadable and not self.is_last:
                error = message.body.reason
            elif most is not None and message.receives > most:
                error = message.last_error or "It was received, and neither deleted nor failed."
            else:
                good.append(message)
                continue
            # An error means that another receiver has the message by now.
            with suppress(QueueError), self._atomic(connection, message.group is None):
                self._bury(connection, message, error)
        if over:
            self._remove_expired(connection, over, token)
        return good

    def _remove_expired(self, connection: Connection, rows: list[Any], token: UUID) -> None:
        ids = [row[0] for row in rows]
        keys = [row[7] for row in rows if row[7] is not None]
        with self._atomic(connection, not keys):
            self.store.remove(connection, ids, token)
            if keys:
                self.store.reschedule(connection, keys, ids, length=0, done=True)

    def peek(self, connection: Connection, n: int) -> list[Message]:
        return [message_of(row, None) for row in self.store.peek(connection, n)]

    def pop(self, connection: Connection, n: int) -> list[Message]:
        found = self.receive(connection, n, self.limits.visibility)
        gone = self._delete_done(connection, found) if found else ()
        return [one for one in found if one.id not in gone]
