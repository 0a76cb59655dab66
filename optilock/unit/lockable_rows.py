"""The rows of a query that can be locked.

::

    rows_to_lock(select(Account).where(...))      # ((<Mapper Account>, accounts),)
    rows_to_lock(select(func.count(Account.id)))  # (): no row of the result is a row of the table

Rows that become objects are locked, and only where each row of the result is one row of the table.
Databases refuse FOR UPDATE with DISTINCT, GROUP BY, UNION, aggregates and windows, and for the side
of an outer join that may be missing. A row of several tables is locked in the one with its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Alias, Column, FromClause, Join, Select, Table, inspect
from sqlalchemy.orm import Bundle, Mapper, QueryableAttribute

from optilock.mapped import facts
from optilock.undocumented.statements import joins_of, may_lock

#: A class, and where its rows are locked.
Lockable = tuple[Mapper[Any], FromClause]


def rows_to_lock(statement: Select[Any]) -> tuple[Lockable, ...]:
    """Return the rows of the query that can be locked, or nothing if one of them cannot be."""
    if not may_lock(statement):
        return ()
    found = _lockable_entities(statement)
    return found if found and _has_only_inner_joins(statement, len(found)) else ()


def _lockable_entities(statement: Select[Any]) -> tuple[Lockable, ...]:
    found: list[Lockable] = []
    for described in statement.column_descriptions:
        what = described["expr"]
        if what is described.get("entity") and what is not None:
            one = _of_entity(what)
            if one is None:
                return ()
            found.append(one)
        elif not _is_value(what):
            return ()
    return tuple(found)


def _has_only_inner_joins(statement: Select[Any], entities: int) -> bool:
    """Return whether every row of the result has a row of each entity."""
    joins = joins_of(statement)
    if joins.full or (joins.outer and (joins.froms or joins.placed or entities != 1)):
        return False
    return all(map(_is_inner, joins.froms))


def _of_entity(entity: Any) -> Lockable | None:
    subject = inspect(entity)
    mapper: Mapper[Any] = subject.mapper
    if subject is mapper:
        table = facts(mapper).locked_in
        return None if table is None else (mapper, table)
    source = subject.selectable
    is_table = isinstance(source, Alias) and isinstance(source.element, Table)
    return (mapper, source) if is_table else None


def _is_value(what: Any) -> bool:
    """Return whether the expression is a value of one row."""
    if isinstance(what, Bundle):
        return all(_is_value(one) for one in what.exprs)
    if isinstance(what, QueryableAttribute):
        columns: Sequence[Any] = getattr(what.property, "columns", ())
        return len(columns) > 0 and isinstance(columns[0], Column)
    return isinstance(what, Column)


def _is_inner(source: Any) -> bool:
    """Return whether each row of the source has a row of all its tables."""
    if isinstance(source, Join):
        inner = not (source.isouter or source.full)
        return inner and _is_inner(source.left) and _is_inner(source.right)
    return isinstance(source, (Table, Alias))
