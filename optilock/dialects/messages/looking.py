"""Messages are looked at, counted, and removed in bulk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    delete,
    func,
    literal,
    select,
    union_all,
)

from optilock.dialects.messages.parts import Parts, Place, Row
from optilock.tokens.timestamp import UtcDateTime

__all__ = ["Looking"]


class Looking(Parts):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._due = self._next_due()

    def peek(self, connection: Connection, n: int) -> list[Row]:
        m = self.m
        found = select(*self.columns()).where(self.mine(m), self.is_visible(m), self.lasts())
        alone = found.where(m.c.group_key.is_(None)).order_by(m.c.visible_at, m.c.id).limit(n)
        rows = list(connection.execute(alone).all())
        if len(rows) < n:
            grouped = found.where(m.c.group_key.is_not(None)).order_by(m.c.id)
            rows += connection.execute(grouped.limit(n - len(rows))).all()
        return rows

    def look(self, connection: Connection, ids: Sequence[int]) -> dict[int, UUID | None]:
        """Id -> receipt, of the messages that are there."""
        m = self.m
        found = select(m.c.id, m.c.receipt).where(
            m.c.id.in_(list(ids)), self.mine(m), self.lasts(), m.c.visible_at.is_not(None)
        )
        return {row[0]: row[1] for row in connection.execute(found)}

    def _next_due(self) -> Any:
        m, g = self.m, self.g
        alone = select(m.c.visible_at).where(
            self.mine(m), m.c.group_key.is_(None), m.c.visible_at.is_not(None)
        )
        grouped = select(g.c.visible_at).where(self.mine(g))
        firsts = [
            query.order_by(table.c.visible_at).limit(1).subquery()
            for query, table in ((alone, m), (grouped, g))
        ]
        both = union_all(*(select(first.c.visible_at) for first in firsts)).subquery()
        return select(func.min(both.c.visible_at, type_=UtcDateTime()), self.place.begun)

    def due(self, connection: Connection) -> float | None:
        """Seconds until a message can be received: 0 or less, now; ``None``, there is none."""
        moment, now = connection.execute(self._due).one()
        return None if moment is None else float((moment - now).total_seconds())

    def counts(self, connection: Connection, dead: str, most: int | None) -> Any:
        """``waiting``, ``hidden``, ``dead``, ``oldest``, and the time."""
        m = self.m
        mine, here = and_(self.mine(m), self.lasts()), self.is_visible(m)
        buried = and_(m.c.tenant == self.place.tenant, m.c.queue == dead)
        alone = m.c.group_key.is_(None)
        oldest = (
            select(m.c.visible_at)
            .where(mine, alone, here)
            .order_by(m.c.visible_at)
            .limit(1)
            .scalar_subquery()
        )
        return connection.execute(
            select(
                self._counted(and_(mine, here), most).label("waiting"),
                self._counted(and_(mine, m.c.visible_at > self.place.begun), most).label("hidden"),
                self._counted(and_(buried, m.c.visible_at.is_not(None)), most).label("dead"),
                oldest.label("oldest"),
                self.place.begun.label("now"),
            )
        ).one()

    def _counted(self, which: ColumnElement[bool], most: int | None) -> Any:
        found = select(literal(1).label("one")).select_from(self.m).where(which)
        if most is not None:
            found = found.limit(most)
        return select(func.count()).select_from(found.subquery()).scalar_subquery()

    def purge(self, connection: Connection, n: int, *, expired: bool) -> int:
        """Delete up to ``n`` messages, or those that have expired; how many were looked at."""
        m = self.m
        found = select(m.c.id).where(self.mine(m))
        if expired:
            found = found.where(m.c.expires_at <= self.place.begun)
        ids = list(connection.scalars(found.limit(n)))
        if ids:
            connection.execute(delete(m).where(m.c.id.in_(ids), self.mine(m)))
        return len(ids)
