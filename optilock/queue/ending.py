"""What becomes of a received message: deleted, kept, changed, handed back, or a dead letter."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection

from optilock.errors import ConfigurationError, described
from optilock.queue.errors import MessageNotFound, QueueError, ReceiptExpired
from optilock.queue.limits import json_text
from optilock.queue.messages import Message, Sent, token_of
from optilock.queue.stored import DEDUP, GROUP, KEEP, Stored

__all__ = ["Ending", "Held"]


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
