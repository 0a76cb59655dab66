"""Which row is meant: keys in the order of the mapper's primary key, and places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, tuple_
from sqlalchemy.orm import InstanceState, Mapper

from optilock.mapped.facts import facts

__all__ = ["Identity", "Place", "State", "identity_of", "key_in", "place_of"]

#: What SQLAlchemy knows of an object.
State = InstanceState[Any]
Identity = tuple[Any, ...]
#: A row, whatever class of the hierarchy it was read as.
Place = tuple[Mapper[Any], Identity]


def key_in(
    columns: Sequence[ColumnElement[Any]], keys: Sequence[Identity] | Select[Any]
) -> ColumnElement[bool]:
    """``key IN (…)``, of one column or of several."""
    if len(columns) > 1:
        return tuple_(*columns).in_(keys)
    return columns[0].in_(keys if isinstance(keys, Select) else [key for (key,) in keys])


def identity_of(state: State) -> Identity:
    """The primary key of a stored object."""
    assert state.key is not None
    return tuple(state.key[1])


def place_of(state: State) -> Place:
    """The row of a stored object."""
    return facts(state.mapper).root, identity_of(state)
