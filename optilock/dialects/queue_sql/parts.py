"""The parts of a queue's statements: its place, its clocks, its columns and its locks.

Two clocks: values that an index finds are compared with the begin of the statement
(:class:`StatementTime`), because databases use an index for nothing that moves while they look.
What begins now (a time out) begins at :class:`~optilock.tokens.timestamp.ServerTime`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from optilock.tables.queue import RECEIPT, MessageTables
from optilock.tokens.sql_functions import ServerTime, StatementTime, add_milliseconds

#: A message as it is read; the order is that of :meth:`Parts.columns`.
Row = Any


@dataclass(frozen=True)
class Place:
    """The tables, tenant, name and clock of a queue's messages."""

    tables: MessageTables
    tenant: str
    queue: str
    #: SQL of the time, in place of the database's own.
    clock: sa.ColumnElement[Any] | None = None

    @property
    def now(self) -> sa.ColumnElement[Any]:
        return ServerTime() if self.clock is None else self.clock

    @property
    def begun(self) -> sa.ColumnElement[Any]:
        return StatementTime() if self.clock is None else self.clock


@dataclass(frozen=True)
class HandlerConnection:
    """The connection on which a handler works, and by which its server knows it."""

    connection: sa.Connection
    known: Any = None

    def leave_pool(self) -> None:
        """Give its place back to the pool: a handler that hangs would keep it for ever.

        After that, no other user of the pool can get this connection.
        """
        with suppress(Exception):  # the handler has closed it in the meantime
            if not self.connection.closed and isinstance(self.connection.engine.pool, QueuePool):
                self.connection.detach()


#: An attribute of an error: it came before COMMIT was sent.
_UNDONE = "_optilock_undone"


def was_undone(error: BaseException) -> bool:
    """Return whether the error left :meth:`Parts.atomic` before COMMIT was sent."""
    return bool(vars(error).get(_UNDONE))


def _roll_back(connection: sa.Connection) -> None:
    """The error that is under way is the news: a connection that cannot is thrown away."""
    try:
        connection.exec_driver_sql("ROLLBACK")
    except DBAPIError as error:
        connection.invalidate(error)


def milliseconds(name: str = "length") -> Any:
    """A number of them, as a parameter."""
    return sa.bindparam(name, type_=sa.BigInteger())


class Transactions:
    """The transactions of a queue, and those of handlers that do not return."""

    #: How a transaction begins on a connection in AUTOCOMMIT mode.
    begin = "BEGIN"

    #: Whether a receive after an acknowledgement is sent with it, in one trip.
    one_trip = False

    def prepare(self, connection: sa.Connection) -> None:
        """Before the first statement of a connection of our own."""

    @contextmanager
    def atomic(self, connection: sa.Connection) -> Iterator[None]:
        """All or nothing, on a connection in AUTOCOMMIT mode."""
        try:
            connection.exec_driver_sql(self.begin)
        except DBAPIError as error:
            vars(error)[_UNDONE] = True
            raise
        try:
            yield
        except BaseException as error:
            vars(error)[_UNDONE] = True
            if not connection.invalidated:
                _roll_back(connection)
            raise
        connection.exec_driver_sql("COMMIT")

    @contextmanager
    def atomic_within(self, connection: sa.Connection, length: int) -> Iterator[None]:
        """Like :meth:`atomic`, but wait for a lock no longer than ``length`` milliseconds."""
        with self.atomic(connection), self.limited_waits(connection, length):
            yield

    def limited_waits(self, connection: sa.Connection, length: int) -> AbstractContextManager[None]:
        """Limit the waits for locks in this transaction; a database without such limits waits."""
        return nullcontext()

    def known_by(self, connection: sa.Connection) -> Any:
        """Return by which its server knows the connection of a handler."""

    def end_handler(
        self,
        connection: sa.Connection,
        handler: HandlerConnection | None,
        number: int,
        receipt: UUID | None,
    ) -> None:
        """End the transaction of the handler that has this message, from another connection."""


