"""A roll-out on PostgreSQL.

``ADD COLUMN`` without a default and ``SET DEFAULT`` change the catalogue only. NOT NULL would scan
the table under a lock that stops everybody, unless a validated CHECK says so already; validating
one scans beside the writers (https://www.postgresql.org/docs/current/sql-altertable.html, notes).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, Dialect, and_, func, literal_column, select, text, update
from sqlalchemy.dialects import postgresql

from optilock.dialects.quoting import quoted_table
from optilock.dialects.rollout import Filled, Key, Step, Target, Ways, sends

__all__ = ["PostgreSQLWays"]


class PostgreSQLWays(Ways):
    speaks = postgresql.dialect()  # type: ignore[no-untyped-call]

    def hold(self, connection: Connection, name: str) -> bool:
        held = select(func.pg_try_advisory_lock(func.hashtextextended(name, 0)))
        return bool(connection.scalar(held))

    def release(self, connection: Connection) -> None:
        connection.execute(select(func.pg_advisory_unlock_all()))

    def begin(self, connection: Connection, lock_timeout: float) -> None:
        """Only for this transaction: a pooler may hand the connection to somebody else."""
        milliseconds = f"{max(1, round(lock_timeout * 1000))}ms"
        connection.execute(select(func.set_config("lock_timeout", milliseconds, True)))

    def add_column(self, target: Target, dialect: Dialect) -> Sequence[Step]:
        table, column = target.names(dialect)
        kind = target.token.type().compile(dialect)
        return [
            sends(
                f"ALTER TABLE {table} ADD COLUMN {column} {kind}",
                self._default(target, dialect),
            )
        ]

    def set_default(self, target: Target, dialect: Dialect) -> Sequence[Step]:
        return [sends(self._default(target, dialect))]

    def _default(self, target: Target, dialect: Dialect) -> str:
        table, column = target.names(dialect)
        first = self.first_of(target.token)
        return f"ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {first}"

    def fill(self, connection: Connection, target: Target, after: Key | None, size: int) -> Filled:
        """Lock what nobody holds, write it, and tell the last key: one statement."""
        free = target.next_keys(after, size).with_for_update(skip_locked=True, key_share=True)
        some = free.cte("optilock_some").prefix_with("MATERIALIZED")
        same = and_(*(key == some.c[key.key] for key in target.keys))
        filled = (
            update(target.table)
            .where(same)
            .values({target.version: text(self.first_of(target.token))})
            .returning(literal_column("1").label("one"))
            .cte("optilock_filled")
        )
        last = (
            select(select(func.count()).select_from(filled).scalar_subquery(), *some.c)
            .order_by(*(column.desc() for column in some.c))
            .limit(1)
        )
        row = connection.execute(last).first()
        return (0, None) if row is None else (row[0], tuple(row[1:]))

    def require(self, target: Target, dialect: Dialect) -> Sequence[Step]:
        table, column = target.names(dialect)
        check = dialect.identifier_preparer.quote(f"optilock_{target.name}_is_there"[:63])
        alter = f"ALTER TABLE {table}"
        return [
            sends(
                self._default(target, dialect),
                f"{alter} DROP CONSTRAINT IF EXISTS {check}",
                f"{alter} ADD CONSTRAINT {check} CHECK ({column} IS NOT NULL) NOT VALID",
            ),
            sends(f"{alter} VALIDATE CONSTRAINT {check}"),
            sends(
                f"{alter} ALTER COLUMN {column} SET NOT NULL",
                f"{alter} DROP CONSTRAINT {check}",
            ),
        ]

    def current_schema(self, connection: Connection) -> str | None:
        found: str | None = connection.scalar(text("SELECT current_schema()"))
        return found

    def rows(self, connection: Connection, target: Target) -> int | None:
        """The planner's estimate."""
        table = quoted_table(connection.dialect, target.table.name, target.table.schema)
        found = connection.scalar(
            text("SELECT reltuples::bigint FROM pg_class WHERE oid = CAST(:name AS regclass)"),
            {"name": table},
        )
        return found if found is not None and found > 0 else None
