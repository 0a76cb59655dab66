"""Migrations on SQLite: its time, the trigger of a version, the guard, a roll-out.

A trigger cannot change the row that is being written, so the version moves in a second UPDATE after
it. That one moves the version, so the trigger does not fire for it, with or without
``recursive_triggers`` (https://sqlite.org/lang_createtrigger.html).

A roll-out, with one writer at a time: a column with a constant default and NOT NULL is added at
once in a table of any size. A nullable column can become NOT NULL only in a new table: the
steps are those of the manual (https://sqlite.org/lang_altertable.html#otheralter), with the table's
own SQL text, so that constraints, indexes and triggers are what they were.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from optilock.dialects.catalogue import Catalogue, StoredColumn, StoredTable, keys_of
from optilock.dialects.connections import send_afterwards, undo_at_checkin
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
from optilock.dialects.values import quote_name, sql_literal, sql_of
from optilock.errors import ConfigurationError
from optilock.tokens import Token
from optilock.tokens.guard_trigger import GuardTrigger


class SQLiteGuard(GuardTriggers):
    def create(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (*self.drop(guard), f"CREATE TRIGGER {self.trigger(guard)} {self._does(guard)}")

    def drop(self, guard: GuardTrigger) -> tuple[str, ...]:
        return (f"DROP TRIGGER IF EXISTS {self.trigger(guard)}",)

    def source(self, guard: GuardTrigger) -> str:
        """SQLite keeps the statement, without the schema."""
        return f"CREATE TRIGGER {quote_name(self.dialect, guard.name)} {self._does(guard)}"

    def _does(self, guard: GuardTrigger) -> str:
        table = quote_name(self.dialect, guard.table)
        when = "AFTER" if guard.policy == "bump" else "BEFORE"
        return (
            f"{when} UPDATE ON {table} FOR EACH ROW"
            f" WHEN {self._left_alone(guard)} BEGIN {guard.mark} {self._act(guard, table)}; END"
        )

    def found(self, connection: sa.Connection, schema: str | None) -> list[Found]:
        """Every database file that is attached has a catalogue of its own."""
        master = f"{quote_name(self.dialect, schema)}.sqlite_master" if schema else "sqlite_master"
        rows = connection.execute(
            sa.text(f"SELECT tbl_name, name, sql FROM {master} WHERE type = 'trigger'")
        )
        return [Found(*row) for row in rows]

    def _act(self, guard: GuardTrigger, table: str) -> str:
        if guard.policy == "reject":
            return f"SELECT RAISE(ABORT, {sql_literal(self.refusal(guard))})"
        version = quote_name(self.dialect, guard.column)
        row = " AND ".join(
            f"{quote_name(self.dialect, key)} IS {self.new(key)}"
            for key in guard.keys or ("_rowid_",)
        )
        return f"UPDATE {table} SET {version} = {self.following(guard)} WHERE {row}"

    def _left_alone(self, guard: GuardTrigger) -> str:
        same = f"{self.new(guard.column)} = {self.old(guard.column)}"
        if not guard.ignore:
            return same
        changed = (
            f"{self.new(name)} COLLATE BINARY IS NOT {self.old(name)}" for name in guard.columns
        )
        return f"{same} AND ({' OR '.join(changed)})"

    def of_version(self, names: Names) -> TriggerDDL:
        """After the UPDATE, because SQLite's triggers cannot change the row that is being written.

        The inner UPDATE moves the version itself, so the condition also ends the recursion where
        ``recursive_triggers`` is on (https://sqlite.org/pragma.html#pragma_recursive_triggers).
        """
        row = " AND ".join(f"{key} = NEW.{key}" for key in names.keys or ("_rowid_",))
        column, table = names.column, names.bare_table
        does = (
            f"AFTER UPDATE ON {table}"
            f" FOR EACH ROW WHEN NEW.{column} IS OLD.{column}"
            f" BEGIN UPDATE {table} SET {column} = COALESCE(OLD.{column}, 0) + 1 WHERE {row}; END"
        )
        return TriggerDDL(
            create=(f"CREATE TRIGGER {names.qualified_trigger} {does}",),
            drop=(f"DROP TRIGGER IF EXISTS {names.qualified_trigger}",),
            source=f"CREATE TRIGGER {names.trigger} {does}",  # kept without a schema
        )


class SQLiteWays(Ways):
    speaks = sqlite.dialect()
    brackets = True
    makes_tables_anew = True

    def begin(self, connection: sa.Connection, lock_timeout: float) -> None:
        """Take the write lock now: a later attempt to get it could only fail."""
        _leave(connection)
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {max(1, round(lock_timeout * 1000))}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    def prepare(self, connection: sa.Connection) -> None:
        """Or dropping the old table would delete what refers to its rows."""
        for setting in ("foreign_keys", "busy_timeout"):
            before = connection.exec_driver_sql(f"PRAGMA {setting}").scalar()
            undo_at_checkin(connection, f"PRAGMA {setting} = {before}")
        _leave(connection)  # or it would stay on
        connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
        connection.commit()

    def fills_as_it_adds(self, token: Token) -> bool:
        """SQLite adds no column whose default is an expression."""
        return isinstance(token.first(), sa.BindParameter)

    def check(self, target: Target) -> None:
        """Indexes and triggers of a database that is attached say nothing of its name."""
        there, schema = target.column, target.table.schema
        anew = not self.fills_as_it_adds(target.token) if there is None else there.nullable
        if anew and schema not in (None, "main"):
            raise ConfigurationError(
                f"{target.table.fullname} has to be rebuilt, and it is in an attached database."
                f" Nothing was changed: connect to the file of {schema} itself, for example with"
                " optilock migrate --url sqlite:///its-file.db, or use Counter()."
            )

    def add_column(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        table, column = target.names(dialect)
        kind = target.token.type().compile(dialect)
        constant = f" NOT NULL DEFAULT {self.first_of(target.token)}"
        if not self.fills_as_it_adds(target.token):
            constant = ""
        return [step_of(f"ALTER TABLE {table} ADD COLUMN {column} {kind}{constant}")]

    def fill(
        self, connection: sa.Connection, target: Target, after: Key | None, size: int
    ) -> Filled:
        target = _as_stored(target)
        keys = target.next_keys(after, size).where(_has_key(target)).subquery()
        last = connection.execute(
            sa.select(*keys.c).order_by(*(column.desc() for column in keys.c)).limit(1)
        ).first()
        if last is None:
            return 0, None
        some = sa.update(target.table).where(target.version.is_(None), ~target.beyond(tuple(last)))
        if after is not None:
            some = some.where(target.beyond(after))
        first = sa.text(self.first_of(target.token))
        return connection.execute(some.values({target.version: first})).rowcount, tuple(last)

    def is_left(self, connection: sa.Connection, target: Target) -> bool:
        """Besides the rows whose key is NULL, which are filled when the table is rebuilt."""
        left = sa.select(target.keys[0]).where(target.version.is_(None), _has_key(target)).limit(1)
        return connection.execute(left).first() is not None

    def shown_fill(self, target: Target, dialect: sa.Dialect, size: int) -> Sequence[str]:
        first = sa.text(self.first_of(target.token))
        some = sa.update(target.table).where(target.version.is_(None))
        filled = sql_of(dialect, some.values({target.version: first}))
        return [f"{filled} AND (the next {size} keys)"]

    def require(self, target: Target, dialect: sa.Dialect) -> Sequence[Step]:
        return [lambda connection: self._rebuild(connection, target)]

    def begin_in_migration(self, connection: sa.Connection, table: str, *, anew: bool) -> None:
        """All steps or none: the driver begins no transaction for statements that change tables.

        Dropping the old table would delete, or fail at, the rows that refer to it. So foreign keys
        are off until the connection is given back, as SQLite's manual advises.
        """
        if anew and connection.exec_driver_sql("PRAGMA foreign_keys").scalar():
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
            if connection.exec_driver_sql("PRAGMA foreign_keys").scalar():
                raise ConfigurationError(
                    f"{table} has to be rebuilt, and rows that refer to it would be lost: PRAGMA"
                    " foreign_keys is ON, and cannot be turned off inside a transaction that has"
                    " written. Nothing was changed by this operation: turn it off before the"
                    " migrations run, or put this operation first into a revision of its own."
                )
            undo_at_checkin(connection, "PRAGMA foreign_keys = ON")
        if not getattr(connection.connection.driver_connection, "in_transaction", True):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _rebuild(self, connection: Sending, target: Target) -> None:
        """A new table in the place of the old one, in one transaction."""
        self.check(target)
        table, column = target.names(connection.dialect)
        first = self.default_of(target.token)
        master = sa.text("SELECT type, name, sql FROM sqlite_master WHERE tbl_name = :name")
        parts = connection.execute(master, {"name": target.table.name}).all()
        [old] = [sql for kind, _, sql in parts if kind == "table"]
        others = [sql for kind, _, sql in parts if kind in ("index", "trigger") and sql]
        new = connection.dialect.identifier_preparer.quote(f"optilock_new_{target.table.name}")
        wanted = f"{column}\n\t\t{target.token.type().compile(connection.dialect)} NOT NULL"
        if first is not None:
            wanted += f" DEFAULT {first}"
        created = _with_column(old, target.name, wanted)
        columns = ", ".join(
            connection.dialect.identifier_preparer.quote(name)
            for name, hidden in _columns(connection, target)
            if not hidden
        )
        send = connection.exec_driver_sql
        if first is not None:
            send(f"UPDATE {table} SET {column} = {first} WHERE {column} IS NULL")
        send(_renamed(created, new))
        send(f"INSERT INTO {new} ({columns}) SELECT {columns} FROM {table}")
        given = _given(connection, target)
        send(f"DROP TABLE {table}")
        legacy = send("PRAGMA legacy_alter_table").scalar()
        send("PRAGMA legacy_alter_table = ON")  # or views and triggers of others would be renamed
        with send_afterwards(send, f"PRAGMA legacy_alter_table = {legacy}"):
            bare = connection.dialect.identifier_preparer.quote(target.table.name)
            send(f"ALTER TABLE {new} RENAME TO {bare}")
        _give_on_from(connection, target, given)
        for sql in others:
            send(sql)

    def rows(self, connection: sa.Connection, target: Target) -> int | None:
        return connection.scalar(sa.select(sa.func.count()).select_from(target.table))


def _leave(connection: sa.Connection) -> None:
    """End the transaction that a listener, or the driver, has begun; nothing was written in it."""
    if getattr(connection.connection.driver_connection, "in_transaction", False):
        connection.exec_driver_sql("ROLLBACK")


def _as_stored(target: Target) -> Target:
    """The same, without types: the one of a key may not say what other programs have put there.

    A UUID would be read as a number, and a time be sent back in another form than it has.
    """
    key = sa.PrimaryKeyConstraint(*(key.name for key in target.keys))
    columns: list[sa.Column[Any]] = [sa.Column(column.name) for column in target.table.columns]
    table = sa.Table(target.table.name, sa.MetaData(), *columns, key, schema=target.table.schema)
    return replace(target, table=table, column=table.columns[target.name])


def _has_key(target: Target) -> sa.ColumnElement[bool]:
    """A key may be NULL, unless it is an INTEGER (https://sqlite.org/lang_createtable.html)."""
    return sa.and_(*(key.is_not(None) for key in target.keys))


def _columns(connection: Sending, target: Target) -> list[tuple[str, Any]]:
    """Names, with SQLite's details of generated columns."""
    found = sa.text("SELECT name, hidden FROM pragma_table_xinfo(:name)")
    return [tuple(row) for row in connection.execute(found, {"name": target.table.name})]


def _given(connection: Sending, target: Target) -> int | None:
    """The last number that AUTOINCREMENT gave, also to a row that is gone."""
    known = sa.text("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'")
    if connection.scalar(known) is None:
        return None
    last: int | None = connection.scalar(
        sa.text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": target.table.name}
    )
    return last


def _give_on_from(connection: Sending, target: Target, given: int | None) -> None:
    if given is None:
        return
    name = {"name": target.table.name}
    connection.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), name)
    connection.execute(
        sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :given)"),
        {**name, "given": given},
    )


