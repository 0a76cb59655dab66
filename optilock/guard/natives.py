"""Classes that only have SQLAlchemy's own ``version_id_col``, once a session is watched.

What :class:`~optilock.Versioned` does for its own classes while they are mapped: the version is
read with its row, also where ``load_only()`` or ``defer()`` leave it out. SQLAlchemy would read it
inside the flush, when it already is the other writer's. A version that the mapping itself defers is
refused by the first flush that needs it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import event
from sqlalchemy.orm import Mapper, mapperlib

from optilock.errors import ConfigurationError
from optilock.version_attribute import load_always

__all__ = ["read_versions_with_rows", "refuse_deferred"]


def read_versions_with_rows() -> None:
    """From here on, rows of every class with a version come with it."""
    if event.contains(Mapper, "mapper_configured", _configured):
        return
    event.listen(Mapper, "mapper_configured", _configured)
    for registry in mapperlib._all_registries():
        for mapper in registry.mappers:
            if mapper.configured:
                _configured(mapper, mapper.class_)


def _configured(mapper: Mapper[Any], cls: type[Any]) -> None:
    if mapper.version_id_col is not None:
        load_always(mapper)


def refuse_deferred(mapper: Mapper[Any]) -> None:
    """Refuse a version that is not read with its row.

    Raises:
        ConfigurationError: the mapping defers it.
    """
    version: Any = mapper.version_id_col
    attribute: Any = mapper.get_property_by_column(version)
    if getattr(attribute, "deferred", False):
        raise ConfigurationError(
            f"{mapper.class_.__name__}.{attribute.key} is deferred: a version that is read later"
            " than its row is another writer's. Remove deferred=True. Nothing was written."
        )
