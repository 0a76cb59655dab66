"""Messages without a group: received together, and deleted, kept or changed with their receipt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from optilock.dialects.queue_sql.parts import Parts, Place, Row, by_id, milliseconds
from optilock.tables.queue import RECEIPT
from optilock.tokens.sql_functions import add_milliseconds
from optilock.tokens.timestamp import UtcDateTime


class Receiving(Parts):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._claim = self._claiming()
        self._acknowledge = self._acknowledging(sa.delete(self.m))

    def _next(self) -> sa.Select[Any]:
        m = self.m
        found = sa.select(m.c.id).where(self.mine(m), m.c.group_key.is_(None), self.is_visible(m))
        found = found.order_by(m.c.visible_at, m.c.id).limit(
            sa.bindparam("n", type_=sa.BigInteger())
        )
        return self.skip_locked(found, m)

    def _claiming(self) -> Any:
        chosen = self.m.c.id.in_(self._next().scalar_subquery())
        return sa.update(self.m).where(chosen).values(self._received()).returning(*self.columns())

    def claim(self, connection: sa.Connection, n: int, length: int, receipt: UUID) -> list[Row]:
        """Receive up to ``n`` messages, hidden for ``length`` milliseconds."""
        given = {"n": n, "length": length, "new_receipt": receipt}
        return sorted(connection.execute(self._claim, given).all(), key=by_id)

    def _take(
        self, connection: sa.Connection, ids: list[int], length: int, receipt: UUID
    ) -> list[Row]:
        """Write rows that are locked, and read them."""
        if not ids:
            return []
        m = self.m
        mine = sa.update(m).where(m.c.id.in_(ids), self.is_visible(m)).values(self._received())
        connection.execute(mine, {"length": length, "new_receipt": receipt})
        taken = sa.select(*self.columns()).where(m.c.id.in_(ids), m.c.receipt == receipt)
        return list(connection.execute(taken.order_by(m.c.id)).all())

    def _acknowledging(self, statement: Any) -> Any:
        m = self.m.c
        return statement.where(
            m.id.in_(sa.bindparam("ids", expanding=True, type_=sa.BigInteger())),
            m.receipt == sa.bindparam("old_receipt", type_=RECEIPT),
            self.mine(self.m),
            self.lasts(),
        )

    def acknowledge(self, connection: sa.Connection, ids: Sequence[int], receipt: UUID) -> int:
        """Delete messages that were received together; how many."""
        given = {"ids": list(ids), "old_receipt": receipt}
        return int(connection.execute(self._acknowledge, given).rowcount)

    def acknowledge_and_claim(
        self,
        connection: sa.Connection,
        done: tuple[Sequence[int], UUID],
        n: int,
        length: int,
        new: UUID,
    ) -> tuple[int, list[Row]]:
        """Both; in one trip where :attr:`one_trip`."""
        return self.acknowledge(connection, *done), self.claim(connection, n, length, new)

    def remove(self, connection: sa.Connection, ids: Sequence[int], receipt: UUID) -> None:
        """Delete messages that have expired."""
        m = self.m
        connection.execute(sa.delete(m).where(m.c.id.in_(list(ids)), m.c.receipt == receipt))

    def keep_key(
        self, connection: sa.Connection, ids: Sequence[int], receipt: UUID, window: int
    ) -> int:
        """Delete messages, and keep their deduplication keys for ``window`` milliseconds."""
        statement = self._acknowledging(sa.update(self.m)).values(
            visible_at=None,
            receipt=None,
            group_key=None,
            body="null",
            headers=None,
            last_error=None,
            expires_at=add_milliseconds(self.place.now, milliseconds()),
        )
        given = {"ids": list(ids), "old_receipt": receipt, "length": window}
        return int(connection.execute(statement, given).rowcount)

    def ended_keys(self, connection: sa.Connection, n: int) -> list[int]:
        """Those of the first ``n`` rows with only a deduplication key whose window has ended."""
        m = self.m
        kept = (
            sa.select(m.c.id, m.c.expires_at)
            .where(self.mine(m), m.c.group_key.is_(None), m.c.visible_at.is_(None))
            .order_by(m.c.id)
            .limit(n)
            .subquery()
        )
        ended = sa.select(kept.c.id).where(kept.c.expires_at <= self.place.begun)
        return list(connection.scalars(ended))

    def remove_keys(self, connection: sa.Connection, ids: Sequence[int]) -> None:
        """Delete such rows, except those that a transaction has locked; needs a transaction."""
        m = self.m
        ended = sa.and_(m.c.visible_at.is_(None), m.c.expires_at <= self.place.begun)
        found = sa.select(m.c.id).where(m.c.id.in_(list(ids)), self.mine(m), ended)
        free = list(connection.scalars(self.skip_locked_all(found, m)))
        connection.execute(sa.delete(m).where(m.c.id.in_(free), self.mine(m), ended))

    def archive(self, connection: sa.Connection, ids: Sequence[int], receipt: UUID) -> int:
        """Copy messages into the archive; they are deleted next, in the same transaction."""
        m, a = self.m, self.a
        same = [column.name for column in a.c if column.name in m.c and column.name != "id"]
        found = self._acknowledging(
            sa.select(m.c.id, self.place.now, *(m.c[name] for name in same))
        )
        statement = sa.insert(a).from_select(["id", "archived_at", *same], found)
        given = {"ids": list(ids), "old_receipt": receipt}
        return int(connection.execute(statement, given).rowcount)

    def change(
        self,
        connection: sa.Connection,
        ids: Sequence[int],
        receipt: UUID,
        values: Mapping[str, Any],
        *,
        length: int | None,
    ) -> int:
        """Set columns of messages that were received together; visible after ``length``."""
        if length is not None:
            values = {**values, "visible_at": add_milliseconds(self.place.now, length)}
        statement = self._acknowledging(sa.update(self.m)).values(values)
        given = {"ids": list(ids), "old_receipt": receipt}
        return int(connection.execute(statement, given).rowcount)

    def beat(
        self,
        connection: sa.Connection,
        ids: Sequence[int],
        receipt: UUID,
        length: int,
        *,
        grouped: bool,
    ) -> set[int]:
        """Hide messages for longer; which are still there. Needs a transaction.

        Locked messages are left alone: deleting a message must not wait for this, or the reverse.
        """
        m, g = self.m, self.g
        held = sa.select(m.c.id).where(self.mine(m), m.c.id.in_(list(ids)), m.c.receipt == receipt)
        free = list(connection.scalars(self.skip_locked(held, m)))
        if free:
            values = {"visible_at": add_milliseconds(self.place.now, length)}
            connection.execute(sa.update(m).where(m.c.id.in_(free)).values(values))
            if grouped:
                mine = sa.update(g).where(self.mine(g), g.c.holder.in_(free))
                connection.execute(mine.values(values))
        return set(connection.scalars(held)) if len(free) < len(ids) else set(free)


# -- look at messages, count them, remove many -----------------------------------------------------


class Looking(Parts):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._due = self._next_due()

    def peek(self, connection: sa.Connection, n: int) -> list[Row]:
        m = self.m
        found = sa.select(*self.columns()).where(self.mine(m), self.is_visible(m), self.lasts())
        alone = found.where(m.c.group_key.is_(None)).order_by(m.c.visible_at, m.c.id).limit(n)
        rows = list(connection.execute(alone).all())
        if len(rows) < n:
            grouped = found.where(m.c.group_key.is_not(None)).order_by(m.c.id)
            rows += connection.execute(grouped.limit(n - len(rows))).all()
        return rows

    def find(self, connection: sa.Connection, number: int) -> Row | None:
        m = self.m
        found = sa.select(*self.columns()).where(m.c.id == number, self.mine(m))
        return connection.execute(found.where(m.c.visible_at.is_not(None))).first()

    def look(self, connection: sa.Connection, ids: Sequence[int]) -> dict[int, UUID | None]:
        """Id -> receipt, of the messages that are there."""
        m = self.m
        found = sa.select(m.c.id, m.c.receipt).where(
            m.c.id.in_(list(ids)), self.mine(m), self.lasts(), m.c.visible_at.is_not(None)
        )
        return {row[0]: row[1] for row in connection.execute(found)}

    def _next_due(self) -> Any:
        m, g = self.m, self.g
        alone = sa.select(m.c.visible_at).where(
            self.mine(m), m.c.group_key.is_(None), m.c.visible_at.is_not(None)
        )
        grouped = sa.select(g.c.visible_at).where(self.mine(g))
        firsts = [
            query.order_by(table.c.visible_at).limit(1).subquery()
            for query, table in ((alone, m), (grouped, g))
        ]
        both = sa.union_all(*(sa.select(first.c.visible_at) for first in firsts)).subquery()
        return sa.select(sa.func.min(both.c.visible_at, type_=UtcDateTime()), self.place.begun)

    def due(self, connection: sa.Connection) -> float | None:
        """Seconds until a message can be received: 0 or less, now; ``None``, there is none."""
        moment, now = connection.execute(self._due).one()
        return None if moment is None else float((moment - now).total_seconds())

    def is_held(self) -> sa.ColumnElement[bool]:
        """A receiver has the message."""
        m = self.m.c
        hidden = sa.not_(self.is_visible(self.m))
        return sa.and_(hidden, m.receipt.is_not(None), m.receives > 0)

    def summaries(self, connection: sa.Connection, tenant: str | None) -> list[Any]:
        """Each queue: ``tenant``, ``queue``, counts, ``oldest``, and the time."""
        m = self.m
        is_key = m.c.visible_at.is_(None)
        seen = sa.case((self.is_visible(m), m.c.visible_at))
        found = sa.select(
            m.c.tenant,
            m.c.queue,
            sa.func.sum(sa.case((is_key, 0), else_=1)).label("there"),
            sa.func.sum(sa.case((is_key, 1), else_=0)).label("kept"),
            sa.func.sum(sa.case((self.is_held(), 1), else_=0)).label("held"),
            sa.func.min(seen, type_=UtcDateTime()).label("oldest"),
            self.place.begun.label("now"),
        ).where(sa.or_(self.lasts(), is_key))
        if tenant is not None:
            found = found.where(m.c.tenant == tenant)
        return list(connection.execute(found.group_by(m.c.tenant, m.c.queue)).all())

    def counts(self, connection: sa.Connection, dead: str, most: int | None) -> Any:
        """``waiting``, ``hidden``, ``dead``, ``kept``, ``oldest``, and the time."""
        m = self.m
        mine, here = sa.and_(self.mine(m), self.lasts()), self.is_visible(m)
        buried = sa.and_(m.c.tenant == self.place.tenant, m.c.queue == dead)
        alone = m.c.group_key.is_(None)
        oldest = (
            sa.select(m.c.visible_at)
            .where(mine, alone, here)
            .order_by(m.c.visible_at)
            .limit(1)
            .scalar_subquery()
        )
        return connection.execute(
            sa.select(
                self._counted(sa.and_(mine, here), most).label("waiting"),
                self._counted(sa.and_(mine, m.c.visible_at > self.place.begun), most).label(
                    "hidden"
                ),
                self._counted(sa.and_(buried, m.c.visible_at.is_not(None)), most).label("dead"),
                self._counted(sa.and_(self.mine(m), m.c.visible_at.is_(None)), most).label("kept"),
                oldest.label("oldest"),
                self.place.begun.label("now"),
            )
        ).one()

    def _counted(self, which: sa.ColumnElement[bool], most: int | None) -> Any:
        """Count to ``most``. Messages of groups have their own index, so there are two looks."""
        found = sa.select(sa.literal(1).label("one")).select_from(self.m).where(which)
        key = self.m.c.group_key
        both = sa.union_all(found.where(key.is_(None)), found.where(key.is_not(None)))
        if most is not None:
            both = both.limit(most)
        return sa.select(sa.func.count()).select_from(both.subquery()).scalar_subquery()

    def purge(
        self, connection: sa.Connection, after: int, n: int, *, expired: bool
    ) -> tuple[int | None, int]:
        """Delete about ``n`` messages after an id, or those that have expired.

        Return the last id, which is ``None`` at the end, and the number of deleted messages. A
        look from the begin would read all that were deleted before.
        """
        m = self.m
        which = sa.and_(self.mine(m), m.c.id > after)
        if expired:
            which = sa.and_(which, m.c.expires_at <= self.place.begun)
        found = sa.select(m.c.id).where(which).order_by(m.c.id).limit(n).subquery()
        last = connection.scalar(sa.select(sa.func.max(found.c.id)))
        if last is None:
            return None, 0
        gone = connection.execute(sa.delete(m).where(which, m.c.id <= last))
        return int(last), int(gone.rowcount)


# -- wait for messages -----------------------------------------------------------------------------
#
# A database that has notifications wakes the sessions that wait.


class Waiting(Parts):
    #: Whether waiting receivers get notifications; the methods below are called only then.
    notifies = False

    def can_listen(self, connection: sa.Connection) -> bool:
        """Return whether the driver receives notifications, from one process without a pooler."""
        return False

    def listen(self, connection: sa.Connection) -> None:
        """Let this connection receive the notifications of senders."""

    def begin_watch(self, connection: sa.Connection) -> bool:
        """Let senders notify this session until :meth:`end_watch`; ``False``: it cannot."""
        return False

    def is_watched(self, connection: sa.Connection) -> bool:
        """Return whether a session has the watch."""
        return False

    def end_watch(self, connection: sa.Connection) -> None:
        """Give up the watch, and wake the other sessions that wait."""

    def tell_waiting(self, connection: sa.Connection) -> None:
        """Wake the sessions that wait for messages, once this transaction is committed."""
