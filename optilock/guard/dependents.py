"""What hangs on a row: joined tables, children, link rows.

Tables without the token are written only for rows whose token matched, and a row whose dependents
were already written cannot quietly be left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Mapper, RelationshipDirection
from sqlalchemy.orm.state import InstanceState

from optilock.guard.writes import compared_columns

if TYPE_CHECKING:
    from optilock.guard.flush import Flush

__all__ = ["changed_links", "has_dependents", "without_missed"]


def has_dependents(mapper: Mapper[Any]) -> bool:
    """Would deleting a row write other tables, or other rows, before it?"""
    return len(mapper.tables) > 1 or any(
        _writes_elsewhere(relationship) for relationship in mapper.relationships
    )


def _writes_elsewhere(relationship: Any) -> bool:
    if relationship.viewonly:
        return False
    if relationship.post_update or relationship.secondary is not None:
        return True
    return (
        relationship.direction is RelationshipDirection.ONETOMANY
        and relationship.passive_deletes != "all"
    )


def changed_links(state: InstanceState[Any]) -> list[str]:
    """Collections of the object that this flush has written: children and link rows."""
    return [
        relationship.key
        for relationship in state.mapper.relationships
        if _writes_elsewhere(relationship)
        and relationship.key in state.dict
        and state.attrs[relationship.key].history.has_changes()
    ]


def without_missed(flush: Flush, statement: Any, params: list[Any]) -> list[Any]:
    """The rows of a joined table whose base row was found as it was read."""
    compared = compared_columns(statement)
    if not compared:
        return params
    states = [*(missed.state for missed in flush.misses), *flush.skipped]
    missed = {
        tuple(_key_in(state, column) for column in compared)
        for state in states
        if statement.table in state.mapper.tables
    }
    return [row for row in params if tuple(row[name] for name in compared.values()) not in missed]


def _key_in(state: InstanceState[Any], column: Any) -> Any:
    name = state.mapper.get_property_by_column(column).key
    return state.committed_state.get(name, state.dict.get(name))