def _with_column(sql: str, name: str, definition: str) -> str:
    """The CREATE TABLE with another definition of one column.

    On a line of its own, and with its brackets on another one than its name, which may come to
    stand elsewhere when a column is dropped: SQLAlchemy reads a generated column to the last
    bracket of its line.
    """
    doubled = '"' + name.replace('"', '""') + '"'
    quoted = rf"(?:[\"`\[]?{re.escape(name)}[\"`\]]?|{re.escape(doubled)})"
    kind = r"[A-Za-z][\w ]*(\(\s*\d+\s*(,\s*\d+\s*)?\))?(\s+NULL)?"
    pattern = rf"(?P<before>[(,]\s*){quoted}\s+{kind}\s*(?=[,)])"
    found = list(re.finditer(pattern, sql, flags=re.IGNORECASE))
    if len(found) != 1 or "NOT NULL" in found[0].group().upper():
        raise ConfigurationError(
            f"The column {name!r} has been declared in a way that optilock does not rewrite"
            " (a default, a check, a comment). Nothing was changed by this step: make it NOT NULL"
            " with Alembic's batch_alter_table."
        )
    at = found[0]
    return f"{sql[: at.start()]}{at.group('before')[0]}\n\t{definition}{sql[at.end() :]}"


def _renamed(sql: str, new: str) -> str:
    """The CREATE TABLE under another name."""
    name = r"(\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'|`(?:[^`]|``)*`|\[[^\]]*\]|[^\s(/-]+)"
    at = re.match(rf"\s*CREATE\s+TABLE\s+{name}", sql, re.IGNORECASE)
    assert at is not None
    return sql[: at.start(1)] + new + sql[at.end(1) :]


