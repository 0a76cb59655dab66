"""UPDATE statements that leave the version: of ignored columns alone, or inside ``no_bump``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Delete, Update
from sqlalchemy.orm import Mapper, Session

from optilock.mapping.facts import facts
from optilock.mapping.tables import owner_of
from optilock.session.watched import watched
from optilock.undocumented import is_ordered, names_set_by

__all__ = ["stands_still", "unmoved", "unmoved_of_table"]


def stands_still(session: Session, mapper: Mapper[Any]) -> bool:
    """Is a ``no_bump`` block open for all rows, or for this class?"""
    return any(
        issubclass(mapper.class_, still.classes) if still.classes else not still.objects
        for still in watched(session).still
    )


def unmoved(mapper: Mapper[Any], statement: Update) -> Update:
    """The statement of the class, saying that the version stays."""
    token: Any = mapper.version_id_col
    if token.table is not mapper.local_table or token.onupdate is None or is_ordered(statement):
        return statement  # an ordered statement cannot be added to: there the version moves
    return statement.values({token: token})


def unmoved_of_table(session: Session, statement: Any, params: Any) -> Any:
    """An UPDATE of the table, saying that the version stays if it is to; others as they are."""
    table = statement.table
    mapper = None if isinstance(statement, Delete) else owner_of(table)
    token: Any = None if mapper is None else mapper.version_id_col
    if mapper is None or token.table is not table or token.onupdate is None:
        return statement
    names = _names(statement, params)
    ignored = {column.key for column in facts(mapper).ignored if column.table is table}
    stays = stands_still(session, mapper) or (bool(names) and names <= ignored)
    if not stays or token.key in names or is_ordered(statement):
        return statement
    return statement.values({token: token})


def _names(statement: Update, params: Any) -> set[str]:
    """The columns that it sets; other parameters are those of its WHERE."""
    given = {str(getattr(name, "key", name)) for name in names_set_by(statement)}
    rows = params if isinstance(params, list) else [params]
    columns: Any = statement.table.columns
    return given | {n for row in rows if isinstance(row, Mapping) for n in row if n in columns}
