"""Messages are sent: checked first, then many at once, or one of a group or with a key."""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import Connection

from optilock.errors import ConfigurationError
from optilock.queue.errors import QueueError
from optilock.queue.limits import headers_text, json_text, milliseconds, ttl, word
from optilock.queue.messages import Draft, Sent, filled, receipt_of, tail_of
from optilock.queue.stored import KEEP, Stored

__all__ = ["Ready", "Sending"]

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
