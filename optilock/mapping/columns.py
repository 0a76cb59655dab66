"""The columns behind an object's attributes, and when two of their values are the same."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column
from sqlalchemy.orm import Mapper

__all__ = ["columns_of", "same"]


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
