"""The columns behind an object's attributes: the version, the ignored ones, and equal values."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, FromClause, Join, Table
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError

__all__ = [
    "GIVE_ONE",
    "columns_of",
    "ignored_columns",
    "maps_a_select",
    "rows_of",
    "same",
    "table_of_version",
    "token_attribute",
]

#: What to do about a class whose rows have no version; it may be of the mixin, and compare values.
GIVE_ONE = "give the class one (optilock.Versioned, with a token that has a column: Counter())"


def columns_of(mapper: Mapper[Any]) -> dict[str, Column[Any]]:
    """Attribute -> column of the mapper's own tables (the nearest, where tables are joined)."""
    if maps_a_select(mapper):
        behind = {a.key: column_behind(mapper, a.columns[0]) for a in mapper.column_attrs}
        return {name: column for name, column in behind.items() if column is not None}
    return {
        attribute.key: attribute.columns[0]
        for attribute in mapper.column_attrs
        if isinstance(attribute.columns[0], Column) and attribute.columns[0].table in mapper.tables
    }


def maps_a_select(mapper: Mapper[Any]) -> bool:
    """Is the class mapped to a SELECT, or an alias, and its rows are stored elsewhere?"""
    return not isinstance(mapper.persist_selectable, (Table, Join))


def column_behind(mapper: Mapper[Any], column: Any) -> Column[Any] | None:
    """The column that a column of the SELECT shows, in the table that has the version."""
    version: Any = mapper.version_id_col
    for base in column.base_columns:
        if isinstance(base, Column) and version is not None and base.table is version.table:
            return base
    return None


def table_of_version(mapper: Mapper[Any]) -> Table:
    """The table that has the version of a class that is mapped to a SELECT.

    Raises:
        ConfigurationError: ``version_id_col`` is the column of the SELECT, which SQLAlchemy neither
            compares nor moves when it writes the table.
    """
    version: Any = mapper.version_id_col
    if not isinstance(version.table, Table):
        raise ConfigurationError(
            f"{mapper.class_.__name__} is mapped to a SELECT, and its version_id_col is"
            f" {version.key!r} of the SELECT: SQLAlchemy checks no version when it writes the table"
            " behind it. Name the column of the table, version_id_col=table.c"
            f".{version.key}. Nothing was written."
        )
    return version.table


def rows_of(mapper: Mapper[Any]) -> tuple[list[Any], FromClause]:
    """The columns of the primary key, and where the stored rows are."""
    keys = list(mapper.primary_key)
    if not maps_a_select(mapper):
        return keys, mapper.persist_selectable
    version: Any = mapper.version_id_col
    return [column_behind(mapper, key) for key in keys], version.table


def same(column: Column[Any], a: Any, b: Any) -> bool:
    """Are two values of a column the same value? NaN, which equals nothing, is itself here."""
    if isinstance(a, float) and isinstance(b, float) and a != a and b != b:
        return True
    return bool(column.type.compare_values(a, b) is True)


def token_attribute(mapper: Mapper[Any]) -> str | None:
    """The attribute that holds the version of ``mapper``'s rows, if they have one."""
    if mapper.version_id_col is None:
        return None
    return mapper.get_property_by_column(mapper.version_id_col).key


def ignored_columns(mapper: Mapper[Any]) -> frozenset[Column[Any]]:
    """Columns of the whole hierarchy that neither move the version nor conflict."""
    return frozenset(
        column
        for member in mapper.base_mapper.self_and_descendants
        for name in getattr(member.class_, "__version_ignore__", ())
        if name in member.column_attrs
        for column in member.column_attrs[name].columns
        if isinstance(column, Column)
    )
