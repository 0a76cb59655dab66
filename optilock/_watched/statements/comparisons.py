"""Whether the WHERE of a statement compares a column of its rows with a value.

::

    update(Page).where(Page.id == 7, Page.version == 3)            # it does
    update(Page).where(or_(Page.id == 7, Page.version == 3))       # rows in any version are written
    update(Page).where(Page.version >= 3)                          # as they are here

All rows that the statement writes must have the value. So these count: ``=`` and ``IN`` with
values, ``IS NULL``, also of a tuple; one of them in an AND, all of them in an OR (``unchanged(a,
b)``). A value is made of parameters, literals, and columns of other tables. Another column of the
same table is none, nor is the row's own version in a subquery or under an alias: they are as new as
the row.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from sqlalchemy import (
    BinaryExpression,
    Cast,
    ColumnClause,
    ColumnElement,
    False_,
    Null,
    SelectBase,
    Tuple,
    TypeCoerce,
)
from sqlalchemy.sql import operators, visitors
from sqlalchemy.sql.expression import BooleanClauseList, Grouping

from optilock._undocumented.statements import CollationClause

_NUMBER_OR_TEXT = re.compile(r"[-+\d.]+\Z|'[^']*'\Z")
_EQUAL = (operators.eq, operators.in_op, operators.is_not_distinct_from)


def compares_with_value(where: Any, column: ColumnElement[Any], tables: Collection[Any]) -> bool:
    """Return whether every row for which ``where`` is true has a given value in ``column``.

    ``tables`` are those of the rows that are written, or the alias that the statement names. A
    condition that no row fulfils counts.
    """
    if where is None:
        return False
    if isinstance(where, Grouping):
        return compares_with_value(where.element, column, tables)
    if isinstance(where, BooleanClauseList):
        combine = all if where.operator is operators.or_ else any
        return combine(compares_with_value(one, column, tables) for one in where.clauses)
    if isinstance(where, BinaryExpression):
        return _is_comparison(where, column, tables)
    return isinstance(where, False_) or isinstance(getattr(where, "element", None), False_)


def _is_comparison(
    one: BinaryExpression[Any], column: ColumnElement[Any], tables: Collection[Any]
) -> bool:
    left, right = _bare(one.left), _bare(one.right)
    if one.operator is operators.is_:
        return isinstance(right, Null) and _is_column(left, column, tables)
    if one.operator not in _EQUAL:
        return False
    if isinstance(left, Tuple):
        return any(_is_column(_bare(part), column, tables) for part in left.clauses) and (
            _is_value(right, column)
        )
    sides = [(left, right)] if one.operator is operators.in_op else [(left, right), (right, left)]
    return any(_is_column(own, column, tables) and _is_value(other, column) for own, other in sides)


def _bare(side: Any) -> Any:
    """Return the expression without brackets, casts and collations around it."""
    while True:
        if isinstance(side, (Grouping, TypeCoerce)):
            side = side.element if isinstance(side, Grouping) else side.clause
        elif isinstance(side, Cast):
            side = side.clause
        elif isinstance(side, BinaryExpression) and isinstance(side.right, CollationClause):
            side = side.left
        else:
            return side


def _is_column(side: Any, column: ColumnElement[Any], tables: Collection[Any]) -> bool:
    return (
        isinstance(side, ColumnClause)
        and column.shares_lineage(side)
        and any(side.table == one for one in tables)
    )


def _is_value(side: Any, column: ColumnElement[Any]) -> bool:
    """Return whether the expression is read from no row of the column's table."""
    (own,) = column.base_columns
    for part in visitors.iterate(side):
        if isinstance(part, SelectBase):
            return False
        if isinstance(part, ColumnClause):
            if any(base.table is own.table for base in part.base_columns):
                return False
            if part.table is None and not (part.is_literal and _NUMBER_OR_TEXT.match(part.name)):
                return False  # the name of a column, perhaps of the row's own
    return True
