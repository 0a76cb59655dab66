"""Names and texts inside SQL that is sent as it is."""

from __future__ import annotations

from sqlalchemy import DDL, MetaData, Table
from sqlalchemy.engine import Dialect

__all__ = ["literal", "plain", "quoted", "quoted_table"]


def quoted(dialect: Dialect, name: str) -> str:
    """A name, in quotes where it needs them."""
    return _as_it_is(dialect, dialect.identifier_preparer.quote(name))


def quoted_table(dialect: Dialect, table: str, schema: str | None) -> str:
    """A table's name, with its schema."""
    named = Table(table, MetaData(), schema=schema)
    return _as_it_is(dialect, dialect.identifier_preparer.format_table(named))


def literal(text: str) -> str:
    """A text as SQL. Not for what a user types: backslashes mean something to some databases."""
    return "'" + text.replace("'", "''") + "'"


def plain(sql: str) -> DDL:
    """SQL as it is: no ``%`` and no ``:name`` of it means anything."""
    return DDL(sql.replace("%", "%%"))  # type: ignore[no-untyped-call]


def _as_it_is(dialect: Dialect, sql: str) -> str:
    """SQLAlchemy doubles ``%`` for drivers that would take it for a parameter."""
    doubles = getattr(dialect.identifier_preparer, "_double_percents", False)
    return sql.replace("%%", "%") if doubles else sql
