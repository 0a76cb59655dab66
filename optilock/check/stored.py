"""What the database has of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Table, inspect
from sqlalchemy.engine import Connection

from optilock.dialects import database_of

__all__ = ["StoredTable", "schema_of", "stored_table"]


@dataclass(frozen=True)
class StoredTable:
    """A table, or a view, as the database has it."""

    #: Name -> what SQLAlchemy's inspector says of the column.
    columns: Mapping[str, Any]
    #: Sets of columns that name one row: the primary key, unique constraints and unique indexes.
    keys: tuple[frozenset[str], ...]
    is_view: bool
    #: Do two names that differ in case only name two columns?
    cased: bool

    def column(self, column: Column[Any]) -> Any | None:
        """What there is of a mapped column."""
        return self.columns.get(self.name(column.name))

    def name(self, name: str) -> str:
        return name if self.cased else name.lower()


def schema_of(connection: Connection, table: Table) -> str | None:
    """The schema in which this connection looks for the table (``schema_translate_map``)."""
    return connection.schema_for_object(table)


def stored_table(connection: Connection, table: Table) -> StoredTable | None:
    """What there is of a mapped table; None if there is nothing."""
    seen, where = inspect(connection), {"schema": schema_of(connection, table)}
    is_view = False
    if not seen.has_table(table.name, **where):
        return None
    if table.name in seen.get_view_names(**where):
        is_view = True
    cased = database_of(connection.dialect).cased_columns
    columns = seen.get_columns(table.name, **where)
    keys = [] if is_view else _keys(seen, table.name, where)
    return StoredTable(
        {c["name"] if cased else c["name"].lower(): c for c in columns},
        tuple(frozenset(n if cased else n.lower() for n in key) for key in keys if key),
        is_view,
        cased,
    )


def _keys(seen: Any, name: str, where: Mapping[str, Any]) -> list[list[str]]:
    found = [seen.get_pk_constraint(name, **where)["constrained_columns"]]
    found += [one["column_names"] for one in seen.get_unique_constraints(name, **where)]
    for index in seen.get_indexes(name, **where):
        if index["unique"] and None not in index["column_names"] and not _is_partial(index):
            found.append(index["column_names"])
    return found


def _is_partial(index: Mapping[str, Any]) -> bool:
    """One that holds for some rows only."""
    return any(name.endswith("_where") for name in index.get("dialect_options", ()))
