"""Which row is meant: keys in the order of the mapper's primary key, and places."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Mapper
from sqlalchemy.orm.state import InstanceState

__all__ = ["Identity", "Place", "key_names", "place_of", "root_of"]

Identity = tuple[Any, ...]
#: A row, whatever class of the hierarchy it was read as.
Place = tuple[Mapper[Any], Identity]


def key_names(mapper: Mapper[Any]) -> list[str]:
    """The attributes of the primary key, in its order."""
    return [mapper.get_property_by_column(column).key for column in mapper.primary_key]


def root_of(mapper: Mapper[Any]) -> Mapper[Any]:
    """The mapper that stands for all classes a row of this one may be read as.

    That is the root of its hierarchy. Classes of concrete tables have rows of their own there, and
    a row of one has nothing to do with that of another which has the same key.
    """
    base = mapper.base_mapper
    if not mapper.inherits:
        return base
    return next((one for one in mapper.iterate_to_root() if one.concrete), base)


def place_of(state: InstanceState[Any]) -> Place:
    """The row of a stored object."""
    assert state.key is not None
    return root_of(state.mapper), tuple(state.key[1])
