"""What hangs on a row: joined tables, children, link rows.

Tables without the token are written only for rows whose token matched, and a row whose dependents
were already written cannot quietly be left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Table
from sqlalchemy.orm import Mapper, RelationshipDirection
from sqlalchemy.orm.state import InstanceState

from optilock.conflicts import Values, columns_of
from optilock.guard.shapes import compared_columns

if TYPE_CHECKING:
    from optilock.guard.flush import Flush
    from optilock.guard.missed import Missed

__all__ = [
    "changed_links",
    "has_dependents",
    "kept_by_a_deleted_parent",
    "refers_to_one_of",
    "without_missed",
]


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
    """Without what belongs to a row that missed: joined tables, the links of one that is gone."""
    compared = compared_columns(statement)
    if not compared:
        return params
    states = [*(missed.state for missed in flush.misses), *flush.skipped]
    missed = {
        tuple(_key_in(state, column) for column in compared)
        for state in states
        if statement.table in state.mapper.tables
    }
    links = [link for state in flush.skipped for link in _links(state, statement.table, compared)]
    return [
        row
        for row in params
        if tuple(row[name] for name in compared.values()) not in missed
        and not any(all(row[name] == value for name, value in link.items()) for link in links)
    ]


def _links(
    state: InstanceState[Any], table: Any, compared: dict[Column[Any], str]
) -> Iterator[dict[str, Any]]:
    """Parameter -> value by which a link table refers to the object."""
    if not any(relationship.secondary is table for relationship in state.mapper.relationships):
        return
    for constraint in table.foreign_key_constraints:
        if constraint.referred_table in state.mapper.tables:
            yield {
                compared[key.parent]: _key_in(state, key.column)
                for key in constraint.elements
                if key.parent in compared
            }


def kept_by_a_deleted_parent(flush: Flush, missed: Missed) -> bool:
    """Is the row, which is to stay, a child of one that this flush deletes?"""
    assert flush.uow is not None and missed.stored is not None
    doomed = [state for state, (deleting, _) in flush.uow.states.items() if deleting]
    return refers_to_one_of(doomed, missed.state, missed.stored)


def refers_to_one_of(
    doomed: Iterable[InstanceState[Any]], state: InstanceState[Any], stored: Values
) -> bool:
    """Has the row of ``state``, as it is stored, a foreign key to the row of one of ``doomed``?"""
    names = {column: name for name, column in columns_of(state.mapper).items()}
    return any(
        constraint.referred_table in other.mapper.tables
        and all(
            stored.get(names.get(key.parent, "")) == _key_in(other, key.column)
            for key in constraint.elements
        )
        for table in state.mapper.tables
        if isinstance(table, Table)
        for constraint in table.foreign_key_constraints
        for other in doomed
        if other is not state
    )


def _key_in(state: InstanceState[Any], column: Any) -> Any:
    name = state.mapper.get_property_by_column(column).key
    return state.committed_state.get(name, state.dict.get(name))
