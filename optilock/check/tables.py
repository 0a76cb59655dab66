"""What is asked of each table: has it what the mapping says, and have its rows their versions?

And are the triggers there that versions depend on, and are they those of the mapping?
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Table, Uuid, func, select, types
from sqlalchemy.exc import DBAPIError

from optilock.check.findings import Finding, error, unreadable, warning, weak
from optilock.check.subjects import StoredTable, Subject, schema_of
from optilock.dialects import database_of
from optilock.dialects.migrations import Found, GuardTriggers
from optilock.errors import ConfigurationError
from optilock.mapping.triggers import moved_column, trigger_ddl, trigger_name
from optilock.schema import Expected, expected
from optilock.tokens.guard_trigger import is_guard

__all__ = ["check_rows", "check_table", "check_triggers", "microseconds", "unreadable"]


def check_table(
    connection: Connection, subject: Subject, stored: StoredTable | None
) -> Iterator[Finding]:
    """Is it there, with transactions, a key, and the columns of the mapping?"""
    table = subject.table
    if stored is None:
        yield error(
            "no-table",
            table.fullname,
            f"The table of {subject.name} is not in this database.",
            "Run the migrations, or look at the URL and the schema.",
        )
        return
    for weakness in database_of(connection.dialect).weak_table(connection, table):
        yield weak(weakness, table.fullname)
    if not stored.is_view:
        yield from _key(table, stored)
        yield from _unknown_columns(table, stored)
    for column in table.columns:
        if not column.system:
            yield from _column(connection, subject, column, stored)


def _key(table: Table, stored: StoredTable) -> Iterator[Finding]:
    """One UPDATE shall write one row."""
    mapped = {stored.name(column.name) for column in table.primary_key}
    if mapped and not any(key <= mapped for key in stored.keys):
        yield error(
            "key",
            table.fullname,
            f"The mapping finds a row by {', '.join(sorted(mapped))}, and nothing in the table"
            " keeps that unique: a write may meet several rows, or another one.",
            "Give the table this primary key, or map the one that it has.",
        )


def _unknown_columns(table: Table, stored: StoredTable) -> Iterator[Finding]:
    """Columns that every INSERT would have to name."""
    mapped = {stored.name(column.name) for column in table.columns}
    for name, column in stored.columns.items():
        if name in mapped or column["nullable"] or column.get("default") is not None:
            continue
        if column.get("computed") or column.get("identity") or column.get("autoincrement") is True:
            continue
        yield error(
            "unknown-column",
            f"{table.fullname}.{column['name']}",
            "The mapping does not know the column, which is NOT NULL and has no default: new rows"
            " are refused.",
            "Map it, give it a default, or drop it.",
        )


def _column(
    connection: Connection, subject: Subject, column: Column[Any], stored: StoredTable
) -> Iterator[Finding]:
    name = f"{subject.table.fullname}.{column.name}"
    found, is_version = stored.column(column), column is subject.version
    if found is None:
        yield _no_column(name, subject, is_version)
        return
    if is_version and found["nullable"]:
        yield warning(
            "nullable",
            name,
            "The column may be NULL, and a row without a version cannot be checked.",
            f"{subject.roll_out}: it fills the column and makes it NOT NULL.",
        )
    if _is_another_type(connection, column, found["type"], is_version):
        yield error(
            "type",
            name,
            f"The table has {found['type']!r}, and the mapping says {column.type!r}.",
            "Migrate the column, or change the mapping.",
        )
    elif is_version and not microseconds(found["type"]):
        yield error(
            "resolution",
            name,
            "The column keeps less than microseconds: two writes in one tick get the same version,"
            " and the second one overwrites unseen.",
            "Change it to a type with six digits (DATETIME(6), TIMESTAMP(6)).",
        )


def _no_column(name: str, subject: Subject, is_version: bool) -> Finding:
    if is_version:
        return error(
            "no-column",
            name,
            "The mapping has a version column and the table has none: every query fails.",
            f"{subject.roll_out}, or let autogenerate write the migration.",
        )
    return error(
        "no-column",
        name,
        "The mapping has the column and the table does not: every query fails.",
        "Run the migrations, or take it out of the mapping.",
    )


#: Words of SQL -> what can be kept in one another without loss of what matters here. A type whose
#: word is not here is not looked at.
_FAMILIES = {
    **dict.fromkeys(("CHAR", "VARCHAR", "TEXT", "CLOB", "CHARACTER", "NVARCHAR", "NCHAR"), "text"),
    **dict.fromkeys(("TINYTEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET"), "text"),
    **dict.fromkeys(("INT", "INTEGER", "BIGINT", "SMALLINT", "MEDIUMINT", "TINYINT"), "number"),
    **dict.fromkeys(("SERIAL", "BIGSERIAL", "BOOL", "FLOAT", "REAL", "DOUBLE"), "number"),
    **dict.fromkeys(("NUMERIC", "DECIMAL", "NUMBER"), "number"),
    **dict.fromkeys(("DATETIME", "TIMESTAMP"), "moment"),
    **dict.fromkeys(("BLOB", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB"), "bytes"),
    **dict.fromkeys(("BYTEA", "BINARY", "VARBINARY"), "bytes"),
    "DATE": "day",
    "TIME": "time",
    "BOOLEAN": "flag",
    "UUID": "uuid",
}


def _is_another_type(
    connection: Connection, column: Column[Any], stored: types.TypeEngine[Any], is_version: bool
) -> bool:
    """Not for a wider or a narrower one, nor for what a type of the application's own may hide."""
    if is_version and isinstance(column.type, types.Integer):
        return not isinstance(stored, types.Integer)
    if not database_of(connection.dialect).keeps_types and not is_version:
        return False  # SQLite keeps any value in any column
    mapped, there = (_family(kind, connection) for kind in (column.type, stored))
    return mapped is not None and there is not None and mapped != there


