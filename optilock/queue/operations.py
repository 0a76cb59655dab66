"""What a queue does, on a connection: written once for the sync and the async shell.

Each function gets a connection first. ``inside`` says that it is the caller's, with a transaction
of the caller's; else it is one of the queue's own, in AUTOCOMMIT mode, where one statement is one
transaction and :meth:`~optilock.dialects.messages.Messages.atomic` makes one of several.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection

from optilock.dialects.messages import Messages
from optilock.errors import ConfigurationError, described
from optilock.queue.errors import MessageNotFound, QueueError, ReceiptExpired
from optilock.queue.limits import Limits, headers_text, json_text, milliseconds, ttl, word
from optilock.queue.messages import (
    Draft,
    Message,
    Metrics,
    Received,
    Sent,
    receipt_of,
    token_of,
)

__all__ = ["KEEP", "Operations"]


class _Keep:
    """Stands for what is not given, where ``None`` means something."""

    def __repr__(self) -> str:
        return "<as it is>"


KEEP: Any = _Keep()
_SHOWN = 10_000
#: Messages that are deleted at once.
_CHUNK = 5_000
_TRIES = 20
#: Seconds after which a receive looks at the groups first, however many others there are; where
#: there are some, every second one does.
_GROUPS_AFTER = 1.0
_GROUP, _DEDUP = "optilock-group", "optilock-dedup"

Held = Message | Sent


class Operations:
    """One queue of one tenant."""

    def __init__(self, store: Messages, limits: Limits) -> None:
        self.store = store
        self.limits = limits
        self.name = store.place.queue
        self._looked = 0.0
        self._grouped = False

    def _atomic(self, connection: Connection, inside: bool) -> AbstractContextManager[None]:
        return nullcontext() if inside else self.store.atomic(connection)

    # -- sending -------------------------------------------------------------------------------

    def row(self, draft: Draft) -> dict[str, Any]:
        """What is sent, checked before anything is."""
        options = dict(draft.options)
        limits = self.limits
        delay = milliseconds("delay", options.pop("delay", 0))
        given = options.pop("ttl", KEEP)
        life = limits.ttl if given is KEEP else ttl(given)
        if life is not None and delay >= life:
            raise ConfigurationError(
                f"delay={delay / 1000:g} would hide the message until its ttl={life / 1000:g} has"
                " ended: give a shorter delay or a longer ttl."
            )
        row = {
            "delay": delay,
            "ttl": life,
            "new_body": json_text("body", draft.body, limits.max_bytes),
            "new_headers": headers_text(options.pop("headers", None), limits.max_bytes),
            "group": _optional_word("group", options.pop("group", None)),
            "dedup": _optional_word("dedup", options.pop("dedup", None)),
        }
        if options:
            raise ConfigurationError(f"A message has no option {next(iter(options))!r}.")
        return row

    def send(self, connection: Connection, rows: list[dict[str, Any]], inside: bool) -> list[Sent]:
        token = uuid4()  # of all that are sent together
        rows = [{**row, "new_receipt": token} for row in rows]
        marked = [bool(row["group"] or row["dedup"]) for row in rows]
        if not any(marked):
            if len(rows) == 1 or self.store.one_trip:
                return self._send_plain(connection, rows)
            with self._atomic(connection, inside):
                return self._send_plain(connection, rows)
        with self._atomic(connection, inside):
            sent = [
                self._send_marked(connection, row) if mark else None
                for row, mark in zip(rows, marked, strict=True)
            ]
            others = [row for row, mark in zip(rows, marked, strict=True) if not mark]
            plain = iter(self._send_plain(connection, others) if others else ())
            self.store.tell_waiting(connection)
        return [one if one is not None else next(plain) for one in sent]

    def _send_plain(self, connection: Connection, rows: list[dict[str, Any]]) -> list[Sent]:
        ids = self.store.send(connection, [_without_marks(row) for row in rows])
        return [
            Sent(number, receipt_of(number, row["new_receipt"]))
            for number, row in zip(ids, rows, strict=True)
        ]

    def _send_marked(self, connection: Connection, row: dict[str, Any]) -> Sent:
        group, dedup = row["group"], row["dedup"]
        if group is not None:
            self.store.hold_group(connection, group, row["delay"])
        for _ in range(_TRIES):
            number = self.store.send_marked(connection, _without_marks(row), group, dedup)
            if number is not None:
                receipt = receipt_of(number, row["new_receipt"])
                return Sent(number, receipt, group=group, dedup=dedup)
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

    # -- receiving -----------------------------------------------------------------------------

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
        end = f".{token.hex}"
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
        tail = f".{token.hex}"
        most = self.limits.max_receives
        for row in rows:
            if row.expired:
                over.append(row)
            elif most is not None and row.receives > most:
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

    # -- what becomes of a message -------------------------------------------------------------

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
        self, connection: Connection, message: Held, error: str, delay: int, inside: bool
    ) -> bool:
        most = self.limits.max_receives
        if most is not None and message.receives >= most:
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
        marks = {_GROUP: message.group, _DEDUP: message.dedup}
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
        receives = self.store.m.c.receives
        values = {"receipt": None, "receives": receives - 1}
        for (token, _), ids in _by_token(messages)[0].items():
            self.store.change(connection, ids, token, values, length=0)
        grouped = [one for one in messages if one.group is not None]
        if grouped:
            keys, ids = [str(one.group) for one in grouped], [one.id for one in grouped]
            self.store.reschedule(connection, keys, ids, length=0, done=True)

    def beat(self, connection: Connection, messages: Sequence[Held], length: int) -> set[int]:
        """Hide messages for longer, with the receipts that they have; which are still ours."""
        grouped = any(one.group is not None for one in messages)
        held: set[int] = set()
        with self.store.atomic(connection):
            for (token, _), ids in _by_token(messages)[0].items():
                held |= self.store.beat(connection, ids, token, length, grouped=grouped)
        return held

    # -- all of them ---------------------------------------------------------------------------

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
            group = headers.pop(_GROUP, None)
            headers.pop(_DEDUP, None)
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


def _message(row: Any, tail: str | None) -> Message:
    """``tail`` is what the receipts of all that were received together end with."""
    return Message(
        id=row[0],
        body=json.loads(row[1]),
        receipt=None if tail is None else f"{row[0]}{tail}",
        receives=row[6],
        sent_at=row[3],
        expires_at=row[4],
        visible_at=None if tail is None else row[5],
        headers=json.loads(row[2]) if row[2] else {},
        group=row[7],
        dedup=row[8],
        last_error=row[9],
    )


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


def _without_marks(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("group", "dedup")}


def _optional_word(name: str, value: object) -> str | None:
    return None if value is None else word(name, value)
