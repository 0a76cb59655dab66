"""Migrations on PostgreSQL: its time, the trigger of a version, the guard, a roll-out.

A write that moves the version is let through by the trigger's WHEN, before any function is called.
In the function rows are compared as they are stored (``*=``), because some types (json, point) have
no equality (https://www.postgresql.org/docs/current/functions-comparisons.html, 9.25.6). A column
that is added later counts by itself.

Triggers of one kind fire in the order of their names; one that comes later and changes the row
again is not seen by this one.

A roll-out: ``ADD COLUMN`` without a default and ``SET DEFAULT`` change the catalogue only. NOT NULL
would scan the table under a lock that stops all other programs, unless a validated CHECK proves it
already. To validate a CHECK scans the table while others write
(https://www.postgresql.org/docs/current/sql-altertable.html, notes).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from optilock.dialects.catalogue import Catalogue, StoredColumn, StoredTable, keys_of
from optilock.dialects.connections import send_afterwards
from optilock.dialects.migrations import (
    Filled,
    Found,
    GuardTriggers,
    Key,
    Names,
    Step,
    Target,
    TriggerDDL,
    Ways,
    step_of,
)
from optilock.dialects.postgresql.weak_settings import NO_BUMP, RELATION, Relation
from optilock.dialects.values import plain_ddl, quote_name, quote_table, sql_literal, sql_of
from optilock.tokens.guard_trigger import GuardTrigger, is_guard_source

HERE = (
    "CASE WHEN CAST(:schema AS text) IS NULL THEN pg_table_is_visible(c.oid)"
    " ELSE n.nspname = CAST(:schema AS text) END"
)

#: Bytes of a name.
_LONGEST = 63


_FIRES = "BEFORE UPDATE FOR EACH ROW"


def _condition(definition: str | None) -> str:
    """The WHEN of ``pg_get_triggerdef``, which has brackets, casts and quotes of its own."""
    found = re.search(
        r" WHEN \((.*)\) EXECUTE (?:FUNCTION|PROCEDURE) ", definition or "", re.DOTALL
    )
    return "" if found is None else f" WHEN {_bare(found.group(1))}"


def _bare(condition: str) -> str:
    """A comparison without what makes no difference to it."""
    return re.sub(r'::[a-z ]+(\(\d+\))?|[()\s"]', "", condition).lower()


class PostgreSQLGuard(GuardTriggers):
    # pg_trigger.h has the bits of tgtype.
    catalogue = (
        "SELECT c.relname, t.tgname, p.prosrc, t.tgenabled IN ('O', 'A'), t.tgparentid <> 0,"
        " concat_ws(' ', CASE WHEN t.tgtype & 2 > 0 THEN 'BEFORE'"
        " WHEN t.tgtype & 64 > 0 THEN 'INSTEAD OF' ELSE 'AFTER' END, concat_ws(' OR ',"
        " CASE WHEN t.tgtype & 4 > 0 THEN 'INSERT' END,"
        " CASE WHEN t.tgtype & 8 > 0 THEN 'DELETE' END,"
        " CASE WHEN t.tgtype & 16 > 0 THEN 'UPDATE' END,"
        " CASE WHEN t.tgtype & 32 > 0 THEN 'TRUNCATE' END),"
        " (SELECT 'OF ' || string_agg(a.attname, ', ' ORDER BY a.attname) FROM pg_attribute a"
        " WHERE a.attrelid = c.oid AND a.attnum = ANY (CAST(t.tgattr AS int2[]))),"
        " CASE WHEN t.tgtype & 1 > 0 THEN 'FOR EACH ROW' ELSE 'FOR EACH STATEMENT' END,"
        f" CASE WHEN position('{NO_BUMP}=' IN array_to_string(p.proconfig, ' ')) > 0"
        f" THEN 'SET {NO_BUMP}' END),"
        " CASE WHEN t.tgqual IS NOT NULL THEN pg_get_triggerdef(t.oid) END"
        " FROM pg_trigger t"
        " JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        f" WHERE NOT t.tgisinternal AND {HERE} ORDER BY t.tgname"
    )

    def found(self, connection: sa.Connection, schema: str | None) -> list[Found]:
        rows = connection.execute(sa.text(self.catalogue), {"schema": schema})
        return [
            Found(table, name, source, enabled, of_parent, fires + _condition(whole))
            for table, name, source, enabled, of_parent, fires, whole in rows
        ]

    def unused_functions(self, connection: sa.Connection, schema: str | None) -> list[str]:
        """Return them with their schemas. DROP TABLE drops a trigger and leaves its function."""
        rows = connection.execute(_UNUSED, {"schema": schema})
        return [
            f"{quote_name(self.dialect, of)}.{quote_name(self.dialect, name)}"
            for of, name, source in rows
            if is_guard_source(source) or _MOVES.fullmatch(source)
        ]

    def fires(self, guard: GuardTrigger) -> str:
        same = f"{self.new(guard.column)} = {self.old(guard.column)}"
        return f"{_FIRES} WHEN {_bare(same)}"

    def create(self, guard: GuardTrigger) -> tuple[str, ...]:
        trigger, table = quote_name(self.dialect, guard.name), self.table(guard)
        version = f"{self.new(guard.column)} = {self.old(guard.column)}"
        source = self.source(guard)
        tag = "$optilock$" if "$optilock$" not in source else "$optilock_guard$"
        return (
            f"CREATE OR REPLACE FUNCTION {self.trigger(guard)}() RETURNS trigger"
            f" LANGUAGE plpgsql AS {tag}{source}{tag}",
            f"DROP TRIGGER IF EXISTS {trigger} ON {table}",
            f"CREATE TRIGGER {trigger} BEFORE UPDATE ON {table} FOR EACH ROW"
            f" WHEN ({version}) EXECUTE FUNCTION {self.trigger(guard)}()",
        )

    def drop(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (
            f"DROP TRIGGER IF EXISTS {quote_name(self.dialect, guard.name)} ON {self.table(guard)}",
            f"DROP FUNCTION IF EXISTS {self.trigger(guard)}()",
        )

    def source(self, guard: GuardTrigger) -> str:
        ignored = "".join(
            f"    counted.{quote_name(self.dialect, name)} := {self.old(name)};\n"
            for name in guard.ignore
        )
        return (
            f"\n{guard.mark}\nDECLARE counted record;\nBEGIN\n"
            f"    IF current_setting('{NO_BUMP}', true) = 'on' THEN RETURN NEW; END IF;\n"
            f"    counted := NEW;\n{ignored}"
            "    IF counted *= OLD THEN RETURN NEW; END IF;\n"
            f"{self._act(guard)}END\n"
        )

    def _act(self, guard: GuardTrigger) -> str:
        if guard.policy == "bump":
            moved = f"    {self.new(guard.column)} := {self.following(guard)};\n"
            return f"{moved}    RETURN NEW;\n"
        hint = f"Set {guard.column} to another value in the same UPDATE, or write through optilock."
        return (
            f"    RAISE EXCEPTION USING MESSAGE = {sql_literal(self.refusal(guard))},\n"
            f"        HINT = {sql_literal(hint)}, ERRCODE = 'integrity_constraint_violation';\n"
        )

    def of_version(self, names: Names) -> TriggerDDL:
        """A function and its trigger, which share their name; one function a table."""
        column, name = names.column, names.qualified_trigger
        source = f" BEGIN NEW.{column} := COALESCE(OLD.{column}, 0) + 1; RETURN NEW; END "
        return TriggerDDL(
            create=(
                f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
                f" AS $${source}$$",
                f"CREATE TRIGGER {names.trigger} BEFORE UPDATE ON {names.table}"
                f" FOR EACH ROW EXECUTE FUNCTION {name}()",
            ),
            drop=(
                f"DROP TRIGGER IF EXISTS {names.trigger} ON {names.table}",
                f"DROP FUNCTION IF EXISTS {name}()",
            ),
            source=source,
            fires=_FIRES,
        )


_UNUSED = sa.text(
    "SELECT n.nspname, p.proname, p.prosrc FROM pg_proc p"
    " JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.prorettype = CAST('trigger' AS regtype)"
    " AND CASE WHEN CAST(:schema AS text) IS NULL THEN pg_function_is_visible(p.oid)"
    " ELSE n.nspname = CAST(:schema AS text) END"
    " AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = p.oid)"
    " ORDER BY n.nspname, p.proname"
)
#: The body that :meth:`PostgreSQLGuard.of_version` makes.
_MOVES = re.compile(r" BEGIN NEW\.(.+) := COALESCE\(OLD\.\1, 0\) \+ 1; RETURN NEW; END ")


_ELSEWHERE = (
    "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relname = :name AND c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid)"
    " AND n.nspname IS DISTINCT FROM current_schema()"
)

_HOLDER = sa.text(
    "SELECT a.pid, a.usename, a.application_name, a.state,"
    " to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS')"
    " FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
    " WHERE l.locktype = 'relation' AND l.relation = CAST(:name AS regclass) AND l.granted"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.pid <> pg_backend_pid() ORDER BY a.xact_start LIMIT 1"
)

_CONSTRAINTS = sa.text("SELECT conname FROM pg_constraint WHERE conrelid = CAST(:name AS regclass)")


class PostgreSQLWays(Ways):
    speaks = postgresql.dialect()  # type: ignore[no-untyped-call]

    options = MappingProxyType({"isolation_level": "READ COMMITTED"})
    longest_name = _LONGEST
    letters = "bytes"

    def takes_name(self, name: str) -> bool:
        return len(name.encode()) <= self.longest_name

    def begin(self, connection: sa.Connection, lock_timeout: float) -> None:
        """Only for this transaction: a pooler may hand the connection to another client."""
        milliseconds = f"{max(1, round(lock_timeout * 1000))}ms"
        connection.execute(sa.select(sa.func.set_config("lock_timeout", milliseconds, True)))

    @contextmanager
    def waits_at_most(self, connection: sa.Connection, seconds: float) -> Iterator[bool]:
        """Not for the transaction alone: an ``autocommit_block()`` has none."""
        if connection.exec_driver_sql("SHOW lock_timeout").scalar() != "0":
            yield False
            return
        milliseconds = max(1, round(seconds * 1000))
        connection.exec_driver_sql(f"SET lock_timeout = {milliseconds}")
        with send_afterwards(connection.exec_driver_sql, "SET lock_timeout = 0"):
            yield True

    def holder(self, connection: sa.Connection, table: sa.Table) -> str | None:
        """Of another user's transaction only the number is shown."""
        name = quote_table(connection.dialect, table.name, table.schema)
        found = connection.execute(_HOLDER, {"name": name}).first()
        if found is None:
            return None
        number, *about, since = found
        shown = ", ".join(one for one in about if one)
        return f"backend {number} ({shown})" + (
            f", in a transaction since {since} UTC" * bool(since)
        )

    def add_column(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        table, column = target.names(dialect)
        kind = target.token.type().compile(dialect)
        return [
            step_of(
                f"ALTER TABLE {table} ADD COLUMN {column} {kind}",
                self._default(target, dialect),
            )
        ]

    def set_default(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        return [step_of(self._default(target, dialect))]

    def _default(self, target: Target, dialect: sa.Dialect) -> str:
        table, column = target.names(dialect)
        first = self.first_of(target.token)
        return f"ALTER TABLE {table} ALTER COLUMN {column} SET DEFAULT {first}"

    def fill(
        self, connection: sa.Connection, target: Target, after: Key | None, size: int
    ) -> Filled:
        """Lock free rows, write them, and return the last key: one statement."""
        row = connection.execute(self._filling(target, after, size)).first()
        return (0, None) if row is None else (row[0], tuple(row[1:]))

    def shown_fill(self, target: Target, dialect: sa.Dialect, size: int) -> Sequence[str]:
        return [sql_of(dialect, self._filling(target, None, size))]

    def _filling(self, target: Target, after: Key | None, size: int) -> sa.Select[Any]:
        free = target.next_keys(after, size).with_for_update(skip_locked=True, key_share=True)
        some = free.cte("optilock_some").prefix_with("MATERIALIZED")
        same = sa.and_(*(key == some.c[key.key] for key in target.keys))
        filled = (
            sa.update(target.table)
            .where(same)
            .values({target.version: sa.text(self.first_of(target.token))})
            .returning(sa.literal_column("1").label("one"))
            .cte("optilock_filled")
        )
        return (
            sa.select(sa.select(sa.func.count()).select_from(filled).scalar_subquery(), *some.c)
            .order_by(*(column.desc() for column in some.c))
            .limit(1)
        )

    def require(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        (table, column), check = target.names(dialect), _check(target, dialect)
        alter = f"ALTER TABLE {table}"
        return [
            step_of(
                self._default(target, dialect),
                f"{alter} DROP CONSTRAINT IF EXISTS {check}",
                f"{alter} ADD CONSTRAINT {check} CHECK ({column} IS NOT NULL) NOT VALID",
            ),
            step_of(f"{alter} VALIDATE CONSTRAINT {check}"),
            step_of(
                f"{alter} ALTER COLUMN {column} SET NOT NULL",
                f"{alter} DROP CONSTRAINT {check}",
            ),
        ]

    def undo_require(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        """Drop the CHECK: every UPDATE of a row without a version would fail."""
        table, _ = target.names(dialect)
        return [step_of(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS {_check(target, dialect)}")]

    def hides_rows(self, connection: sa.Connection, target: Target) -> bool:
        """Row-level security, which usually does not apply to table owners and superusers."""
        name = quote_table(connection.dialect, target.table.name, target.table.schema)
        asked = sa.text("SELECT row_security_active(CAST(:name AS regclass))")
        return bool(connection.scalar(asked, {"name": name}))

    def current_schema(self, connection: sa.Connection) -> str | None:
        found: str | None = connection.scalar(sa.text("SELECT current_schema()"))
        return found

    def schema_of(self, connection: sa.Connection, table: str) -> str | None:
        """Return the first schema of the ``search_path`` that has the table."""
        found: str | None = connection.scalar(sa.text(_ELSEWHERE), {"name": table})
        return found

    def after_rename(
        self, connection: sa.Connection, table: str, schema: str | None, names: tuple[str, str]
    ) -> None:
        """NOT NULL is a constraint since PostgreSQL 18; the next one of that name had a number."""
        named = quote_table(connection.dialect, table, schema)
        known = set(connection.scalars(_CONSTRAINTS, {"name": named}))
        before, after = (not_null_name(table, name) for name in names)
        if before in known and after not in known:
            old, new = (quote_name(connection.dialect, name) for name in (before, after))
            connection.execute(plain_ddl(f"ALTER TABLE {named} RENAME CONSTRAINT {old} TO {new}"))

    def rows(self, connection: sa.Connection, target: Target) -> int | None:
        """The planner's estimate."""
        table = quote_table(connection.dialect, target.table.name, target.table.schema)
        found = connection.scalar(
            sa.text("SELECT reltuples::bigint FROM pg_class WHERE oid = CAST(:name AS regclass)"),
            {"name": table},
        )
        return found if found is not None and found > 0 else None


def _check(target: Target, dialect: sa.Dialect) -> str:
    """The name of the CHECK that stands for NOT NULL until the column has that."""
    name = f"optilock_{target.name}_is_there".encode()[:_LONGEST].decode(errors="ignore")
    return dialect.identifier_preparer.quote(name)


def not_null_name(table: str, column: str) -> str:
    """Return PostgreSQL's name for a column's NOT NULL; the longer part is cut (makeObjectName)."""
    names = [table.encode(), column.encode()]
    while sum(map(len, names)) + len("__not_null") > _LONGEST:
        longer = names[0] if len(names[0]) > len(names[1]) else names[1]
        names[names.index(longer)] = longer[:-1]
    parts = [name.decode(errors="ignore") for name in names]
    return "_".join((*parts, "not_null"))


# -- the catalogue: four statements for all tables of a schema -------------------------------------
#
# A name without a schema is looked up in the whole ``search_path``, as a statement does
# (https://www.postgresql.org/docs/current/functions-info.html, ``pg_table_is_visible``).

#: A relation of ``:schema``, or, without one, that which a bare name stands for.
_FROM = "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
_WANTED = f"c.relname IN :names AND c.relkind IN ('r', 'p', 'f', 'v', 'm') AND {HERE}"

#: Bits of the statements that a view, or a foreign table, takes; triggers INSTEAD OF count.
_TAKES = "CASE WHEN c.relkind IN ('v', 'm', 'f') THEN pg_relation_is_updatable(c.oid, true) END"
_BITS = {"UPDATE": 4, "DELETE": 16}
_TABLES = f"SELECT c.relname, c.relkind IN ('v', 'm'), {_TAKES}, {RELATION} {_FROM} WHERE {_WANTED}"

_COLUMNS = (
    "SELECT c.relname, a.attname, lower(format_type(a.atttypid, a.atttypmod)), NOT a.attnotnull,"
    " pg_get_expr(d.adbin, d.adrelid), a.attgenerated <> '', a.attidentity <> '',"
    " CASE WHEN y.typname = 'citext' THEN 'citext' WHEN NOT o.collisdeterministic THEN o.collname"
    " END, c.relkind = 'v' AND NOT pg_column_is_updatable(c.oid, a.attnum, true)"
    f" {_FROM} JOIN pg_attribute a ON a.attrelid = c.oid JOIN pg_type y ON y.oid = a.atttypid"
    " LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum"
    " LEFT JOIN pg_collation o ON o.oid = a.attcollation"
    f" WHERE {_WANTED} AND a.attnum > 0 AND NOT a.attisdropped"
)

# Columns that an index only carries (INCLUDE) come after those that it is unique by.
_KEYS = (
    f"SELECT c.relname, i.indexrelid, a.attname {_FROM} JOIN pg_index i ON i.indrelid = c.oid"
    " JOIN LATERAL unnest(CAST(i.indkey AS int2[])) WITH ORDINALITY AS k(number, place)"
    " ON k.place <= i.indnkeyatts"
    " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.number"
    f" WHERE {_WANTED} AND i.indisunique AND i.indisvalid"
    " AND i.indpred IS NULL AND i.indexprs IS NULL"
)

#: Rules of tables that do something else than UPDATE ('2') and DELETE ('4') say.
_RULES = (
    f"SELECT c.relname, r.rulename, CASE r.ev_type WHEN '2' THEN 'UPDATE' ELSE 'DELETE' END"
    f" {_FROM} JOIN pg_rewrite r ON r.ev_class = c.oid WHERE {_WANTED} AND r.is_instead"
    " AND r.ev_type IN ('2', '4') AND r.ev_enabled <> 'D' AND c.relkind NOT IN ('v', 'm')"
    " ORDER BY 2"
)


class PostgreSQLCatalogue(Catalogue):
    def _read(self, names: Collection[str]) -> dict[str, StoredTable]:
        tables, columns, keys, rules = (
            self.ask(sql, names, schema=self.schema) for sql in (_TABLES, _COLUMNS, _KEYS, _RULES)
        )
        found = {}
        for name, [(is_view, takes, has_policies, is_hidden)] in tables.items():
            relation = Relation(name, has_policies, is_hidden, tuple(rules.get(name, ())))
            found[name] = self.table(
                name,
                (_column(row) for row in columns.get(name, ())),
                keys_of(keys.get(name, ())),
                is_view=is_view,
                refuses=tuple(
                    v for v, bit in _BITS.items() if takes is not None and not takes & bit
                ),
                weaknesses=tuple(relation.weaknesses()),
            )
        return found


def _column(row: tuple[str, str, bool, str | None, bool, bool, str | None, bool]) -> StoredColumn:
    name, kind, nullable, default, generated, numbered, lax, fixed = row
    return StoredColumn(name, kind, nullable, default, generated, numbered, lax=lax, fixed=fixed)
