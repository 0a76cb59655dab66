"""Messages are sent: many at once, or one of a group or with a deduplication key."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Connection, and_, bindparam, delete, insert, select

from optilock.conditions.clock import later
from optilock.dialects.messages.parts import Parts, milliseconds
from optilock.tables.queue import RECEIPT

__all__ = ["Sending"]


class Sending(Parts):
    def _new(self) -> dict[str, Any]:
        begun = self.place.begun
        return {
            "tenant": self.place.tenant,
            "queue": self.place.queue,
            "visible_at": later(begun, milliseconds("delay")),
            "sent_at": begun,
            "expires_at": later(begun, milliseconds("ttl")),
            "receipt": bindparam("new_receipt", type_=RECEIPT),
            "receives": 0,
            "body": bindparam("new_body"),
            "headers": bindparam("new_headers"),
        }

    def send(self, connection: Connection, rows: list[dict[str, Any]], receipt: UUID) -> list[int]:
        """Insert messages; their ids, in their order.

        A row has ``delay``, ``ttl`` (milliseconds, or ``None``), ``new_body``, which is JSON in one
        line, and ``new_headers``.
        """
        statement = insert(self.m).values(self._new()).returning(self.m.c.id)
        given = [{**row, "new_receipt": receipt} for row in rows]
        return [connection.execute(statement, one).scalar_one() for one in given]

    def send_marked(
        self, connection: Connection, row: dict[str, Any], group: str | None, dedup: str | None
    ) -> int | None:
        """Insert a message of a group, or with a deduplication key; ``None``: there is one."""
        values = {**self._new(), "group_key": group, "dedup_key": dedup}
        statement = self.insert_unless(self.m).values(values).returning(self.m.c.id)
        found: int | None = connection.execute(statement, row).scalar()
        return found

    def same_key(self, connection: Connection, dedup: str) -> Any:
        """``id``, ``receives`` and ``over`` of the message with that key: is it of no effect?"""
        m = self.m
        over = and_(m.c.expires_at.is_not(None), m.c.expires_at <= self.place.begun)
        found = select(m.c.id, m.c.receives, over.label("over"))
        return connection.execute(found.where(self.mine(m), m.c.dedup_key == dedup)).first()

    def remove_over(self, connection: Connection, number: int) -> None:
        m = self.m
        mine = delete(m).where(m.c.id == number, self.mine(m), m.c.expires_at <= self.place.begun)
        connection.execute(mine)
