"""Making an object equal to its stored row without another query."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column
from sqlalchemy.orm import RelationshipDirection
from sqlalchemy.orm.state import InstanceState

from optilock.mapping.facts import facts
from optilock.rows.sides import Values

__all__ = ["equal_to_stored", "stale_relationships"]


def equal_to_stored(state: InstanceState[Any], final: Values, uow: Any = None) -> None:
    """Give the object the stored values as its loaded ones; attributes never loaded stay so.

    ``refresh_flush`` tells mutable types and the application, as after a RETURNING.
    """
    names = facts(state.mapper).columns
    known = [
        name
        for name in names
        if name in final and (name in state.dict or name in state.committed_state)
    ]
    for name in known:
        state.dict[name] = final[name]
        state.committed_state.pop(name, None)
        state.expired_attributes.discard(name)
    for composite in state.mapper.composites:
        state.dict.pop(composite.key, None)
    if uow is not None:
        state.manager.dispatch.refresh_flush(state, uow, known)
    else:
        state.manager.dispatch.refresh(state, None, known)


def stale_relationships(state: InstanceState[Any], final: Values) -> list[str]:
    """Relationships of the object whose foreign key is now another one than the object held."""
    names = {column: name for name, column in facts(state.mapper).columns.items()}
    return [
        relationship.key
        for relationship in state.mapper.relationships
        if relationship.direction is RelationshipDirection.MANYTOONE
        and relationship.key in state.dict
        and any(_differs(state, final, names, column) for column in relationship.local_columns)
    ]


def _differs(
    state: InstanceState[Any], final: Values, names: dict[Column[Any], str], column: Any
) -> bool:
    name = names.get(column)
    return name is not None and name in final and state.dict.get(name) != final[name]
