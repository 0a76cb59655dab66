"""Operations on messages, on a connection: send, receive, end.

:class:`Sending` checks messages first, then stores many at once, or one of a group or with a
deduplication key. :class:`Ending` deletes, archives, changes or hands back a received message, or
moves it to the dead letters. :class:`Receiving` claims messages, and leaves out those that have
expired or were received too often.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import Connection

from optilock.dialects.queue_sql import Messages
from optilock.errors import ConfigurationError, described
from optilock.queue.errors import MessageNotFound, QueueError, ReceiptExpired
from optilock.queue.limits import Limits, headers_text, json_text, milliseconds, ttl, word
from optilock.queue.messages import (
    Draft,
    Message,
    Received,
    Sent,
    filled,
    receipt_of,
    tail_of,
    token_of,
)
from optilock.queue.target import DEDUP, GROUP, KEEP, Stored

__all__ = ["Ending", "Held", "Ready", "Receiving", "Sending"]

#: Seconds after which a receive looks at the groups first, however many others there are; where
#: there are some, every second one does.
_GROUPS_AFTER = 1.0
_decoded = json.JSONDecoder().raw_decode


#: How often a message with a deduplication key is sent again after others took and left the key.
_TRIES = 20


class Ready(NamedTuple):
    """A message that was checked: what its INSERT takes, and what makes it one of many."""

    values: dict[str, Any]
    group: str | None = None
    dedup: str | None = None


class Sending(Stored):
    def ready(self, draft: Draft) -> Ready:
        """What is sent, checked before anything is."""
        limits = self.limits
        body = json_text("body", draft.body, limits.max_bytes)
        if not draft.options:
            return Ready({"delay": 0, "ttl": limits.ttl, "new_body": body, "new_headers": None})
        options = dict(draft.options)
        delay = milliseconds("delay", options.pop("delay", 0))
        given = options.pop("ttl", KEEP)
        life = limits.ttl if given is KEEP else ttl(given)
        if life is not None and delay >= life:
            whose = "the queue's ttl" if given is KEEP else "its ttl"
            raise ConfigurationError(
                f"delay={delay / 1000:g} would hide the message until {whose}, {life / 1000:g}"
                " seconds, has ended: give a shorter delay or a longer ttl."
            )
        headers = headers_text(options.pop("headers", None), limits.max_bytes)
        group = _optional_word("group", options.pop("group", None))
        dedup = _optional_word("dedup", options.pop("dedup", None))
        if options:
            raise ConfigurationError(f"A message has no option {next(iter(options))!r}.")
        values = {"delay": delay, "ttl": life, "new_body": body, "new_headers": headers}
        return Ready(values, group, dedup)

    def send(self, connection: Connection, messages: list[Ready], inside: bool) -> list[Sent]:
        token = uuid4()  # of all that are sent together
        plain = [one.values for one in messages if one.group is None and one.dedup is None]
        if len(plain) == len(messages):
            if len(plain) == 1 or self.store.one_trip:
                return self._send_plain(connection, plain, token)
            with self._atomic(connection, inside):
                return self._send_plain(connection, plain, token)
        with self._atomic(connection, inside):
            marked = [
                self._send_marked(connection, one, token) if one.group or one.dedup else None
                for one in messages
            ]
            others = iter(self._send_plain(connection, plain, token) if plain else ())
            self.store.tell_waiting(connection)
        return [one if one is not None else next(others) for one in marked]

    def _send_plain(
        self, connection: Connection, rows: list[dict[str, Any]], token: UUID
    ) -> list[Sent]:
        none = {"duplicate": False, "group": None, "dedup": None, "receives": 0}
        tail = tail_of(token)
        return [
            filled(Sent, id=number, receipt=f"{number}{tail}", **none)
            for number in self.store.send(connection, rows, token)
        ]

    def _send_marked(self, connection: Connection, message: Ready, token: UUID) -> Sent:
        values, group, dedup = message
        if group is not None:
            self.store.hold_group(connection, group, values["delay"])
        for _ in range(_TRIES):
            row = {**values, "new_receipt": token}
            number = self.store.send_marked(connection, row, group, dedup)
            if number is not None:
                return Sent(number, receipt_of(number, token), group=group, dedup=dedup)
            assert dedup is not None  # nothing else is in the way
            same = self.store.same_key(connection, dedup)
            if same is None:  # it has gone in between
                continue
            if not same.over:
                return Sent(same.id, None, True, group, dedup, same.receives)
            self.store.remove_over(connection, same.id)
        raise QueueError(
            f"A message for the queue {self.name!r} was not sent: with every attempt, another one"
            " with its deduplication key came and went. Send it again."
        )


def _optional_word(name: str, value: object) -> str | None:
    return None if value is None else word(name, value)


Held = Message | Sent


class Ending(Stored):
    def delete(self, connection: Connection, messages: Sequence[Held], inside: bool) -> None:
        self._end(connection, messages, inside, archive=False)

    def archive(self, connection: Connection, messages: Sequence[Held], inside: bool) -> None:
        self._end(connection, messages, inside, archive=True)

    def _end(
        self, connection: Connection, messages: Sequence[Held], inside: bool, *, archive: bool
    ) -> None:
        parts, wrong = _by_token(messages)
        keys = sorted({one.group for one in messages if one.group is not None})
        several = len(parts) > 1 or archive or keys
        counted = 0
        with self._atomic(connection, inside or not several):
            if keys:
                self.store.lock_groups(connection, keys)
            for (token, keeps_key), ids in parts.items():
                if archive:
                    self.store.archive(connection, ids, token)
                if keeps_key and self.limits.dedup_window:
                    window = self.limits.dedup_window
                    counted += self.store.keep_key(connection, ids, token, window)
                else:
                    counted += self.store.acknowledge(connection, ids, token)
            missed = bool(wrong) or counted < sum(map(len, parts.values()))
            there = self.store.look(connection, [m.id for m in messages]) if missed else {}
            if keys:
                ended = [m.id for m in messages if m.group is not None and m.id not in there]
                self.store.reschedule(connection, keys, ended, length=0, done=True)
        if missed:
            self._explain(messages, there)

    def _explain(self, messages: Sequence[Held], there: Any) -> None:
        """Why messages were missed."""
        ids = [message.id for message in messages]
        expired = [number for number in ids if number in there]
        raise ReceiptExpired(self.name, expired) if expired else MessageNotFound(self.name, ids)

    def update(
        self, connection: Connection, message: Held, length: int, body: Any, inside: bool
    ) -> UUID:
        """The new token."""
        token, new = token_of(message.id, message.receipt), uuid4()
        values: dict[str, Any] = {"receipt": new}
        if body is not KEEP:
            values["body"] = json_text("body", body, self.limits.max_bytes)
        with self._atomic(connection, inside or message.group is None):
            good = token is not None and self._holds(connection, message, length)
            if not good or not self._changed(connection, message, values, length):
                self._miss(connection, message)
        return new

    def _holds(self, connection: Connection, message: Held, length: int) -> bool:
        """Of a group: is it the one that was received last?"""
        if message.group is None or not message.receives:
            return True
        keys = [message.group]
        self.store.lock_groups(connection, keys)
        return bool(
            self.store.reschedule(connection, keys, [message.id], length=length, done=False)
        )

    def _changed(
        self, connection: Connection, message: Held, values: dict[str, Any], length: int | None
    ) -> int:
        token = token_of(message.id, message.receipt)
        if token is None:
            return 0
        return self.store.change(connection, [message.id], token, values, length=length)

    def _miss(self, connection: Connection, message: Held) -> None:
        self._explain([message], self.store.look(connection, [message.id]))

    def fail(
        self,
        connection: Connection,
        message: Held,
        error: str,
        delay: int,
        inside: bool,
        *,
        final: bool = False,
    ) -> bool:
        """Hand it back; is it a dead letter, because of ``max_receives`` or a ``final`` error?"""
        most = self.limits.max_receives
        if most is not None and (final or message.receives >= most):
            self._bury(connection, message, error, inside)
            return True
        values = {"receipt": None, "last_error": error}
        with self._atomic(connection, inside or message.group is None):
            self._let_go(connection, message, values, delay)
        return False

    def _let_go(
        self, connection: Connection, message: Held, values: dict[str, Any], length: int
    ) -> None:
        """Change the message, and leave its group; locked in the order in which they are read."""
        keys = [] if message.group is None else [message.group]
        if keys:
            self.store.lock_groups(connection, keys)
        if not self._changed(connection, message, values, length):
            self._miss(connection, message)
        if keys:
            self.store.reschedule(connection, keys, [message.id], length=length, done=True)

    def _bury(self, connection: Connection, message: Held, error: str, inside: bool) -> None:
        """To the dead letters. What made it one of many is kept in its headers."""
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
            "headers": json.dumps(headers) if headers else None,
        }
        with self._atomic(connection, inside or message.group is None):
            self._let_go(connection, message, values, 0)

    def give_back(self, connection: Connection, messages: Sequence[Held]) -> None:
        """Messages that nobody has begun with: as if they had not been received."""
        values = {"receipt": None, "receives": self.store.m.c.receives - 1}
        alone = [one for one in messages if one.group is None]
        for (token, _), ids in _by_token(alone)[0].items():
            self.store.change(connection, ids, token, values, length=0)
        for message in messages:
            if message.group is not None:
                # Somebody else's by now: then the group is his, too.
                with suppress(QueueError), self._atomic(connection, False):
                    self._let_go(connection, message, values, 0)

    def beat(self, connection: Connection, messages: Sequence[Held], length: int) -> set[int]:
        """Hide messages for longer, with the receipts that they have; which are still ours."""
        grouped = any(one.group is not None for one in messages)
        held: set[int] = set()
        with self.store.atomic(connection):
            for (token, _), ids in _by_token(messages)[0].items():
                held |= self.store.beat(connection, ids, token, length, grouped=grouped)
        return held


def _by_token(
    messages: Iterable[Held],
) -> tuple[dict[tuple[UUID, bool], list[int]], list[Held]]:
    """Ids by token, and by whether a deduplication key stays; and what has a receipt of none."""
    parts: dict[tuple[UUID, bool], list[int]] = {}
    wrong: list[Held] = []
    for message in messages:
        if not isinstance(message, (Message, Sent)):
            raise ConfigurationError(
                f"This takes messages as they were received or sent, not {described(message)}."
            )
        token = token_of(message.id, message.receipt)
        if token is None:
            wrong.append(message)
        else:
            ids = parts.setdefault((token, message.dedup is not None), [])
            if message.id not in ids:
                ids.append(message.id)
    return parts, wrong


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
