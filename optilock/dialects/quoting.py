"""Names and texts inside SQL that is sent as it is."""

from __future__ import annotations

from typing import Any

from sqlalchemy import DDL, ColumnElement, Dialect, MetaData, Select, Table, Update

from optilock.undocumented.dialects import double_percents


def quoted(dialect: Dialect, name: str) -> str:
    """A name, in quotes where it needs them."""
    return as_it_is(dialect, dialect.identifier_preparer.quote(name))


def quoted_table(dialect: Dialect, table: str, schema: str | None) -> str:
    """A table's name, with its schema."""
    named = Table(table, MetaData(), schema=schema)
    return as_it_is(dialect, dialect.identifier_preparer.format_table(named))


def literal(text: str) -> str:
    """A text as SQL. Not for what a user types: backslashes mean something to some databases."""
    return "'" + text.replace("'", "''") + "'"


def plain(sql: str) -> DDL:
    """SQL as it is: no ``%`` and no ``:name`` of it means anything."""
    return DDL(sql.replace("%", "%%"))  # type: ignore[no-untyped-call]


def as_it_is(dialect: Dialect, sql: str) -> str:
    """What the compiler has made, with each ``%`` once; whoever executes it sees to that."""
    return sql.replace("%%", "%") if double_percents(dialect) else sql


def sql_of(dialect: Dialect, element: ColumnElement[Any] | Select[Any] | Update) -> str:
    """An expression, or a statement, as SQL, its values written out."""
    compiled = element.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    return as_it_is(dialect, str(compiled))