# -- the catalogue: three statements for all tables of a database file -----------------------------
#
# A PRAGMA is joined with the list of tables as a function
# (https://sqlite.org/pragma.html#pragfunc). Only the text of CREATE TABLE has the collation of a
# column.

_TABLES = "SELECT lower(m.name), m.name, m.type = 'view', m.sql FROM {master} m WHERE {wanted}"
_COLUMNS = (
    'SELECT lower(m.name), x.name, x.type, x."notnull", x.dflt_value, x.pk, x.hidden'
    " FROM {master} m JOIN pragma_table_xinfo(m.name, :schema) x WHERE {wanted} ORDER BY x.cid"
)
_KEYS = (
    "SELECT lower(m.name), l.name, i.name FROM {master} m"
    " JOIN pragma_index_list(m.name, :schema) l JOIN pragma_index_info(l.name, :schema) i"
    ' WHERE {wanted} AND l."unique" AND NOT l.partial'
)
_WANTED = "m.type IN ('table', 'view') AND lower(m.name) IN :names"


class SQLiteCatalogue(Catalogue):
    cased = False
    keeps_types = False  # any value in any column (https://sqlite.org/flextypegood.html)

    def _read(self, names: Collection[str]) -> dict[str, StoredTable]:
        """Without a schema as SQLAlchemy's inspector does: in the main file, or temporary."""
        found = self._of(self.schema or "main", names)
        missing = [name for name in names if name not in found]
        if self.schema is None and missing:
            found |= self._of("temp", missing)
        return found

    def _of(self, schema: str, names: Collection[str]) -> dict[str, StoredTable]:
        master = "sqlite_temp_master" if schema == "temp" else "sqlite_master"
        master = f"{quote_name(self.connection.dialect, schema)}.{master}"
        lowered = {name.lower() for name in names}
        tables, columns, keys = (
            self.ask(sql.format(master=master, wanted=_WANTED), lowered, schema=schema)
            if ":schema" in sql
            else self.ask(sql.format(master=master, wanted=_WANTED), lowered)
            for sql in (_TABLES, _COLUMNS, _KEYS)
        )
        found = {}
        for name, [(real, is_view, sql)] in tables.items():
            # Of rows that a trigger writes INSTEAD OF the view, SQLite counts none.
            refuses = ("UPDATE", "DELETE") if is_view else ()
            rows, lax = columns.get(name, []), dict(lax_columns(sql or ""))
            key = [column for column, *_, place, _ in rows if place]
            found[name] = self.table(
                real,
                (_column(row, lax, key) for row in rows),
                [key, *keys_of(keys.get(name, ()))],
                is_view=bool(is_view),
                refuses=refuses,
            )
        return {name: found[name.lower()] for name in names if name.lower() in found}


