"""``INSERT … ON CONFLICT DO UPDATE``: it has to move the version of the row that it changes.

SQLAlchemy does not apply ``onupdate`` there, so the version has to be among the values that the
upsert sets. A watched session refuses one in which it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Insert
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError
from optilock.version_makers import made_by_application, moves_by_itself
from optilock.versioned import token_attribute

__all__ = ["refuse_upsert", "set_by_upsert"]


def set_by_upsert(statement: Insert) -> frozenset[str]:
    """The names of the columns that the statement sets where the row is there; often none."""
    clause = getattr(statement, "_post_values_clause", None)
    values = getattr(clause, "update_values_to_set", None) or getattr(clause, "update", None) or ()
    names = values if isinstance(values, Mapping) else (name for name, _ in values)
    return frozenset(str(getattr(name, "key", name)) for name in names)


def refuse_upsert(statement: Insert) -> None:
    """Refuse an upsert of a versioned class that would leave the version as it is.

    Raises:
        ConfigurationError: it changes stored rows and does not name the version.
    """
    mapper = getattr(statement._propagate_attrs.get("plugin_subject"), "mapper", None)
    if not isinstance(mapper, Mapper) or mapper.version_id_col is None:
        return
    names = set_by_upsert(statement)
    version: Any = mapper.version_id_col
    if not names or not names.isdisjoint({version.key, version.name}):
        return
    if made_by_application(mapper) or moves_by_itself(mapper):
        return
    cls, key = mapper.class_.__name__, token_attribute(mapper)
    raise ConfigurationError(
        f"The upsert of {cls} changes a stored row and leaves its version: whoever has read the row"
        f" would overwrite it unseen. Add {version.name!r} to what it sets: {cls}.{key} + 1, or the"
        " next random value. Nothing was sent."
    )
