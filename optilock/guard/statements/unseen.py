"""Statements of a watched session whose rows nobody looks at: SQL text, and upserts.

::

    session.execute(text("UPDATE pages SET n = 5, version = version + 1 WHERE id = 1"))
    page = session.get(Page, 1)      # version 2, which the rollback undoes
    session.rollback()               # and which the next writer will make again

They are noted as an UPDATE of the class is (:mod:`optilock.guard.statements.own`): what was read
after them must be read again after a rollback. Of a text it is enough that it names a versioned
table behind UPDATE, MERGE or REPLACE, or in an upsert; one that calls a procedure may change any
row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import Insert, TextClause
from sqlalchemy.orm import Mapper

from optilock.conditions.keys import root_of
from optilock.guard.statements.sql_text import calls_code, tables_changed
from optilock.mapping.compared import comparing
from optilock.mapping.tables import joined_tables, owner_of, versioned_tables
from optilock.undocumented import upsert_of

__all__ = ["classes_changed"]


def classes_changed(statement: Any) -> Collection[Mapper[Any]]:
    """The classes of whose stored rows the statement may change some, unseen; mostly none."""
    if isinstance(statement, TextClause):
        return _classes_of(_changed_by(statement.text))
    if isinstance(statement, Insert) and upsert_of(statement) is not None:
        return _classes_of([statement.table])
    return ()


def _changed_by(sql: str) -> Iterable[Any]:
    tables = {*versioned_tables(), *joined_tables()}
    if calls_code(sql):
        return tables
    names = tables_changed(sql)
    return [table for table in tables if table.name.lower() in names] if names else ()


def _classes_of(tables: Iterable[Any]) -> set[Mapper[Any]]:
    """The roots of the classes whose rows are in these tables."""
    found = (owner_of(table) or joined_tables().get(table) or comparing(table) for table in tables)
    return {root_of(mapper) for mapper in found if mapper is not None}
