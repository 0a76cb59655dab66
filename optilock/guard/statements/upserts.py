"""``INSERT … ON CONFLICT DO UPDATE``: it has to move the version of the row that it changes.

SQLAlchemy does not apply ``onupdate`` there, so the version has to be among the values that the
upsert sets. A watched session refuses one in which it is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Insert
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError
from optilock.guard.natives import moved_by_flushes
from optilock.guard.statements.by_key import refuse_first_versions
from optilock.mapping.makers import made_by_application, moves_by_itself
from optilock.undocumented import prefixes_of, subject_of, upsert_of
from optilock.versioned import token_attribute, versioned_tables

__all__ = ["refuse_insert", "set_by_upsert"]

_REPLACES = re.compile(r"\bREPLACE\b", re.IGNORECASE)


def set_by_upsert(statement: Insert) -> frozenset[str]:
    """The names of the columns that the statement sets where the row is there; often none."""
    clause = upsert_of(statement)
    values = getattr(clause, "update_values_to_set", None) or getattr(clause, "update", None) or ()
    names = values if isinstance(values, Mapping) else (name for name, _ in values)
    return frozenset(str(getattr(name, "key", name)) for name in names)


def refuse_insert(statement: Insert, params: Any) -> None:
    """Refuse an INSERT that would replace a versioned row unseen, or lose a version it gives.

    Raises:
        ConfigurationError: it changes stored rows and does not move the version, or it gives new
            rows a version that SQLAlchemy would not store.
    """
    mapper = getattr(subject_of(statement), "mapper", None)
    table: Any = statement.table
    version: Any = versioned_tables().get(table)
    if isinstance(mapper, Mapper):
        version = mapper.version_id_col
        if version is not None and params:
            refuse_first_versions(mapper, params if isinstance(params, list) else [params])
    if version is None:
        return
    if any(map(_REPLACES.search, prefixes_of(statement))):
        raise ConfigurationError(
            f"INSERT OR REPLACE deletes a row of {statement.table.description} and makes it again"
            " with its first version: whoever has read it would overwrite it unseen. Use ON"
            " CONFLICT DO UPDATE and set the version in it. Nothing was sent."
        )
    names = set_by_upsert(statement)
    if not names or not names.isdisjoint({version.key, version.name}):
        return
    if not isinstance(mapper, Mapper):
        if version.onupdate is None and moved_by_flushes(version) is None:
            return  # the database moves it, or the application
        raise _left(statement.table.description, version.name, f"{version} + 1")
    if made_by_application(mapper) or moves_by_itself(mapper):
        return
    cls, key = mapper.class_.__name__, token_attribute(mapper)
    raise _left(cls, version.name, f"{cls}.{key} + 1")


def _left(what: str, version: str, following: str) -> ConfigurationError:
    return ConfigurationError(
        f"The upsert of {what} changes a stored row and leaves its version: whoever has read the"
        f" row would overwrite it unseen. Add {version!r} to what it sets: {following}, or the next"
        " random value. Nothing was sent."
    )
