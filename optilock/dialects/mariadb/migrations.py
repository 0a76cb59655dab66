"""Migrations on MariaDB: the trigger of a version, the guard trigger, roll-outs, the catalogue.

There is no comparison of whole rows. So the guard of a table without ignored columns counts every
UPDATE, and the guard of a table with some compares the other columns by name. Values are compared
as bytes too, because a collation treats 'a' and 'A' as equal.

A roll-out: adding the column is INSTANT, setting a default INPLACE, and NOT NULL is an online
rebuild (LOCK=NONE), which a table with a stored generated column or a FULLTEXT index does not have
(https://mariadb.com/kb/en/innodb-online-ddl-overview/). A statement that waits for the table's
metadata lock makes every later one wait behind it, so the wait is limited
(:mod:`~optilock.dialects.mariadb.galera`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from math import ceil
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Dialect, FetchedValue, String, Table, Update, text, update
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import DBAPIError

from optilock.dialects.catalogue import Cascade, Catalogue, StoredColumn, StoredTable, keys_of
from optilock.dialects.connections import send_afterwards, undo_at_checkin
from optilock.dialects.mariadb import galera
from optilock.dialects.mariadb.causes import number_of
from optilock.dialects.mariadb.galera import INTERRUPTED, holder, limit_waits
from optilock.dialects.mariadb.weak_settings import Stored
from optilock.dialects.migrations import (
    Filled,
    Found,
    GuardTriggers,
    Key,
    Names,
    Sending,
    Step,
    Target,
    TriggerDDL,
    Ways,
    step_of,
)
from optilock.dialects.values import plain_ddl, quote_table, sql_literal, sql_of
from optilock.errors import OptilockError
from optilock.tokens.guard_trigger import GuardTrigger

#: ER_SPECIFIC_ACCESS_DENIED_ERROR
_ACCESS_DENIED = 1227


_FIRES = "BEFORE UPDATE FOR EACH ROW"


class MariaDBGuard(GuardTriggers):
    catalogue = (
        "SELECT event_object_table, trigger_name, action_statement, 1, 0,"
        " CONCAT_WS(' ', action_timing, event_manipulation, 'FOR EACH', action_orientation)"
        " FROM information_schema.triggers WHERE trigger_schema = COALESCE(:schema, DATABASE())"
        " ORDER BY action_order"
    )

    fire_after_cascades = False

    def fires(self, guard: GuardTrigger) -> str:
        return _FIRES

    def create(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (
            f"CREATE OR REPLACE TRIGGER {self.trigger(guard)} BEFORE UPDATE ON"
            f" {self.table(guard)} FOR EACH ROW {self.source(guard)}",
        )

    def drop(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (f"DROP TRIGGER IF EXISTS {self.trigger(guard)}",)

    def hidden(
        self, connection: Connection, table: str, name: str, schema: str | None
    ) -> Found | None:
        """Without the right TRIGGER it is not in the catalogue, and asked for by name refused."""
        try:
            trigger = quote_table(self.dialect, name, schema)
            connection.execute(plain_ddl(f"SHOW CREATE TRIGGER {trigger}"))
        except DBAPIError as error:
            return Found(table, name, None) if number_of(error.orig) == _ACCESS_DENIED else None
        return None

    def source(self, guard: GuardTrigger) -> str:
        version, alone = self.new(guard.column), self._left_alone(guard)
        if guard.policy == "bump":
            return f"SET {guard.mark} {version} = IF({alone}, {self.following(guard)}, {version})"
        return (
            f"IF {guard.mark} {alone} THEN SIGNAL SQLSTATE '45000'"
            f" SET MESSAGE_TEXT = {_literal(self.refusal(guard))}; END IF"
        )

    def _left_alone(self, guard: GuardTrigger) -> str:
        same = f"{self.new(guard.column)} = {self.old(guard.column)}"
        if not guard.ignore:
            return same
        return f"{same} AND NOT ({' AND '.join(map(self._same_bytes, guard.columns))})"

    def _same(self, column: str) -> str:
        return f"{self.new(column)} <=> {self.old(column)}"

    def _same_bytes(self, column: str) -> str:
        return f"{self._same(column)} AND BINARY {self.new(column)} <=> BINARY {self.old(column)}"

    def of_version(self, names: Names) -> TriggerDDL:
        source = f"SET NEW.{names.column} = COALESCE(OLD.{names.column}, 0) + 1"
        return TriggerDDL(
            create=(
                f"CREATE TRIGGER {names.qualified_trigger} BEFORE UPDATE ON {names.table}"
                f" FOR EACH ROW {source}",
            ),
            drop=(f"DROP TRIGGER IF EXISTS {names.qualified_trigger}",),
            source=source,
            fires=_FIRES,
        )


#: ER_ALTER_OPERATION_NOT_SUPPORTED, and the same with a reason.
_NOT_ONLINE = (1845, 1846)


#: Or the last step would make '' or 0, and no error, of a NULL that comes before it.
_STRICT = (
    "SET SESSION sql_mode = CONCAT_WS(',', NULLIF(@@SESSION.sql_mode, ''), 'STRICT_TRANS_TABLES')"
)


def _literal(text: str) -> str:
    """Return a text as SQL; a backslash in a name would take the next character in."""
    return sql_literal(text.replace("\\", "\\\\"))


class MariaDBWays(Ways):
    speaks = mysql.dialect()
    brackets = True
    commits_each_step = True
    longest_name = 64

    options = MappingProxyType({"isolation_level": "READ COMMITTED"})

    def prepare(self, connection: Connection) -> None:
        """With snapshot isolation a skipped row would be a conflict (error 1020) instead."""
        with suppress(DBAPIError):  # a server without the setting
            connection.exec_driver_sql("SET SESSION innodb_snapshot_isolation = OFF")
            undo_at_checkin(connection, "SET SESSION innodb_snapshot_isolation = DEFAULT")
        undo_at_checkin(connection, "SET SESSION lock_wait_timeout = DEFAULT")
        before = connection.exec_driver_sql("SELECT @@SESSION.sql_mode").scalar()
        connection.exec_driver_sql(_STRICT)
        undo_at_checkin(connection, f"SET SESSION sql_mode = '{before}'")
        connection.rollback()

    @contextmanager
    def waits_at_most(self, connection: Connection, seconds: float) -> Iterator[bool]:
        """In whole seconds; a cluster orders the changes of its tables by itself."""
        ours, usual = connection.exec_driver_sql(
            "SELECT @@SESSION.lock_wait_timeout, @@GLOBAL.lock_wait_timeout"
        ).one()
        if ours != usual or galera.is_node(connection):
            yield False
            return
        connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {max(1, ceil(seconds))}")
        put_back = f"SET SESSION lock_wait_timeout = {ours}"
        with send_afterwards(connection.exec_driver_sql, put_back):
            yield True

    def bounded(
        self, connection: Connection, beside: Connection | None, seconds: float
    ) -> AbstractContextManager[None]:
        if galera.is_node(connection):
            return galera.together(connection)
        return limit_waits(connection, beside, seconds)

    def nodes(self, connection: Connection, named: Sequence[str]) -> Sequence[str]:
        return galera.nodes(connection, named) if galera.is_node(connection) else ()

    def made(self, connection: Connection, table: Table) -> Mapping[str, object]:
        return galera.made(connection, table)

    def holder(self, connection: Connection, table: Table) -> str | None:
        return holder(connection, table)

    def interrupted(self, error: DBAPIError) -> bool:
        return number_of(error.orig) == INTERRUPTED

    def add_column(self, target: Target, dialect: Dialect) -> Sequence[Step]:
        table, column = target.names(dialect)
        kind = target.token.type().compile(dialect)
        return [
            step_of(f"ALTER TABLE {table} ADD COLUMN {column} {kind} NULL"),
            *self.set_default(target, dialect),
        ]

    def set_default(self, target: Target, dialect: Dialect) -> Sequence[Step]:
        """A step of its own, so an interrupted roll-out may have left the column without."""
        table, column = target.names(dialect)
        first = self.first_of(target.token)
        return [step_of(f"ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {first}")]

    def fill(self, connection: Connection, target: Target, after: Key | None, size: int) -> Filled:
        """Lock free rows, then write them.

        At READ COMMITTED, where the rows are locked and not the gaps between them: others insert.
        """
        free = target.next_keys(after, size).with_for_update(skip_locked=True)
        keys = [tuple(row) for row in connection.execute(free)]
        if not keys:
            return 0, None
        some = self._unfilled(target).where(target.among(keys))
        return connection.execute(some).rowcount, keys[-1]

    def shown_fill(self, target: Target, dialect: Dialect, size: int) -> Sequence[str]:
        free = target.next_keys(None, size).with_for_update(skip_locked=True)
        keys = ", ".join(dialect.identifier_preparer.quote(key.name) for key in target.keys)
        some = sql_of(dialect, self._unfilled(target))
        return [sql_of(dialect, free), f"{some} AND ({keys}) IN (the keys that were read)"]

    def _unfilled(self, target: Target) -> Update:
        first = text(self.first_of(target.token))
        some = update(target.table).where(target.version.is_(None))
        return some.values({target.version: first, **target.kept})

    def require(self, target: Target, dialect: Dialect) -> Sequence[Step]:
        """The column keeps the type and the comment that it has: another type is not online."""
        table, column = target.names(dialect)
        kind, first = target.version.type.compile(dialect), self.first_of(target.token)
        change = f"MODIFY COLUMN {column} {kind} NOT NULL DEFAULT {first}"
        if target.version.comment:
            compiler = dialect.statement_compiler(dialect, None)
            change += f" COMMENT {compiler.render_literal_value(target.version.comment, String())}"

        def step(connection: Sending) -> None:
            try:
                connection.exec_driver_sql(f"ALTER TABLE {table} {change}, LOCK=NONE")
            except DBAPIError as error:
                if number_of(error.orig) not in _NOT_ONLINE:
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


_MOVES = text(
    "SELECT column_name FROM information_schema.columns WHERE table_schema ="
    " COALESCE(:schema, DATABASE()) AND table_name = :name AND extra LIKE '%on update%'"
)


def note_what_moves(connection: Connection, table: Table) -> None:
    """``ON UPDATE CURRENT_TIMESTAMP``, which SQLAlchemy reflects beside some defaults only."""
    named = {"schema": table.schema, "name": table.name}
    for name in set(connection.scalars(_MOVES, named)) & {*table.columns.keys()}:
        table.columns[name].server_onupdate = FetchedValue(for_update=True)


# -- the catalogue: three statements for all tables of a schema ------------------------------------

_WANTED = "table_schema = COALESCE(:schema, DATABASE()) AND table_name IN :names"

_TABLES = (
    "SELECT table_name, table_type LIKE '%VIEW', engine, @@lower_case_table_names,"
    " (SELECT v.is_updatable FROM information_schema.views v"
    " WHERE v.table_schema = t.table_schema AND v.table_name = t.table_name)"
    f" FROM information_schema.tables t WHERE {_WANTED}"
)
_COLUMNS = (
    "SELECT table_name, column_name, column_type, is_nullable, column_default, extra,"
    f" collation_name FROM information_schema.columns WHERE {_WANTED} ORDER BY ordinal_position"
)
_KEYS = (
    "SELECT table_name, index_name, column_name FROM information_schema.statistics"
    f" WHERE {_WANTED} AND non_unique = 0"
)


_CASCADES = sa.text(
    "SELECT k.table_name, k.column_name, r.referenced_table_name, r.update_rule, r.delete_rule"
    " FROM information_schema.referential_constraints r"
    " JOIN information_schema.key_column_usage k ON k.constraint_schema = r.constraint_schema"
    " AND k.constraint_name = r.constraint_name AND k.table_name = r.table_name"
    " WHERE r.constraint_schema = COALESCE(:schema, DATABASE())"
    " ORDER BY k.table_name, k.ordinal_position"
)


class MariaDBCatalogue(Catalogue):
    cased = False

    def silent_cascades(self) -> list[Cascade]:
        """InnoDB does them itself (https://mariadb.com/kb/en/trigger-limitations/)."""
        found = self.connection.execute(_CASCADES, {"schema": self.schema})
        return [
            Cascade(table, column, parent, f"ON {event} {rule}")
            for table, column, parent, *rules in found
            for event, rule in zip(("UPDATE", "DELETE"), rules, strict=True)
            if rule == "SET NULL" or (event, rule) == ("UPDATE", "CASCADE")
        ]

    def _read(self, names: Collection[str]) -> dict[str, StoredTable]:
        tables, columns, keys = (
            self.ask(sql, names, schema=self.schema) for sql in (_TABLES, _COLUMNS, _KEYS)
        )
        found = {
            name: self.table(
                name,
                map(_column, columns.get(name, ())),
                keys_of(keys.get(name, ())),
                is_view=bool(is_view),
                refuses=("UPDATE", "DELETE") if takes == "NO" else (),
                weaknesses=tuple(Stored(name, engine).weaknesses()),
            )
            for name, [(is_view, engine, _, takes)] in tables.items()
        }
        return dict(_as_asked(names, found, cased=not any(row[0][2] for row in tables.values())))


def _as_asked(
    names: Iterable[str], found: dict[str, StoredTable], *, cased: bool
) -> Iterator[tuple[str, StoredTable]]:
    """By the names that were asked for: on some servers names of tables have no case."""
    lowered = {} if cased else {name.lower(): table for name, table in found.items()}
    for name in names:
        table = found.get(name) or lowered.get(name.lower())
        if table is not None:
            yield name, table


def _column(row: tuple[str, str, str, str | None, str, str | None]) -> StoredColumn:
    name, kind, nullable, default, extra, collation = row
    said = (extra or "").upper()
    return StoredColumn(
        name,
        _with_digits(_text(kind).lower()),
        nullable == "YES",
        None if default in (None, "NULL") else _text(default),
        "GENERATED" in said and "DEFAULT_GENERATED" not in said,
        "AUTO_INCREMENT" in said,
        "ON UPDATE" in said,
        collation if collation and not _tells_case(collation) else None,
    )


def _with_digits(kind: str) -> str:
    """A time without a number of digits keeps none."""
    return f"{kind}(0)" if kind in ("datetime", "timestamp") else kind


def _tells_case(collation: str) -> bool:
    """``utf8mb4_bin``, ``utf8mb4_0900_as_cs``, ``binary``."""
    return collation == "binary" or collation.endswith(("_bin", "_cs"))


def _text(value: Any) -> str:
    """Some drivers give long texts of the catalogue as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)
