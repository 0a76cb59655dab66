"""A roll-out on MariaDB.

Adding the column is INSTANT, setting a default INPLACE, and NOT NULL is an online rebuild
(LOCK=NONE), which a table with a stored generated column or a FULLTEXT index does not have. NOWAIT,
because a statement that waits for the table's metadata lock makes every later one wait behind it
(https://mariadb.com/kb/en/innodb-online-ddl-overview/).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import MappingProxyType

from sqlalchemy import Connection, Dialect, String, text, update
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from optilock.dialects.connections import undo_with
from optilock.dialects.rollout import Filled, Key, Step, Target, Ways, sends
from optilock.errors import OptilockError

__all__ = ["MariaDBWays"]

#: ER_ALTER_OPERATION_NOT_SUPPORTED, and the same with a reason.
_NOT_ONLINE = (1845, 1846)


class MariaDBWays(Ways):
    speaks = mysql.dialect()
    brackets = True
    commits_each_step = True

    options = MappingProxyType({"isolation_level": "READ COMMITTED"})

    def hold(self, connection: Connection, name: str) -> bool:
        taken = text("SELECT GET_LOCK(SHA1(:name), 0)")
        return bool(connection.scalar(taken, {"name": f"optilock {name}"}) == 1)

    def release(self, connection: Connection) -> None:
        connection.execute(text("DO RELEASE_ALL_LOCKS()"))

    def prepare(self, connection: Connection) -> None:
        """With snapshot isolation a skipped row would be a conflict (error 1020) instead."""
        with suppress(DBAPIError):  # a server without the setting
            connection.exec_driver_sql("SET SESSION innodb_snapshot_isolation = OFF")
            undo_with(connection, "SET SESSION innodb_snapshot_isolation = DEFAULT")
        connection.rollback()

    def begin(self, connection: Connection, lock_timeout: float) -> None:
        """Row locks are skipped, not waited for; table locks are asked for with NOWAIT."""

    def add_column(self, target: Target, dialect: Dialect) -> Sequence[Step]:
        table, column = target.names(dialect)
        kind = target.token.type().compile(dialect)
        return [
            sends(f"ALTER TABLE {table} NOWAIT ADD COLUMN {column} {kind} NULL"),
            *self.set_default(target, dialect),
        ]

    def set_default(self, target: Target, dialect: Dialect) -> Sequence[Step]:
        """A step of its own, so an interrupted roll-out may have left the column without."""
        table, column = target.names(dialect)
        first = self.first_of(target.token)
        return [sends(f"ALTER TABLE {table} NOWAIT ALTER COLUMN {column} SET DEFAULT {first}")]

    def create_trigger(self, *statements: str) -> Step:
        """CREATE TRIGGER has no NOWAIT; the session has."""
        create = super().create_trigger(*statements)

        def step(connection: Connection) -> None:
            connection.exec_driver_sql("SET SESSION lock_wait_timeout = 0")
            try:
                create(connection)
            finally:
                connection.exec_driver_sql("SET SESSION lock_wait_timeout = DEFAULT")

        return step

    def fill(self, connection: Connection, target: Target, after: Key | None, size: int) -> Filled:
        """Lock what nobody holds, then write it.

        At READ COMMITTED, where the rows are locked and not the gaps between them: others insert.
        """
        free = target.next_keys(after, size).with_for_update(skip_locked=True)
        keys = [tuple(row) for row in connection.execute(free)]
        if not keys:
            return 0, None
        some = update(target.table).where(target.among(keys), target.version.is_(None))
        first = text(self.first_of(target.token))
        return connection.execute(some.values({target.version: first})).rowcount, keys[-1]

    def require(self, target: Target, dialect: Dialect) -> Sequence[Step]:
        """The column keeps the type and the comment that it has: another type is not online."""
        table, column = target.names(dialect)
        kind, first = target.version.type.compile(dialect), self.first_of(target.token)
        change = f"MODIFY COLUMN {column} {kind} NOT NULL DEFAULT {first}"
        if target.version.comment:
            compiler = dialect.statement_compiler(dialect, None)
            change += f" COMMENT {compiler.render_literal_value(target.version.comment, String())}"

        def step(connection: Connection) -> None:
            try:
                connection.exec_driver_sql(f"ALTER TABLE {table} WAIT 1 {change}, LOCK=NONE")
            except DBAPIError as error:
                if _code(error) not in _NOT_ONLINE:
                    raise
                raise OptilockError(
                    f"This server cannot make {table}.{column} NOT NULL without stopping writers,"
                    " for example because of a stored generated column or a FULLTEXT index. Every"
                    " row has its version, and new rows get one. At a quiet moment send"
                    f" ALTER TABLE {table} {change}; then the roll-out is done."
                ) from error

        return [step]

    def current_schema(self, connection: Connection) -> str | None:
        found: str | None = connection.scalar(text("SELECT DATABASE()"))
        return found

    def rows(self, connection: Connection, target: Target) -> int | None:
        """InnoDB's estimate."""
        found = connection.scalar(
            text(
                "SELECT table_rows FROM information_schema.tables"
                " WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
            ),
            {"schema": target.table.schema, "name": target.table.name},
        )
        return int(found) if found else None


def _code(error: DBAPIError) -> int | None:
    return error.orig.args[0] if error.orig is not None and error.orig.args else None
