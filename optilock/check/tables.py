"""Checks of each table: it agrees with the mapping, and its version column keeps every version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, DefaultClause, Integer, String, Uuid, types

from optilock.check.findings import Finding, error, note, warning, weakness_finding
from optilock.check.subjects import CheckedTable
from optilock.dialects.catalogue import StoredColumn


def weaknesses(seen: CheckedTable) -> Iterator[Finding]:
    """Report the weaknesses that each engine's file ``weak`` finds."""
    for weakness in seen.stored.weaknesses:
        yield weakness_finding(weakness, seen.name)


def key(seen: CheckedTable) -> Iterator[Finding]:
    """Find a mapped key that is not unique: one UPDATE should write one row."""
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


def read_only(seen: CheckedTable) -> Iterator[Finding]:
    """Find a view that can be read, and not written."""
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
            "Nothing, if no program writes them.",
        )
        return
    yield error(
        "read-only",
        seen.name,
        f"The table of {seen.subject.name} {what}: a write fails, or is taken for a conflict.",
        f"Map {seen.subject.name} to the table behind it, or say __version_token__ = None of it,"
        " if it is only read.",
    )


def unknown_columns(seen: CheckedTable) -> Iterator[Finding]:
    """Find unmapped columns that every INSERT would have to set."""
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


def missing_columns(seen: CheckedTable) -> Iterator[Finding]:
    """Find mapped columns that the table does not have."""
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


def types_of_columns(seen: CheckedTable) -> Iterator[Finding]:
    """Find columns of another type than the mapping's."""
    for column in seen.table.columns:
        found = None if column.system else seen.column(column)
        if found is not None and _is_another(seen, column, found):
            yield error(
                "type",
                seen.of(column),
                f"The table has {found.type.upper()}, and the mapping {column.type!r}: values are"
                " refused, or changed on their way, and then never equal to the values read.",
                "Migrate the column (op.alter_column, which autogenerate writes with"
                " compare_type), or change the mapping.",
            )


#: SQL type -> family of types that keep each other's values well enough. Other types are ignored.
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


def _is_another(seen: CheckedTable, column: Column[Any], found: StoredColumn) -> bool:
    """Return whether a column has another family of types; widths do not count."""
    is_version, there = column is seen.subject.version, _FAMILIES.get(found.word)
    if is_version and isinstance(column.type, Integer):
        return there not in (None, "number") or found.word in _FRACTIONS
    if not seen.database.catalogue.keeps_types and not is_version:
        return False  # SQLite keeps any value in any column
    mapped = family(column.type, seen)
    if there == "uuid" and mapped == "text" and isinstance(column.type, Uuid):
        return False  # MariaDB compares its UUIDs with text, which SQLAlchemy sends
    return mapped is not None and there is not None and mapped != there


def family(kind: types.TypeEngine[Any], seen: CheckedTable) -> str | None:
    """Return the family of a mapped type; None of an unknown one."""
    found = StoredColumn("", in_sql(kind, seen), nullable=True)
    return _FAMILIES.get(found.word)


def in_sql(kind: types.TypeEngine[Any], seen: CheckedTable) -> str:
    try:
        return kind.compile(seen.dialect).lower()
    except Exception:  # a type of the application's may do anything
        return ""


def is_text(found: StoredColumn) -> bool:
    return _FAMILIES.get(found.word) == "text"


# -- the column that holds a version --------------------------------------------------------------


def nullable(seen: CheckedTable) -> Iterator[Finding]:
    """Find a version column that may be NULL; for a view's column it is unknown."""
    if seen.version is None or seen.stored.is_view:
        return
    name, _, found = seen.version
    if found.nullable:
        yield warning(
            "nullable",
            name,
            "The column may be NULL, and a row without a version cannot be checked.",
            f"{seen.subject.roll_out}: it fills the column and makes it NOT NULL.",
        )


def resolution(seen: CheckedTable) -> Iterator[Finding]:
    """Find a time that is too coarse to distinguish two writes."""
    if seen.version is None:
        return
    name, mapped, found = seen.version
    if not keeps_microseconds(found):
        yield error(
            "resolution",
            name,
            "The column keeps less than microseconds: two writes in one tick get the same version,"
            " and the second one overwrites unseen.",
            f"Change it to a type with six digits, {in_sql(mapped.type, seen).upper()}"
            f" (ALTER TABLE {seen.name} …).",
        )


def keeps_microseconds(found: StoredColumn) -> bool:
    """Return whether a column keeps microseconds; True for a column without times."""
    if found.word in ("DATETIME", "TIMESTAMP"):
        return found.size is None or found.size >= 6
    return found.word != "DATE"


