"""Of which rows of a query can a lock be asked for?

::

    rows_to_lock(select(Account).where(...))      # ((<Mapper Account>, accounts),)
    rows_to_lock(select(func.count(Account.id)))  # (): no row of the result is a row of the table

A lock is asked for the rows that become objects, and only where each row of the result stands for
one of them: databases refuse FOR UPDATE beside DISTINCT, GROUP BY, UNION, aggregates and windows,
and for the side of an outer join that may be missing. A row of several tables is locked in the one
that has its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Alias, Column, FromClause, Join, Select, Table, inspect
from sqlalchemy.orm import Bundle, Mapper, QueryableAttribute

from optilock.mapped import facts
from optilock.undocumented.queries import joins_of, may_lock

__all__ = ["Lockable", "rows_to_lock"]

#: A class, and where its rows are locked.
Lockable = tuple[Mapper[Any], FromClause]


def rows_to_lock(statement: Select[Any]) -> tuple[Lockable, ...]:
    """The rows of the query that can be locked; nothing if one cannot."""
    if not may_lock(statement):
        return ()
    joins = joins_of(statement)
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
    if joins.full or (joins.outer and (joins.froms or joins.placed or len(found) != 1)):
        return ()
    if any(not _is_inner(source) for source in joins.froms):
        return ()
    return tuple(found)


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
    """Is it a value of one row?"""
    if isinstance(what, Bundle):
        return all(_is_value(one) for one in what.exprs)
    if isinstance(what, QueryableAttribute):
        columns: Sequence[Any] = getattr(what.property, "columns", ())
        return len(columns) > 0 and isinstance(columns[0], Column)
    return isinstance(what, Column)


def _is_inner(source: Any) -> bool:
    """Is no side of it missing in any row?"""
    if isinstance(source, Join):
        inner = not (source.isouter or source.full)
        return inner and _is_inner(source.left) and _is_inner(source.right)
    return isinstance(source, (Table, Alias))
