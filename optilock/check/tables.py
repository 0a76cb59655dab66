"""What is asked of each table: is it what the mapping says, and a place where versions hold?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Integer, Uuid, types

from optilock.check.findings import Finding, error, note, weak
from optilock.check.subjects import Seen
from optilock.dialects.catalogue import StoredColumn


def what_the_database_says(seen: Seen) -> Iterator[Finding]:
    """Its own weaknesses, which each engine's file ``weak`` finds."""
    for weakness in seen.stored.weaknesses:
        yield weak(weakness, seen.name)


def key(seen: Seen) -> Iterator[Finding]:
    """One UPDATE shall write one row."""
    stored = seen.stored
    mapped = {stored.cased_as(column.name) for column in seen.table.primary_key}
    if stored.is_view or not mapped or any(key <= mapped for key in stored.keys):
        return
    yield error(
        "key",
        seen.name,
        f"The mapping finds a row by {', '.join(sorted(mapped))}, and nothing in the table"
        " keeps that unique: a write may meet several rows, or another one.",
        f"ALTER TABLE {seen.name} ADD PRIMARY KEY ({', '.join(sorted(mapped))}), or map the key"
        " that the table has.",
    )


def read_only(seen: Seen) -> Iterator[Finding]:
    """A view that can be read, and not written."""
    stored, version = seen.stored, seen.version
    if stored.refuses:
        what = f"is a view, or like one, and takes no {' and no '.join(stored.refuses)}"
    elif version is not None and version[2].fixed:
        what = f"is a view whose {version[2].name} no UPDATE can set"
    else:
        return
    if seen.subject.version is None:
        yield note(
            "read-only",
            seen.name,
            f"The table of {seen.subject.name} {what}: its objects can be read, and not written.",
            "Nothing, if nobody is to write them.",
        )
        return
    yield error(
        "read-only",
        seen.name,
        f"The table of {seen.subject.name} {what}: a write fails, or is taken for a conflict.",
        f"Map {seen.subject.name} to the table behind it, or say __version_token__ = None of it,"
        " if it is only read.",
    )


def unknown_columns(seen: Seen) -> Iterator[Finding]:
    """Columns that every INSERT would have to name."""
    stored = seen.stored
    mapped = {stored.cased_as(column.name) for column in seen.table.columns}
    for name, column in stored.columns.items():
        if stored.is_view or name in mapped or column.is_filled:
            continue
        yield error(
            "unknown-column",
            f"{seen.name}.{column.name}",
            "The mapping does not know the column, which is NOT NULL and has no default: new rows"
            " are refused.",
            f"Map it, give it a default (ALTER TABLE {seen.name} ALTER COLUMN {column.name} SET"
            " DEFAULT …), or drop it.",
        )


def missing_columns(seen: Seen) -> Iterator[Finding]:
    """Columns that are mapped, and not there."""
    for column in seen.table.columns:
        if column.system or seen.column(column) is not None:
            continue
        if column is seen.subject.version:
            yield error(
                "no-column",
                seen.of(column),
                "The mapping has a version column and the table has none: every query fails.",
                f"{seen.subject.roll_out}, or let autogenerate write the migration.",
            )
        else:
            yield error(
                "no-column",
                seen.of(column),
                "The mapping has the column and the table does not: every query fails.",
                "Run the migrations, or take it out of the mapping.",
            )


def types_of_columns(seen: Seen) -> Iterator[Finding]:
    """Columns that keep something else than the mapping says."""
    for column in seen.table.columns:
        found = None if column.system else seen.column(column)
        if found is not None and _is_another(seen, column, found):
            yield error(
                "type",
                seen.of(column),
                f"The table has {found.type.upper()}, and the mapping says {column.type!r}: values"
                " are refused, or changed on their way, and then never equal to what was read.",
                "Migrate the column (op.alter_column, which autogenerate writes with"
                " compare_type), or change the mapping.",
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
_FRACTIONS = ("FLOAT", "REAL", "DOUBLE", "NUMERIC", "DECIMAL", "NUMBER", "BOOL")


def _is_another(seen: Seen, column: Column[Any], found: StoredColumn) -> bool:
    """Not for a wider or a narrower one, nor for what a type of the application's own may hide."""
    is_version, there = column is seen.subject.version, _FAMILIES.get(found.word)
    if is_version and isinstance(column.type, Integer):
        return there not in (None, "number") or found.word in _FRACTIONS
    if not seen.database.keeps_types and not is_version:
        return False  # SQLite keeps any value in any column
    mapped = family(column.type, seen)
    if there == "uuid" and mapped == "text" and isinstance(column.type, Uuid):
        return False  # MariaDB compares its UUIDs with text, which SQLAlchemy sends
    return mapped is not None and there is not None and mapped != there


def family(kind: types.TypeEngine[Any], seen: Seen) -> str | None:
    """What a mapped type keeps; None of one that is not known."""
    found = StoredColumn("", in_sql(kind, seen), nullable=True)
    return _FAMILIES.get(found.word)


def in_sql(kind: types.TypeEngine[Any], seen: Seen) -> str:
    try:
        return kind.compile(seen.dialect).lower()
    except Exception:  # a type of the application's may do anything
        return ""


def is_text(found: StoredColumn) -> bool:
    return _FAMILIES.get(found.word) == "text"


ALL = (
    what_the_database_says,
    key,
    read_only,
    unknown_columns,
    missing_columns,
    types_of_columns,
)
