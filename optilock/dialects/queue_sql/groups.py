"""Messages of groups: one of each group at a time, in the order in which they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, and_, delete, exists, func, not_, or_, select, update

from optilock.dialects.queue_sql.parts import Place, Row, by_id
from optilock.dialects.queue_sql.receiving import Looking, Receiving
from optilock.tokens.sql_functions import add_milliseconds


class Groups(Receiving, Looking):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        g = self.g
        self._some_group = select(g.c.group_key).where(self.mine(g), self.is_visible(g)).limit(1)

    def has_groups(self, connection: Connection) -> bool:
        """Return whether a group has a message to receive."""
        return connection.execute(self._some_group).first() is not None

    def claim_groups(
        self, connection: Connection, n: int, length: int, receipt: UUID
    ) -> tuple[list[Row], list[str]]:
        """The first messages of up to ``n`` groups; and the groups that have none."""
        m, g = self.m, self.g
        found = select(g.c.group_key).where(self.mine(g), self.is_visible(g))
        found = found.order_by(g.c.visible_at).limit(n)
        keys = list(connection.scalars(self.skip_locked(found, g)))
        if not keys:
            return [], []
        first = (
            select(m.c.id)
            .where(self.mine(m), m.c.group_key == g.c.group_key, m.c.visible_at.is_not(None))
            .order_by(m.c.id)
            .limit(1)
            .correlate(g)
            .scalar_subquery()
        )
        mine = select(g.c.group_key, first).where(self.mine(g), g.c.group_key.in_(keys))
        heads: dict[str, int | None] = {row[0]: row[1] for row in connection.execute(mine)}
        empty = [key for key in keys if heads[key] is None]
        rows = self._claim_heads(connection, [h for h in heads.values() if h], length, receipt)
        self._schedule(connection, heads, rows, length)
        return rows, empty

    def _claim_heads(
        self, connection: Connection, heads: list[int], length: int, receipt: UUID
    ) -> list[Row]:
        if not heads:
            return []
        if self.returns_rows:
            m = self.m
            statement = update(m).where(m.c.id.in_(heads), self.is_visible(m))
            statement = statement.values(self._received()).returning(*self.columns())
            given = {"length": length, "new_receipt": receipt}
            return sorted(connection.execute(statement, given).all(), key=by_id)
        return self._take(connection, heads, length, receipt)

    def _schedule(
        self, connection: Connection, heads: dict[str, int | None], rows: list[Row], length: int
    ) -> None:
        """Set the time of the next look at each of these groups."""
        m, g = self.m, self.g
        mine = self.mine(g)
        taken = {row.id: row.group_key for row in rows}
        for head, key in taken.items():
            statement = update(g).where(mine, g.c.group_key == key)
            values = {"holder": head, "visible_at": add_milliseconds(self.place.now, length)}
            connection.execute(statement.values(values))
        for key, first in heads.items():
            if key in taken.values():
                continue
            statement = update(g).where(mine, g.c.group_key == key)
            if first is None:  # a sender may be writing to it
                moment: Any = add_milliseconds(self.place.now, 1_000)
            else:
                moment = func.coalesce(
                    select(m.c.visible_at).where(m.c.id == first).scalar_subquery(),
                    g.c.visible_at,
                )
            connection.execute(statement.values(visible_at=moment))

    def lock_groups(self, connection: Connection, keys: Sequence[str]) -> None:
        """Lock them before their messages, as a receive does."""
        g = self.g
        found = select(g.c.group_key).where(self.mine(g), g.c.group_key.in_(keys))
        connection.execute(self.locked(found.order_by(g.c.group_key), g)).all()

    def reschedule(
        self,
        connection: Connection,
        keys: Sequence[str],
        holders: Sequence[int],
        *,
        length: int,
        done: bool,
    ) -> int:
        """The groups whose messages ``holders`` were received last; how many there are."""
        g = self.g
        values: dict[str, Any] = {"visible_at": add_milliseconds(self.place.now, length)}
        if done:
            values["holder"] = None
        mine = update(g).where(
            self.mine(g), g.c.group_key.in_(list(keys)), g.c.holder.in_(list(holders))
        )
        return int(connection.execute(mine.values(values)).rowcount)

    def cancel(self, connection: Connection, number: int, *, held: bool = False) -> bool:
        """Delete a message, and wait for no receiver; needs a transaction.

        One that a receiver has, or that has expired, is deleted only with ``held``.
        """
        m, g = self.m, self.g
        waits = and_(m.c.id == number, self.mine(m), m.c.visible_at.is_not(None))
        if not held:
            waits = and_(waits, self.lasts(), not_(self.is_held()))
        free = select(m.c.id, m.c.group_key).where(waits)
        row = connection.execute(self.skip_locked(free, m)).first()
        if row is None:
            return False
        connection.execute(delete(m).where(m.c.id == number))
        if row.group_key is not None:  # the next message may have waited for this one
            idle = select(g.c.group_key).where(
                self.mine(g),
                g.c.group_key == row.group_key,
                or_(g.c.holder.is_(None), g.c.holder == number),
            )
            for key in connection.scalars(self.skip_locked(idle, g)).all():
                now = update(g).where(self.mine(g), g.c.group_key == key)
                connection.execute(now.values(visible_at=self.place.now, holder=None))
        return True

    def remove_groups(self, connection: Connection, keys: Sequence[str]) -> None:
        """Remove groups without a message, except those that a sender has locked.

        Needs a transaction: a second statement looks for messages, and sees all that was committed
        before the groups were locked.
        """
        m, g = self.m, self.g
        found = select(g.c.group_key).where(self.mine(g), g.c.group_key.in_(list(keys)))
        free = list(connection.scalars(self.skip_locked_all(found, g)))
        if not free:
            return
        has_one = exists().where(
            m.c.tenant == g.c.tenant,
            m.c.queue == g.c.queue,
            m.c.group_key == g.c.group_key,
            m.c.visible_at.is_not(None),
        )
        gone = delete(g).where(self.mine(g), g.c.group_key.in_(free), ~has_one)
        connection.execute(gone)

    def hold_group(self, connection: Connection, key: str, delay: int) -> None:
        """There is such a group until the transaction ends.

        An INSERT would wait for a handler that has written to the group's row, and has not ended.
        """
        g = self.g
        kept = select(g.c.group_key).where(self.mine(g), g.c.group_key == key)
        kept = kept.with_for_update(of=g, read=True, key_share=True)
        for _ in range(100):  # another transaction may remove it in between
            if connection.execute(kept).first() is not None:
                return
            made = connection.execute(self.insert_unless(g).values(self._group(key, delay)))
            if made.rowcount == 1:
                return

    def _group(self, key: str, delay: int) -> dict[str, Any]:
        place = self.place
        return {
            "tenant": place.tenant,
            "queue": place.queue,
            "group_key": key,
            "visible_at": add_milliseconds(place.begun, delay),
        }

    def purge_groups(self, connection: Connection) -> None:
        m, g = self.m, self.g
        has_one = exists().where(
            m.c.tenant == g.c.tenant, m.c.queue == g.c.queue, m.c.group_key == g.c.group_key
        )
        found = select(g.c.group_key).where(self.mine(g), ~has_one)
        self.remove_groups(connection, list(connection.scalars(found)))
