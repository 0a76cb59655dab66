"""Rows by their keys, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, or_, tuple_

from optilock.mapped import Identity
from optilock.undocumented.connections import has_bind_expression

__all__ = ["key_in", "key_is_one_of"]


def key_in(
    columns: Sequence[ColumnElement[Any]], keys: Sequence[Identity] | Select[Any]
) -> ColumnElement[bool]:
    """``key IN (…)``, of one column or of several."""
    if not isinstance(keys, Select) and any(has_bind_expression(c.type) for c in columns):
        return key_is_one_of(columns, keys)
    if len(columns) > 1:
        return tuple_(*columns).in_(keys)
    return columns[0].in_(keys if isinstance(keys, Select) else [key for (key,) in keys])


def key_is_one_of(
    columns: Sequence[ColumnElement[Any]], keys: Sequence[Identity]
) -> ColumnElement[bool]:
    """``(a = … AND b = …) OR (…)``: each part is compared as in a statement for one row.

    In a list it is not: the SQL may be missing, or lack its parameters, that a type puts around a
    value (https://github.com/sqlalchemy/sqlalchemy/issues/8992), and in rows of values MariaDB
    compares text in another character set.
    """
    pairs = (zip(columns, key, strict=True) for key in keys)
    return or_(*(and_(*(column == value for column, value in pair)) for pair in pairs))