class Parts(Transactions):
    """Parts of the statements of one queue."""

    #: Whether an UPDATE returns the rows that it has written.
    returns_rows = True

    def __init__(self, place: Place) -> None:
        self.place = place
        self.m, self.g, self.a = place.tables

    def mine(self, table: sa.Table) -> sa.ColumnElement[bool]:
        c, place = table.c, self.place
        return sa.and_(c.tenant == place.tenant, c.queue == place.queue)

    def lasts(self) -> sa.ColumnElement[bool]:
        """The message has not expired."""
        m = self.m.c
        return sa.or_(m.expires_at.is_(None), m.expires_at > self.place.begun)

    def is_visible(self, table: sa.Table) -> sa.ColumnElement[bool]:
        return table.c.visible_at <= self.place.begun

    def columns(self) -> list[sa.ColumnElement[Any]]:
        m = self.m.c
        return [
            m.id,
            self.stored_text(m.body),
            self.stored_text(m.headers),
            self.stored_time(m.sent_at),
            self.stored_time(m.expires_at),
            self.stored_time(m.visible_at),
            m.receives,
            m.group_key,
            m.dedup_key,
            self.stored_text(m.last_error),
            (m.expires_at <= self.place.begun).label("expired"),
        ]

    def stored_text(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Return a text so that a driver can read any content of the column."""
        return column

    def stored_time(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Return a time in the same way; NULL if no driver can read it."""
        return column

    def skip_locked(self, query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
        """Rows that others have locked are left out, and those found are locked."""
        return query.with_for_update(of=table, skip_locked=True, key_share=True)

    def skip_locked_all(self, query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
        """Return the query that also skips rows with a shared lock."""
        return query.with_for_update(of=table, skip_locked=True)

    def locked(self, query: sa.Select[Any], table: sa.Table) -> sa.Select[Any]:
        return query.with_for_update(of=table, key_share=True)

    def insert_unless(self, table: sa.Table) -> Any:
        """An INSERT that does nothing where there is such a row."""
        raise NotImplementedError

    def _received(self) -> dict[str, Any]:
        return {
            "visible_at": add_milliseconds(self.place.now, milliseconds()),
            "receipt": sa.bindparam("new_receipt", type_=RECEIPT),
            "receives": self.m.c.receives + 1,
        }


def by_id(row: Row) -> Any:
    return row[0]


# -- send: many messages at once, or one with a group or a deduplication key -----------------------


class Sending(Parts):
    def _new(self) -> dict[str, Any]:
        begun = self.place.begun
        return {
            "tenant": self.place.tenant,
            "queue": self.place.queue,
            "visible_at": add_milliseconds(begun, milliseconds("delay")),
            "sent_at": begun,
            "expires_at": add_milliseconds(begun, milliseconds("ttl")),
            "receipt": sa.bindparam("new_receipt", type_=RECEIPT),
            "receives": 0,
            "body": sa.bindparam("new_body"),
            "headers": sa.bindparam("new_headers"),
        }

    def send(
        self, connection: sa.Connection, rows: list[dict[str, Any]], receipt: UUID
    ) -> list[int]:
        """Insert messages; their ids, in their order.

        A row has ``delay``, ``ttl`` (milliseconds, or ``None``), ``new_body``, which is JSON in one
        line, and ``new_headers``.
        """
        statement = sa.insert(self.m).values(self._new()).returning(self.m.c.id)
        given = [{**row, "new_receipt": receipt} for row in rows]
        return [connection.execute(statement, one).scalar_one() for one in given]

    def standing_keys(self, connection: sa.Connection, keys: Sequence[str]) -> dict[str, Any]:
        """Return committed messages with these keys, as :meth:`same_key` does.

        They are asked for before the INSERT: it would wait for a handler that has deleted its
        message, and has not ended. Until then the message is in the queue.
        """
        m = self.m
        found = sa.select(m.c.dedup_key, m.c.id, m.c.receives)
        mine = found.where(self.mine(m), m.c.dedup_key.in_(list(keys)), self.lasts())
        return {row.dedup_key: row for row in connection.execute(mine)}

    def send_marked(
        self,
        connection: sa.Connection,
        row: dict[str, Any],
        group: str | None,
        dedup: str | None,
        *,
        inside: bool,
    ) -> int | None:
        """Insert a message of a group, or with a deduplication key; ``None``: there is one.

        The transaction is the caller's if ``inside``.
        """
        values = {**self._new(), "group_key": group, "dedup_key": dedup}
        statement = self.insert_unless(self.m).values(values).returning(self.m.c.id)
        found: int | None = connection.execute(statement, row).scalar()
        return found

    def same_key(self, connection: sa.Connection, dedup: str) -> Any:
        """Return ``id``, ``receives`` and ``over`` (expired) of the message with that key."""
        m = self.m
        over = sa.and_(m.c.expires_at.is_not(None), m.c.expires_at <= self.place.begun)
        found = sa.select(m.c.id, m.c.receives, over.label("over"))
        return connection.execute(found.where(self.mine(m), m.c.dedup_key == dedup)).first()

    def remove_over(self, connection: sa.Connection, number: int) -> None:
        m = self.m
        mine = sa.delete(m).where(
            m.c.id == number, self.mine(m), m.c.expires_at <= self.place.begun
        )
        connection.execute(mine)
