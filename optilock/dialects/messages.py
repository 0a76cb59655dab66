"""The statements of a queue: values in, rows out. What they mean is :mod:`optilock.queue`'s.

A statement is made once for each queue, and gets its values as parameters. :class:`Messages` is for
any database that has RETURNING; each engine's file has what is better there, or different.

Two clocks: what is looked up in an index is compared with the begin of the statement
(:class:`StatementTime`), because databases use an index for nothing that moves while they look.
What begins now (a time out) begins at :class:`~optilock.conditions.clock.Clock`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FunctionElement,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.ext.compiler import compiles

from optilock.conditions.clock import Clock, later
from optilock.errors import ConfigurationError
from optilock.tables.queue import RECEIPT, MessageTables
from optilock.tokens.timestamp import UtcDateTime

__all__ = ["Messages", "Place", "StatementTime"]

#: A message as it is read; the order is that of :meth:`Messages.columns`.
Row = Any


class StatementTime(FunctionElement[Any]):
    """The begin of the statement, in UTC."""

    inherit_cache = True
    type = UtcDateTime()


@compiles(StatementTime)
def _on_another_database(element: Any, compiler: Any, **options: Any) -> str:
    """Each engine that can has its own rule in its folder; this is for all others."""
    if compiler.dialect.name == "default":  # str(statement)
        return "CURRENT_TIMESTAMP"
    raise ConfigurationError(
        f"A queue works on PostgreSQL, MariaDB and SQLite, not on {compiler.dialect.name}: optilock"
        " does not know its clock."
    )


@dataclass(frozen=True)
class Place:
    """Where the messages of a queue are, and by which clock."""

    tables: MessageTables
    tenant: str
    queue: str
    #: SQL of the time, in place of the database's own.
    clock: ColumnElement[Any] | None = None

    @property
    def now(self) -> ColumnElement[Any]:
        return Clock() if self.clock is None else self.clock

    @property
    def begun(self) -> ColumnElement[Any]:
        return StatementTime() if self.clock is None else self.clock


def _length(name: str = "length") -> Any:
    return bindparam(name, type_=BigInteger())


class Messages:
    """The statements of one queue, for any database with RETURNING."""

    #: How a transaction begins on a connection in AUTOCOMMIT mode.
    begin = "BEGIN"
    #: Does a receive that follows an acknowledgement go with it, in one trip?
    one_trip = False
    #: Are there notifications for those who wait? The next five are asked where there are.
    notifies = False

    def can_listen(self, connection: Connection) -> bool:
        """Does the driver hear notifications, and talk to one process, not to a pooler's many?"""
        return False

    def listen(self, connection: Connection) -> None:
        """From now on this connection hears that messages were sent."""

    def begin_watch(self, connection: Connection) -> bool:
        """From now on, until :meth:`end_watch`, whoever sends tells it. False: not for us."""
        return False

    def is_watched(self, connection: Connection) -> bool:
        """Does somebody have the watch?"""
        return False

    def end_watch(self, connection: Connection) -> None:
        """Give up the watch, and tell the others who wait."""

    #: Does an UPDATE tell the rows that it has written?
    returns_rows = True

    def __init__(self, place: Place) -> None:
        self.place = place
        self.m, self.g, self.a = place.tables
        self._claim = self._claiming()
        self._acknowledge = self._acknowledging(delete(self.m))
        self._due = self._next_due()
        g = self.g
        self._some_group = select(g.c.group_key).where(self.mine(g), self.is_visible(g)).limit(1)

    def prepare(self, connection: Connection) -> None:
        """Before the first statement of a connection of our own."""

    @contextmanager
    def atomic(self, connection: Connection) -> Iterator[None]:
        """All or nothing, on a connection in AUTOCOMMIT mode."""
        connection.exec_driver_sql(self.begin)
        try:
            yield
        except BaseException:
            if not connection.invalidated:
                connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")

    # -- parts of statements -------------------------------------------------------------------

    def mine(self, table: Table) -> ColumnElement[bool]:
        c, place = table.c, self.place
        return and_(c.tenant == place.tenant, c.queue == place.queue)

    def lasts(self) -> ColumnElement[bool]:
        """The message has not expired."""
        m = self.m.c
        return or_(m.expires_at.is_(None), m.expires_at > self.place.begun)

    def is_visible(self, table: Table) -> ColumnElement[bool]:
        return table.c.visible_at <= self.place.begun

    def columns(self) -> list[ColumnElement[Any]]:
        m = self.m.c
        return [
            m.id,
            m.body,
            m.headers,
            m.sent_at,
            m.expires_at,
            m.visible_at,
            m.receives,
            m.group_key,
            m.dedup_key,
            m.last_error,
            (m.expires_at <= self.place.begun).label("expired"),
        ]

    def skip_locked(self, query: Select[Any], table: Table) -> Select[Any]:
        """Rows that others have locked are left out, and those found are locked."""
        return query.with_for_update(of=table, skip_locked=True, key_share=True)

    def locked(self, query: Select[Any], table: Table) -> Select[Any]:
        return query.with_for_update(of=table, key_share=True)

    def _next(self) -> Select[Any]:
        m = self.m
        found = select(m.c.id).where(self.mine(m), m.c.group_key.is_(None), self.is_visible(m))
        found = found.order_by(m.c.visible_at, m.c.id).limit(bindparam("n", type_=BigInteger()))
        return self.skip_locked(found, m)

    def _received(self) -> dict[str, Any]:
        return {
            "visible_at": later(self.place.now, _length()),
            "receipt": bindparam("new_receipt", type_=RECEIPT),
            "receives": self.m.c.receives + 1,
        }

    # -- messages without a group --------------------------------------------------------------

    def _claiming(self) -> Any:
        chosen = self.m.c.id.in_(self._next().scalar_subquery())
        return update(self.m).where(chosen).values(self._received()).returning(*self.columns())

    def claim(self, connection: Connection, n: int, length: int, receipt: UUID) -> list[Row]:
        """Receive up to ``n`` messages, hidden for ``length`` milliseconds."""
        given = {"n": n, "length": length, "new_receipt": receipt}
        return sorted(connection.execute(self._claim, given).all(), key=_by_id)

    def _acknowledging(self, statement: Any) -> Any:
        m = self.m.c
        return statement.where(
            m.id.in_(bindparam("ids", expanding=True, type_=BigInteger())),
            m.receipt == bindparam("old_receipt", type_=RECEIPT),
            self.mine(self.m),
            self.lasts(),
        )

    def acknowledge(self, connection: Connection, ids: Sequence[int], receipt: UUID) -> int:
        """Delete messages that were received together; how many."""
        given = {"ids": list(ids), "old_receipt": receipt}
        return int(connection.execute(self._acknowledge, given).rowcount)

    def acknowledge_and_claim(
        self,
        connection: Connection,
        done: tuple[Sequence[int], UUID],
        n: int,
        length: int,
        new: UUID,
    ) -> tuple[int, list[Row]]:
        """Both; in one trip where :attr:`one_trip`."""
        return self.acknowledge(connection, *done), self.claim(connection, n, length, new)

    def remove(self, connection: Connection, ids: Sequence[int], receipt: UUID) -> None:
        """Delete messages that have expired."""
        m = self.m
        connection.execute(delete(m).where(m.c.id.in_(list(ids)), m.c.receipt == receipt))

    def keep_key(
        self, connection: Connection, ids: Sequence[int], receipt: UUID, window: int
    ) -> int:
        """Delete messages, and keep their deduplication keys for ``window`` milliseconds."""
        statement = self._acknowledging(update(self.m)).values(
            visible_at=None,
            receipt=None,
            body="null",
            headers=None,
            last_error=None,
            expires_at=later(self.place.now, _length()),
        )
        given = {"ids": list(ids), "old_receipt": receipt, "length": window}
        return int(connection.execute(statement, given).rowcount)

    def archive(self, connection: Connection, ids: Sequence[int], receipt: UUID) -> int:
        """Copy messages into the archive; they are deleted next, in the same transaction."""
        m, a = self.m, self.a
        same = [column.name for column in a.c if column.name in m.c and column.name != "id"]
        found = self._acknowledging(select(m.c.id, self.place.now, *(m.c[name] for name in same)))
        statement = insert(a).from_select(["id", "archived_at", *same], found)
        given = {"ids": list(ids), "old_receipt": receipt}
        return int(connection.execute(statement, given).rowcount)

    def change(
        self,
        connection: Connection,
        ids: Sequence[int],
        receipt: UUID,
        values: Mapping[str, Any],
        *,
        length: int | None,
    ) -> int:
        """Set columns of messages that were received together; visible after ``length``."""
        if length is not None:
            values = {**values, "visible_at": later(self.place.now, length)}
        statement = self._acknowledging(update(self.m)).values(values)
        given = {"ids": list(ids), "old_receipt": receipt}
        return int(connection.execute(statement, given).rowcount)

    def beat(
        self,
        connection: Connection,
        ids: Sequence[int],
        receipt: UUID,
        length: int,
        *,
        grouped: bool,
    ) -> set[int]:
        """Hide messages for longer; which are still there. Needs a transaction.

        What is locked is left alone: whoever deletes a message must not wait for us, or we for him.
        """
        m, g = self.m, self.g
        held = select(m.c.id).where(self.mine(m), m.c.id.in_(list(ids)), m.c.receipt == receipt)
        free = list(connection.scalars(self.skip_locked(held, m)))
        if free:
            values = {"visible_at": later(self.place.now, length)}
            connection.execute(update(m).where(m.c.id.in_(free)).values(values))
            if grouped:
                mine = update(g).where(self.mine(g), g.c.holder.in_(free))
                connection.execute(mine.values(values))
        return set(connection.scalars(held)) if len(free) < len(ids) else set(free)

    def has_groups(self, connection: Connection) -> bool:
        """Is there a group with something to receive?"""
        return connection.execute(self._some_group).first() is not None

    # -- messages of groups --------------------------------------------------------------------

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
            return sorted(connection.execute(statement, given).all(), key=_by_id)
        return self._take(connection, heads, length, receipt)

    def _take(
        self, connection: Connection, ids: list[int], length: int, receipt: UUID
    ) -> list[Row]:
        """Write rows that are locked, and read them."""
        if not ids:
            return []
        m = self.m
        mine = update(m).where(m.c.id.in_(ids), self.is_visible(m)).values(self._received())
        connection.execute(mine, {"length": length, "new_receipt": receipt})
        taken = select(*self.columns()).where(m.c.id.in_(ids), m.c.receipt == receipt)
        return list(connection.execute(taken.order_by(m.c.id)).all())

    def _schedule(
        self, connection: Connection, heads: dict[str, int | None], rows: list[Row], length: int
    ) -> None:
        """When each of these groups is to be looked at next."""
        m, g = self.m, self.g
        mine = self.mine(g)
        taken = {row.id: row.group_key for row in rows}
        for head, key in taken.items():
            statement = update(g).where(mine, g.c.group_key == key)
            values = {"holder": head, "visible_at": later(self.place.now, length)}
            connection.execute(statement.values(values))
        for key, first in heads.items():
            if key in taken.values():
                continue
            statement = update(g).where(mine, g.c.group_key == key)
            if first is None:  # somebody may be sending to it
                moment: Any = later(self.place.now, 1_000)
            else:
                moment = func.coalesce(
                    select(m.c.visible_at).where(m.c.id == first).scalar_subquery(),
                    g.c.visible_at,
                )
            connection.execute(statement.values(visible_at=moment))

    def lock_groups(self, connection: Connection, keys: Sequence[str]) -> None:
        """Before their messages, as who receives does."""
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
        values: dict[str, Any] = {"visible_at": later(self.place.now, length)}
        if done:
            values["holder"] = None
        mine = update(g).where(
            self.mine(g), g.c.group_key.in_(list(keys)), g.c.holder.in_(list(holders))
        )
        return int(connection.execute(mine.values(values)).rowcount)

    def remove_groups(self, connection: Connection, keys: Sequence[str]) -> None:
        """Those that have no message; whoever is sending to one keeps it. Needs a transaction.

        The messages are looked for in a statement of its own, which sees all that was committed
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

    def skip_locked_all(self, query: Select[Any], table: Table) -> Select[Any]:
        """Those left out as well on which somebody relies."""
        return query.with_for_update(of=table, skip_locked=True)

    def hold_group(self, connection: Connection, key: str, delay: int) -> None:
        """There is such a group until the transaction ends."""
        g = self.g
        kept = select(g.c.group_key).where(self.mine(g), g.c.group_key == key)
        kept = kept.with_for_update(of=g, read=True, key_share=True)
        for _ in range(100):  # each time somebody else has removed it in between
            connection.execute(self.insert_unless(g).values(self._group(key, delay)))
            if connection.execute(kept).first() is not None:
                return

    def _group(self, key: str, delay: int) -> dict[str, Any]:
        place = self.place
        return {
            "tenant": place.tenant,
            "queue": place.queue,
            "group_key": key,
            "visible_at": later(place.begun, delay),
        }

    # -- sending -------------------------------------------------------------------------------

    def insert_unless(self, table: Table) -> Any:
        """An INSERT that does nothing where there is such a row."""
        raise NotImplementedError

    def _new(self) -> dict[str, Any]:
        begun = self.place.begun
        return {
            "tenant": self.place.tenant,
            "queue": self.place.queue,
            "visible_at": later(begun, _length("delay")),
            "sent_at": begun,
            "expires_at": later(begun, _length("ttl")),
            "receipt": bindparam("new_receipt", type_=RECEIPT),
            "receives": 0,
            "body": bindparam("new_body"),
            "headers": bindparam("new_headers"),
        }

    def send(self, connection: Connection, rows: list[dict[str, Any]]) -> list[int]:
        """Insert messages; their ids, in their order.

        A row has ``delay``, ``ttl`` (milliseconds, or ``None``), ``new_receipt``, the same for all,
        ``new_body`` and ``new_headers``.
        """
        statement = insert(self.m).values(self._new())
        return [
            connection.execute(statement.returning(self.m.c.id), row).scalar_one() for row in rows
        ]

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

    def tell_waiting(self, connection: Connection) -> None:
        """Wake up who waits for messages, once this transaction is committed."""

    # -- looking -------------------------------------------------------------------------------

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

    # -- in bulk -------------------------------------------------------------------------------

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

    def purge_groups(self, connection: Connection) -> None:
        m, g = self.m, self.g
        has_one = exists().where(
            m.c.tenant == g.c.tenant, m.c.queue == g.c.queue, m.c.group_key == g.c.group_key
        )
        found = select(g.c.group_key).where(self.mine(g), ~has_one)
        self.remove_groups(connection, list(connection.scalars(found)))

    def move(self, connection: Connection, number: int, values: Mapping[str, Any]) -> int:
        m = self.m
        moved = {"visible_at": self.place.begun, "receipt": None, **values}
        mine = update(m).where(m.c.id == number, self.mine(m))
        return int(connection.execute(mine.values(moved)).rowcount)


def _by_id(row: Row) -> Any:
    return row[0]
