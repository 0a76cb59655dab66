"""Statements of a watched session whose rows nobody looks at: SQL text, and upserts.

::

    session.execute(text("UPDATE pages SET n = 5, version = version + 1 WHERE id = 1"))
    page = session.get(Page, 1)      # version 2, which the rollback undoes
    session.rollback()               # and which the next writer will make again

They are noted as an UPDATE of the class is (:mod:`optilock.guard.statements.own`): what was read
after them must be read again after a rollback. Of a text it is enough that it names a versioned
table behind UPDATE, MERGE or REPLACE, or in an upsert; one that calls a procedure may change any
row.

So are rows that the session inserts by a statement, and then reads: after the rollback somebody
else may insert them, in the same first version. Objects that it had before are not theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sqlalchemy import Insert, TextClause
from sqlalchemy.orm import Mapper

from optilock.guard.statements.sql_text import calls_code, tables_added_to, tables_changed
from optilock.mapping.compared import comparing
from optilock.mapping.facts import facts
from optilock.mapping.tables import joined_tables, owner_of, versioned_tables
from optilock.undocumented import upsert_of

__all__ = ["Unseen", "unseen_of"]


class Unseen(NamedTuple):
    """Classes by what a statement does to their rows; mostly none."""

    #: Stored rows may be changed.
    changed: Collection[Mapper[Any]] = ()
    #: New rows come.
    added: Collection[Mapper[Any]] = ()


_NOTHING = Unseen()


def unseen_of(statement: Any) -> Unseen:
    """What the statement does to rows of versioned classes that nobody looks at."""
    if isinstance(statement, TextClause):
        added = _classes_of(_named(tables_added_to(statement.text)))
        return Unseen(_classes_of(_changed_by(statement.text)), added)
    if isinstance(statement, Insert):
        classes = _classes_of([statement.table])
        return Unseen(classes) if upsert_of(statement) is not None else Unseen(added=classes)
    return _NOTHING


def _changed_by(sql: str) -> Iterable[Any]:
    if calls_code(sql):
        return {*versioned_tables(), *joined_tables()}
    return _named(tables_changed(sql))


def _named(names: Collection[str]) -> Iterable[Any]:
    tables = (*versioned_tables(), *joined_tables()) if names else ()
    return [table for table in tables if table.name.lower() in names]


def _classes_of(tables: Iterable[Any]) -> set[Mapper[Any]]:
    """The roots of the classes whose rows are in these tables."""
    found = (owner_of(table) or joined_tables().get(table) or comparing(table) for table in tables)
    return {facts(mapper).root for mapper in found if mapper is not None}
