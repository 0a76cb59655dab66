"""Messages are checked, and then stored: many at once, or one of a group or with a key.

:class:`QueueTable` is one queue of one tenant: its statements and limits, for all operations.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from optilock.dialects import Cause
from optilock.dialects.queue_sql import Messages
from optilock.dialects.transient import cause_of
from optilock.errors import ConfigurationError
from optilock.queue.errors import DeduplicationKeyInUse, QueueError
from optilock.queue.messages import (
    Draft,
    Limits,
    Sent,
    build,
    check_text,
    headers_text,
    json_text,
    lifetime,
    milliseconds,
    receipt_of,
    tail_of,
)


class _Keep:
    """The default of an argument for which ``None`` is a value."""

    def __repr__(self) -> str:
        return "<as it is>"


KEEP: Any = _Keep()
#: Headers of a dead letter: the group and the deduplication key that it had.
GROUP, DEDUP = "optilock-group", "optilock-dedup"


class QueueTable:
    """The statements and limits of one queue of one tenant."""

    def __init__(self, store: Messages, limits: Limits) -> None:
        self.store = store
        self.limits = limits
        self.name = store.place.queue
        #: It has the dead letters: those that cannot be read stay in it.
        self.is_last = limits.dead_letters == self.name

    def _atomic(self, connection: Connection, inside: bool) -> AbstractContextManager[None]:
        return nullcontext() if inside else self.store.atomic(connection)


#: How often a message with a deduplication key is sent again after others took and left the key.
_TRIES = 20


class CheckedMessage(NamedTuple):
    """A checked message: the values of its INSERT, its group and its deduplication key."""

    values: dict[str, Any]
    group: str | None = None
    dedup: str | None = None

    @property
    def is_plain(self) -> bool:
        return self.group is None and self.dedup is None


class SendOperations(QueueTable):
    """Check messages, then store them."""

    def ready(self, draft: Draft) -> CheckedMessage:
        """Return a message's values, checked before a statement is sent."""
        limits = self.limits
        body = json_text("body", draft.body, limits.max_bytes)
        if not draft.options:
            return CheckedMessage(
                {"delay": 0, "ttl": limits.ttl, "new_body": body, "new_headers": None}
            )
        options = dict(draft.options)
        delay = milliseconds("delay", options.pop("delay", 0))
        given = options.pop("ttl", KEEP)
        life = limits.ttl if given is KEEP else lifetime(given)
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
        return CheckedMessage(values, group, dedup)

    def send(
        self, connection: Connection, messages: list[CheckedMessage], inside: bool
    ) -> list[Sent]:
        token = uuid4()  # the same for all messages of the call
        plain = [one.values for one in messages if one.is_plain]
        if len(plain) < len(messages):
            return self._send_mixed(connection, messages, plain, token, inside)
        with self._atomic(connection, inside or len(plain) == 1 or self.store.one_trip):
            return self._send_plain(connection, plain, token)

    def _send_mixed(
        self,
        connection: Connection,
        messages: list[CheckedMessage],
        plain: list[Any],
        token: UUID,
        inside: bool,
    ) -> list[Sent]:
        keys = [one.dedup for one in messages if one.dedup is not None]
        known = self.store.standing_keys(connection, keys) if keys else {}
        if all(one.dedup in known for one in messages):
            return [_duplicate(one, known[key]) for one, key in zip(messages, keys, strict=True)]
        try:
            with self._atomic(connection, inside):
                send = partial(self._send_marked, connection, token, known, inside)
                marked = [None if one.is_plain else send(one) for one in messages]
                others = iter(self._send_plain(connection, plain, token) if plain else ())
                self.store.tell_waiting(connection)
        except DBAPIError as error:
            if inside or not keys or cause_of(error) is not Cause.LOCK_TIMEOUT:
                raise
            raise DeduplicationKeyInUse(self.name) from error
        return [one if one is not None else next(others) for one in marked]

    def _send_plain(
        self, connection: Connection, rows: list[dict[str, Any]], token: UUID
    ) -> list[Sent]:
        none = {"duplicate": False, "group": None, "dedup": None, "receives": 0}
        tail = tail_of(token)
        return [
            build(Sent, id=number, receipt=f"{number}{tail}", **none)
            for number in self.store.send(connection, rows, token)
        ]

    def _send_marked(
        self,
        connection: Connection,
        token: UUID,
        known: dict[str, Any],
        inside: bool,
        message: CheckedMessage,
    ) -> Sent:
        values, group, dedup = message
        if dedup in known:
            return _duplicate(message, known[dedup])
        if group is not None:
            self.store.hold_group(connection, group, values["delay"])
        for _ in range(_TRIES):
            row = {**values, "new_receipt": token}
            number = self.store.send_marked(connection, row, group, dedup, inside=inside)
            if number is not None:
                return Sent(number, receipt_of(number, token), group=group, dedup=dedup)
            assert dedup is not None  # only its key can be taken
            same = self.store.same_key(connection, dedup)
            if same is None:  # that message was removed between the two statements
                continue
            if not same.over:
                return _duplicate(message, same)
            self.store.remove_over(connection, same.id)
        raise QueueError(
            f"A message for the queue {self.name!r} was not sent: with every attempt, another one"
            " with its deduplication key came and went. Send it again."
        )


def _duplicate(message: CheckedMessage, first: Any) -> Sent:
    return Sent(first.id, None, True, message.group, message.dedup, first.receives)


def _optional_word(name: str, value: object) -> str | None:
    return None if value is None else check_text(name, value)