def _family(kind: types.TypeEngine[Any], connection: Connection) -> str | None:
    try:
        text = kind.compile(connection.dialect)
    except Exception:  # a type of the application's may do anything
        return None
    return _FAMILIES.get(text.upper().partition("(")[0].partition(" ")[0])


def check_rows(
    connection: Connection, subject: Subject, stored: StoredTable | None
) -> Iterator[Finding]:
    """Look for NULL and, in random tokens, for duplicates.

    The table is read only where it can have some: not for NULL in a column that is NOT NULL.
    """
    token = subject.version
    column = None if stored is None or token is None else stored.column(token)
    if token is None or column is None:
        return  # check_table says so
    name = f"{subject.table.fullname}.{token.name}"
    try:
        missing = _missing(connection, token) if column["nullable"] else 0
        repeated = _repeated(connection, token) if isinstance(token.type, Uuid) else 0
    except DBAPIError as refusal:
        yield unreadable(name, refusal)
        return
    if missing:
        yield error(
            "null-versions",
            name,
            f"{_rows(missing, 'has', 'have')} no version: writing one of them is refused.",
            f"{subject.roll_out}: it fills them beside the writers.",
        )
    if repeated:
        yield warning(
            "repeated-versions",
            name,
            f"{repeated} random versions are carried by more than one row: something copies them.",
            "Look for INSERT … SELECT and for rows that are cloned with their version.",
        )


def _missing(connection: Connection, token: Column[Any]) -> int:
    counted = select(func.count()).select_from(token.table).where(token.is_(None))
    return connection.scalar(counted) or 0


def _repeated(connection: Connection, token: Column[Any]) -> int:
    groups = select(token).where(token.is_not(None)).group_by(token).having(func.count() > 1)
    return connection.scalar(select(func.count()).select_from(groups.subquery())) or 0


def _rows(number: int, has: str, have: str) -> str:
    return f"1 row {has}" if number == 1 else f"{number} rows {have}"


def microseconds(stored: types.TypeEngine[Any]) -> bool:
    """Does a stored type keep microseconds? True of what is no time at all."""
    if isinstance(stored, types.DateTime):
        return _digits(stored) >= 6
    return not isinstance(stored, types.Date)


def _digits(stored: Any) -> int:
    """Digits of a second's fraction; MariaDB keeps none unless it is told to, others six."""
    if hasattr(stored, "fsp"):
        return stored.fsp or 0
    precision: int | None = getattr(stored, "precision", None)
    return 6 if precision is None else precision


