"""The columns behind an object's attributes: the version, the ignored ones, and equal values."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column
from sqlalchemy.orm import Mapper

__all__ = ["GIVE_ONE", "columns_of", "ignored_columns", "same", "token_attribute"]

#: What to do about a class whose rows have no version; it may be of the mixin, and compare values.
GIVE_ONE = "give the class one (optilock.Versioned, with a token that has a column: Counter())"


def columns_of(mapper: Mapper[Any]) -> dict[str, Column[Any]]:
    """Attribute -> column of the mapper's own tables (the nearest, where tables are joined)."""
    return {
        attribute.key: attribute.columns[0]
        for attribute in mapper.column_attrs
        if isinstance(attribute.columns[0], Column) and attribute.columns[0].table in mapper.tables
    }


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
