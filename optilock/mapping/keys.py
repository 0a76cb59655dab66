"""Which row is meant: keys in the order of the mapper's primary key, and places."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Mapper
from sqlalchemy.orm.state import InstanceState

__all__ = ["Identity", "Place", "key_names", "place_of"]

Identity = tuple[Any, ...]
#: A row, whatever class of the hierarchy it was read as.
Place = tuple[Mapper[Any], Identity]


def key_names(mapper: Mapper[Any]) -> list[str]:
    """The attributes of the primary key, in its order."""
    return [mapper.get_property_by_column(column).key for column in mapper.primary_key]


def place_of(state: InstanceState[Any]) -> Place:
    """The row of a stored object."""
    assert state.key is not None
    return state.mapper.base_mapper, tuple(state.key[1])