def time_zone(seen: CheckedTable) -> Iterator[Finding]:
    """Find a time that depends on the time zone of the connection."""
    if seen.version is None or not seen.database.catalogue.keeps_types:
        return
    name, mapped, found = seen.version
    wanted = in_sql(mapped.type, seen)
    without = "with time zone" in wanted and "without time zone" in found.type
    converted = wanted.startswith("datetime") and found.word == "TIMESTAMP"
    if without or converted:
        yield error(
            "time-zone",
            name,
            f"The column is {found.type.upper()}, which is read and written in the time zone of"
            " each connection: two connections with other zones see other versions of one row, so"
            " writes conflict without reason, and an older version can come again.",
            f"Change its type to {wanted.upper()} (ALTER TABLE, with the zone in which its values"
            " were written: … USING … AT TIME ZONE 'UTC' on PostgreSQL).",
        )


#: Bits of integer types that versions outgrow.
_SMALL = {"TINYINT": 8, "SMALLINT": 16, "INT2": 16, "SMALLSERIAL": 16, "MEDIUMINT": 24}


def too_small(seen: CheckedTable) -> Iterator[Finding]:
    """Find a version column without room for every version."""
    if seen.version is not None and seen.database.catalogue.keeps_types:
        name, mapped, found = seen.version
        yield from _small_number(seen, name, mapped, found)
        yield from _short_text(seen, name, mapped, found)


def _small_number(
    seen: CheckedTable, name: str, mapped: Column[Any], found: StoredColumn
) -> Iterator[Finding]:
    bits = _SMALL.get(found.word) if isinstance(mapped.type, Integer) else None
    token = None if seen.subject.wanted is None else seen.subject.wanted.token
    if bits is not None and (token is None or token.made_by != "application"):
        yield error(
            "too-small",
            name,
            f"The column is {found.type.upper()}: after {2 ** (bits - 1) - 1:,} writes of a row"
            " its next write fails, or, on a server that is not strict, keeps the same version.",
            f"Change it to BIGINT (ALTER TABLE {seen.name} …).",
        )


def _short_text(
    seen: CheckedTable, name: str, mapped: Column[Any], found: StoredColumn
) -> Iterator[Finding]:
    length = 32 if isinstance(mapped.type, Uuid) else getattr(mapped.type, "length", None)
    if is_text(found) and isinstance(length, int) and (found.size or length) < length:
        yield error(
            "too-small",
            name,
            f"The column keeps {found.size} characters, and a version has up to {length}: one that"
            " was cut off is not the one that was written, or the write fails.",
            f"Change it to {in_sql(mapped.type, seen).upper()} (ALTER TABLE {seen.name} …).",
        )


def collation(seen: CheckedTable) -> Iterator[Finding]:
    """Find a collation that takes different versions as equal."""
    if seen.version is None:
        return
    name, mapped, found = seen.version
    if found.lax is not None and isinstance(mapped.type, (String, Uuid)):
        if isinstance(mapped.type, Uuid):
            return  # hexadecimal digits, always in small letters
        yield error(
            "collation",
            name,
            f"{found.lax} takes texts for the same that differ (in case, accents or blanks): two"
            " such versions are one, and a lost update between them is not seen.",
            "Give the column a collation that compares every character (utf8mb4_bin on MariaDB,"
            ' BINARY on SQLite, "C" and not citext on PostgreSQL).',
        )


def moved_by_itself(seen: CheckedTable) -> Iterator[Finding]:
    """Find a version that the database sets in every UPDATE (``ON UPDATE``)."""
    if seen.version is None:
        return
    name, _, found = seen.version
    if found.moves_by_itself:
        yield error(
            "version-on-update",
            name,
            "The database sets the version in every UPDATE that does not name it (ON UPDATE), to"
            " its clock in the time zone of the connection: a version can come again, and writes"
            " that leave it as it was (no_bump, ignored columns) make others conflict.",
            f"Take the clause away: ALTER TABLE {seen.name} MODIFY the column without ON UPDATE;"
            " __version_guard__ moves versions that others leave alone.",
        )


def first_version(seen: CheckedTable) -> Iterator[Finding]:
    """Find a missing default on which the mapping relies for new rows."""
    if seen.version is None:
        return
    name, mapped, found = seen.version
    if isinstance(mapped.server_default, DefaultClause) and found.default is None:
        first = getattr(mapped.server_default.arg, "text", mapped.server_default.arg)
        yield error(
            "no-default",
            name,
            "The first version of a row is the column's default, and the column has none: new rows"
            " are refused, or have no version.",
            f"ALTER TABLE {seen.name} ALTER COLUMN {mapped.name} SET DEFAULT {first}; on SQLite"
            " with Alembic's batch_alter_table.",
        )


ALL = (
    weaknesses,
    key,
    read_only,
    unknown_columns,
    missing_columns,
    types_of_columns,
    nullable,
    resolution,
    time_zone,
    too_small,
    collation,
    moved_by_itself,
    first_version,
)