def _column(
    row: tuple[str, str, int, str | None, int, int], lax: dict[str, str], key: list[str]
) -> StoredColumn:
    name, kind, required, default, _, hidden = row
    return StoredColumn(
        name,
        kind.lower(),
        not required,
        default,
        hidden in (2, 3),
        key == [name] and kind.upper() == "INTEGER",
        lax=lax.get(name.lower()),
    )


#: Quoted names and texts, comments, brackets, commas, words.
_TOKEN = re.compile(
    r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|[(),]|[^\s(),]+",
    re.DOTALL,
)


def lax_columns(sql: str) -> Iterator[tuple[str, str]]:
    """Columns, in small letters, and their collations that do not compare every character."""
    for words in _definitions(sql):
        name = words[0].strip('"`[]').lower()
        for word, after in pairwise(words):
            if word.upper() == "COLLATE" and after.strip("\"`[]'").upper() in ("NOCASE", "RTRIM"):
                yield name, after.strip("\"`[]'").upper()


def _definitions(sql: str) -> Iterator[list[str]]:
    """Yield the definitions of a CREATE TABLE, each as its words."""
    depth, words = 0, list[str]()
    for token in _TOKEN.findall(sql):
        depth += {"(": 1, ")": -1}.get(token, 0)
        if (token == "," and depth == 1) or (token == ")" and depth == 0):
            if words:
                yield words
            words = []
        elif depth == 1 and token not in "()" and not token.startswith(("--", "/*")):
            words.append(token)
