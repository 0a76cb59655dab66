"""MariaDB's statements of a queue: it has no UPDATE ... RETURNING, and no weak locks of rows.

So a receive reads and locks its rows, and then writes them. That is done at READ COMMITTED: at
REPEATABLE READ a look-up locks the gaps between rows, too, and stops every sender.

MySQL has no RETURNING at all. Ids come with the answer to each INSERT, and a row that is there
already is known by the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select, Table, insert
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import IntegrityError

from optilock.dialects.connections import send_afterwards
from optilock.dialects.queue_sql import HandlerConnection, Messages, Row

#: In the ``info`` of a connection: the answer to the next statement.
_KNOWN = "optilock.known"
_WHO = "SELECT CONNECTION_ID(), @@hostname, @@port, @@server_id, @@datadir"


class MariaDBMessages(Messages):
    returns_rows = False

    def prepare(self, connection: Connection) -> None:
        """Until the connection goes back to its pool, where SQLAlchemy sets its own level."""
        connection.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    # -- handlers that do not return -------------------------------------------------------------

    @contextmanager
    def limited_waits(self, connection: Connection, length: int) -> Iterator[None]:
        """The limit is one of the session, in whole seconds; the session's own is put back."""
        seconds = max(1, length // 1000)
        connection.exec_driver_sql(
            "SET @optilock_waits = @@SESSION.innodb_lock_wait_timeout,"
            f" SESSION innodb_lock_wait_timeout = {seconds}"
        )
        back = "SET SESSION innodb_lock_wait_timeout = @optilock_waits"
        with send_afterwards(connection.exec_driver_sql, back):
            yield

    def known_by(self, connection: Connection) -> Any:
        """Return its number, and the server that has given it; asked once a connection."""
        if _KNOWN not in connection.info:
            connection.info[_KNOWN] = tuple(connection.exec_driver_sql(_WHO).one())
        return connection.info[_KNOWN]

    def end_handler(
        self,
        connection: Connection,
        handler: HandlerConnection | None,
        number: int,
        receipt: UUID | None,
    ) -> None:
        """Kill its connection; on another server its number would be that of another one."""
        if handler is None:
            return
        handler.leave_pool()  # or it may be another user's by the time of KILL
        thread, *server = handler.known
        here = list(connection.exec_driver_sql(_WHO).one()[1:])
        if server == here and not handler.connection.closed:
            connection.exec_driver_sql(f"KILL {int(thread)}")

    # -- locks -----------------------------------------------------------------------------------

    def skip_locked(self, query: Select[Any], table: Table) -> Select[Any]:
        return query.with_for_update(skip_locked=True)

    skip_locked_all = skip_locked

    def locked(self, query: Select[Any], table: Table) -> Select[Any]:
        return query.with_for_update()

    def _claiming(self) -> Any:
        return self._next()

    def claim(self, connection: Connection, n: int, length: int, receipt: UUID) -> list[Row]:
        with self.atomic(connection):
            ids = list(connection.scalars(self._claim, {"n": n}))
            return self._take(connection, ids, length, receipt)

    def insert_unless(self, table: Table) -> Any:
        return mysql.insert(table).prefix_with("IGNORE")

    def hold_group(self, connection: Connection, key: str, delay: int) -> None:
        """A row that is there already is locked by the INSERT that does nothing."""
        connection.execute(self.insert_unless(self.g).values(self._group(key, delay)))

    def send(self, connection: Connection, rows: list[dict[str, Any]], receipt: UUID) -> list[int]:
        statement = insert(self.m).values(self._new())
        given = [{**row, "new_receipt": receipt} for row in rows]
        return [self._inserted(connection.execute(statement, one)) for one in given]

    def send_marked(
        self,
        connection: Connection,
        row: dict[str, Any],
        group: str | None,
        dedup: str | None,
        *,
        inside: bool,
    ) -> int | None:
        values = {**self._new(), "group_key": group, "dedup_key": dedup}
        try:
            return self._inserted(connection.execute(insert(self.m).values(values), row))
        except IntegrityError:  # the statement alone is undone
            return None

    def _inserted(self, result: Any) -> int:
        return int(result.inserted_primary_key[0])
