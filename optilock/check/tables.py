"""Does the table in the database have what the mapping says?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, Table, inspect, types
from sqlalchemy.engine import Connection
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.orm import Mapper

from optilock.check.finding import Finding, Severity
from optilock.dialects import database_of

__all__ = ["check_table"]


def check_table(connection: Connection, mapper: Mapper[Any]) -> Iterator[Finding]:
    """Look at the version column of the class's own table."""
    table, token = mapper.local_table, mapper.version_id_col
    if not isinstance(table, Table):
        return
    columns = _stored(connection, table)
    if columns is None:
        yield Finding(
            "no-table",
            Severity.ERROR,
            table.fullname,
            f"The table of {mapper.class_.__name__} is not in this database.",
            "Run the migrations, or look at the URL and the schema.",
        )
        return
    for code, severe, message, advice in database_of(connection.dialect).weak_table(
        connection, table
    ):
        severity = Severity.ERROR if severe else Severity.WARNING
        yield Finding(code, severity, table.fullname, message, advice)
    if isinstance(token, Column) and token.table is table and token.name != "xmin":
        yield from _drift(table, token, columns)


def _stored(connection: Connection, table: Table) -> dict[str, Any] | None:
    try:
        found = inspect(connection).get_columns(table.name, schema=table.schema)
    except NoSuchTableError:
        return None
    return {column["name"]: column for column in found}


def _drift(table: Table, token: Column[Any], columns: dict[str, Any]) -> Iterator[Finding]:
    subject = f"{table.fullname}.{token.name}"
    stored = columns.get(token.name)
    if stored is None:
        yield Finding(
            "no-column",
            Severity.ERROR,
            subject,
            "The mapping has a version column and the table has none: every query fails.",
            f"Run optilock migrate {table.name} --url …, or a migration of your own.",
        )
        return
    if stored["nullable"]:
        yield Finding(
            "nullable",
            Severity.WARNING,
            subject,
            "The column may be NULL, and a row without a version cannot be checked.",
            f"Run optilock migrate {table.name} --url …: it fills the column and makes it"
            " NOT NULL.",
        )
    yield from _type(subject, token, stored["type"])


def _type(subject: str, token: Column[Any], stored: types.TypeEngine[Any]) -> Iterator[Finding]:
    if isinstance(token.type, types.Integer) and not isinstance(stored, types.Integer):
        yield Finding(
            "type",
            Severity.ERROR,
            subject,
            f"The table has {stored!r}, and the mapping says {token.type!r}.",
            "Migrate the column, or change the token of the class.",
        )
    if isinstance(stored, types.DateTime) and _digits(stored) < 6:
        yield Finding(
            "resolution",
            Severity.ERROR,
            subject,
            "The column keeps less than microseconds: two writes in one tick get the same version,"
            " and the second one overwrites unseen.",
            "Change it to a type with six digits (DATETIME(6), TIMESTAMP(6)).",
        )


def _digits(stored: Any) -> int:
    """Digits of a second's fraction; MariaDB keeps none unless it is told to, others six."""
    if hasattr(stored, "fsp"):
        return stored.fsp or 0
    precision: int | None = getattr(stored, "precision", None)
    return 6 if precision is None else precision