@dataclass(frozen=True)
class _Triggers:
    """Those of one table, as the catalogue of the database keeps them."""

    connection: Connection
    subject: Subject
    schema: str | None
    kind: GuardTriggers
    found: list[Found]

    def get(self, name: str) -> Found | None:
        """One by its name, also where the catalogue does not show it to this user."""
        table = self.subject.table.name
        there = next((one for one in self.found if one.name == name), None)
        return there or self.kind.hidden(self.connection, table, name, self.schema)


def check_triggers(
    connection: Connection, subject: Subject, stored: StoredTable | None
) -> Iterator[Finding]:
    """Compare them as the catalogue keeps them."""
    wanted = expected([subject.table]).get(subject.table)
    if stored is None:
        return  # check_table says so
    schema = schema_of(connection, subject.table)
    kind = database_of(connection.dialect).guard_triggers(connection.dialect)
    found = [one for one in kind.found(connection, schema) if one.table == subject.table.name]
    triggers = _Triggers(connection, subject, schema, kind, found)
    try:
        yield from _guard(triggers, subject, wanted)
        yield from _version(triggers, subject, wanted)
    except ConfigurationError as refusal:
        advice = "Use a token and options that this database has."
        yield error("no-trigger", subject.table.fullname, str(refusal), advice)


def _guard(triggers: _Triggers, subject: Subject, wanted: Expected | None) -> Iterator[Finding]:
    """The trigger of ``__version_guard__``."""
    there = next((one for one in triggers.found if is_guard(one.name)), None)
    guard = wanted.guard if wanted is not None else None
    if guard is not None:
        yield from _compared(
            subject,
            f"{subject.name}.__version_guard__ = {guard.policy!r}",
            there or triggers.get(guard.name),
            triggers.kind.source(guard),
            "op.create_guard_trigger",
            "a foreign UPDATE changes rows and nobody is told",
        )
    elif there is not None and not there.of_parent:
        yield _unasked(
            subject,
            there,
            f"The table has a guard trigger, and {subject.name} asks for none.",
            "Set __version_guard__, or drop the trigger: op.drop_guard_trigger, which"
            " autogenerate writes.",
        )


def _version(triggers: _Triggers, subject: Subject, wanted: Expected | None) -> Iterator[Finding]:
    """The trigger of a ``RowVersion``."""
    if wanted is None or not wanted.moves_by_trigger:
        for one in triggers.found:
            moved = moved_column(subject.table.name, one.name, one.source)
            if moved is not None and not one.of_parent:
                yield _unasked(
                    subject,
                    one,
                    f"A trigger moves the column {moved!r}, and {subject.name} has no RowVersion.",
                    "Use RowVersion(), or drop the trigger: op.drop_version_trigger, which"
                    " autogenerate writes.",
                )
        return
    table, column = subject.table, wanted.column
    ddl = trigger_ddl(table, column, triggers.kind.dialect, schema=triggers.schema)
    yield from _compared(
        subject,
        f"{subject.name}.__version_token__ = RowVersion()",
        triggers.get(trigger_name(table.name, column.name)),
        ddl.source,
        "op.create_version_trigger",
        "the version does not move, and every write is refused",
    )


def _compared(
    subject: Subject, what: str, there: Found | None, source: str, operation: str, harm: str
) -> Iterator[Finding]:
    advice = f"Create it in a migration: {operation}, which autogenerate writes."
    if there is None:
        code, message = "no-trigger", f"{what} needs a trigger, and the table has none: {harm}."
    elif not there.enabled:
        code = "trigger-off"
        message = f"The trigger {there.name} of {what} is switched off: {harm}."
        advice = "ALTER TABLE … ENABLE TRIGGER, and find out who switched it off."
    elif there.source is None:
        yield warning(
            "unreadable",
            f"{subject.table.fullname}.{there.name}",
            "What the trigger does may not be read, so nobody knows whether it is the right one.",
            "Check as a user who has the right TRIGGER on the table.",
        )
        return
    elif there.source.strip() != source.strip():
        code = "other-trigger"
        message = f"The trigger {there.name} is another one than {what} asks for."
    else:
        return
    yield error(code, subject.table.fullname, message, advice)


def _unasked(subject: Subject, there: Found, message: str, advice: str) -> Finding:
    where = f"{subject.table.fullname}.{there.name}"
    return warning("unasked-trigger", where, message, advice)
