"""The table that is to get a version, as the database has it now."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, MetaData, PrimaryKeyConstraint, Table, inspect
from sqlalchemy.engine import Connection
from sqlalchemy.exc import NoSuchTableError

from optilock.dialects import database_of
from optilock.dialects.rollout import Target
from optilock.errors import ConfigurationError
from optilock.tokens import Token

__all__ = ["require_present", "target_of"]


_DEFAULT = "optilock_default"


def target_of(connection: Connection, name: str, schema: str | None, token: Token) -> Target:
    """Look at the table.

    Raises:
        ConfigurationError: there is no such schema or table, it has no primary key, or a column of
            that name is of another type.
    """
    what = name if schema is None else f"{schema}.{name}"
    _require_schema(connection, schema)
    try:
        table = _reflected(connection, name, schema)
    except NoSuchTableError:
        raise ConfigurationError(_unknown(connection, name, schema, what)) from None
    database_of(connection.dialect).complete(connection, table)
    if name in inspect(connection).get_view_names(schema=schema):
        raise ConfigurationError(
            f"{what} is a view: a version belongs to a row, and a view has none of its own. Nothing"
            " was changed; name the table that the view shows."
        )
    if not table.primary_key.columns:
        raise ConfigurationError(
            f"{what} has no primary key: a version belongs to a row that can be named, and the"
            " roll-out goes by the key. Add a primary key first."
        )
    column = table.columns.get(token.column_name)
    if column is not None and not _fits(connection, token, column):
        raise ConfigurationError(
            f"{what}.{column.name} exists and is {column.type!r}, which {type(token).__name__}"
            " cannot use. Nothing was changed. Give the version another name, or drop"
            " the column if nobody needs it."
        )
    has_default = column is not None and column.info[_DEFAULT] is not None
    return Target(table, token, column, has_default)


def _reflected(connection: Connection, name: str, schema: str | None) -> Table:
    """Columns and key. Not more: ``autoload_with`` follows every foreign key to other tables, and
    stumbles over a CHECK that is not validated, which an interrupted roll-out leaves behind."""
    seen = inspect(connection)
    columns = [
        Column(
            found["name"],
            found["type"],
            nullable=found["nullable"],
            comment=found.get("comment"),
            info={_DEFAULT: found["default"]},
        )
        for found in seen.get_columns(name, schema=schema)
    ]
    key = PrimaryKeyConstraint(*seen.get_pk_constraint(name, schema=schema)["constrained_columns"])
    return Table(name, MetaData(), *columns, key, schema=schema)


def require_present(target: Target | None, table: str) -> None:
    """Refuse a table that does not have the version's column."""
    if target is not None and target.column is None:
        known = ", ".join(target.table.columns.keys())
        raise ConfigurationError(
            f"There is no column {table}.{target.name}. Nothing was changed. {table} has: {known}."
        )


def _fits(connection: Connection, token: Token, column: Column[Any]) -> bool:
    if token.accepts(column):
        return True
    dialect = connection.dialect
    return column.type.compile(dialect).upper() == token.type().compile(dialect).upper()


def _require_schema(connection: Connection, schema: str | None) -> None:
    if schema is None or schema in (known := inspect(connection).get_schema_names()):
        return
    raise ConfigurationError(
        f"There is no schema {schema!r} in this database. Nothing was changed. There are:"
        f" {', '.join(known)}."
    )


def _unknown(connection: Connection, name: str, schema: str | None, what: str) -> str:
    known = inspect(connection).get_table_names(schema=schema)
    near = [one for one in known if one.lower() == name.lower()]
    hint = f" There is {near[0]!r}: names are case-sensitive." if near else ""
    within, _, bare = name.rpartition(".")
    if schema is None and within and inspect(connection).has_table(bare, schema=within):
        hint = (
            f" There is {bare!r} in the schema {within!r}: name the two by themselves, the schema"
        )
        hint += " with schema= (--schema)."
    return (
        f"There is no table {what!r} in this database.{hint} Nothing was changed; look at the name,"
        " the schema and the URL."
    )
