"""Refuses a flush with objects of two classes over one table: :mod:`optilock.mapping.one_class`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.orm.state import InstanceState

from optilock.mapping.facts import facts
from optilock.mapping.one_class import is_shared, two_classes
from optilock.rows.seen import version_seen
from optilock.session.watched import Watched

__all__ = ["refuse_two_classes"]


def refuse_two_classes(session: Session, known: Watched) -> None:
    """Refuse to write one table through two classes.

    Raises:
        ConfigurationError: this flush would, or a row was written through the other class before
            and this object is as old as it was then. Nothing was sent.
    """
    first: dict[Table, Mapper[Any]] = {}
    for obj in (*session.new, *session.dirty, *session.deleted):
        state = instance_state(obj)
        mapper = state.mapper
        if is_shared(mapper):
            other = _written_as(state, known) or first.setdefault(facts(mapper).table, mapper)
            if other.base_mapper is not mapper.base_mapper:
                raise two_classes(other, mapper)


def _written_as(state: InstanceState[Any], known: Watched) -> Mapper[Any] | None:
    """The class through which the transaction has moved the row on from the object's version."""
    token = facts(state.mapper).token
    if state.key is None or not token:
        return None
    place = facts(state.mapper).table, tuple(state.key[1]), version_seen(state, token)
    for shape, params in known.sent:
        if place == (shape.table, shape.key_of(params), params.get(shape.token_parameter)):
            return shape.mapper
    return None
