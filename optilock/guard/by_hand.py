"""A listener's own UPDATE of a row that the running flush writes: the flush moves the version.

Moved once more by the column's ``onupdate``, the version would be one that the object does not
hold, and its next flush would conflict with ourselves. Rows of other objects move as by any
statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Update
from sqlalchemy.sql.elements import BinaryExpression, BindParameter, BooleanClauseList

from optilock.undocumented import is_ordered, values_of

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["of_own_row"]


def of_own_row(flush: Flush, statement: Update, params: Any) -> Update:
    """``statement``, leaving the version as it is where it names one row of ``flush`` by key."""
    if flush.uow is None or statement.whereclause is None:
        return statement
    for mapper in flush.uow.mappers:
        token = mapper.version_id_col
        if not isinstance(token, Column) or token.table is not statement.table:
            continue
        named = {getattr(name, "key", name) for name in values_of(statement)}
        if token.onupdate is None or token.key in named:
            return statement
        values = _key(statement, params if isinstance(params, dict) else {})
        identity = tuple(values.get(column) for column in mapper.primary_key)
        known = not is_ordered(statement) and flush.find(mapper, identity) is not None
        return statement.values({token: token}) if known else statement
    return statement


def _key(statement: Update, params: dict[str, Any]) -> dict[Any, Any]:
    where = statement.whereclause
    clauses = where.clauses if isinstance(where, BooleanClauseList) else [where]
    return {
        clause.left: params.get(clause.right.key, clause.right.value)
        for clause in clauses
        if isinstance(clause, BinaryExpression) and isinstance(clause.right, BindParameter)
    }
