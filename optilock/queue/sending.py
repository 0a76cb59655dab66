"""Messages are sent: checked first, then many at once, or one of a group or with a key."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from sqlalchemy import Connection

from optilock.errors import ConfigurationError
from optilock.queue.errors import QueueError
from optilock.queue.limits import headers_text, json_text, milliseconds, ttl, word
from optilock.queue.messages import Draft, Sent, receipt_of
from optilock.queue.stored import KEEP, Stored

__all__ = ["Sending"]

_TRIES = 20


class Sending(Stored):
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


def _without_marks(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("group", "dedup")}


def _optional_word(name: str, value: object) -> str | None:
    return None if value is None else word(name, value)
