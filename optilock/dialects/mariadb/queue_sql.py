"""MariaDB's statements of a queue: it has no UPDATE ... RETURNING, and no weak locks of rows.

So a receive reads and locks its rows, and then writes them. That is done at READ COMMITTED: at
REPEATABLE READ a look-up locks the gaps between rows, too, and stops every sender.

MySQL has no RETURNING at all. Ids come with the answer to each INSERT, and a row that is there
already is known by the error.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Select, Table, insert
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import IntegrityError

from optilock.dialects.queue_sql import Messages, Row


class MariaDBMessages(Messages):
    returns_rows = False

    def prepare(self, connection: Connection) -> None:
        """Until the connection goes back to its pool, where SQLAlchemy sets its own level."""
        connection.exec_driver_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

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
        self, connection: Connection, row: dict[str, Any], group: str | None, dedup: str | None
    ) -> int | None:
        values = {**self._new(), "group_key": group, "dedup_key": dedup}
        try:
            return self._inserted(connection.execute(insert(self.m).values(values), row))
        except IntegrityError:  # the statement alone is undone
            return None

    def _inserted(self, result: Any) -> int:
        return int(result.inserted_primary_key[0])
