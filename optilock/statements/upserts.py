"""``INSERT … ON CONFLICT DO UPDATE``: it has to move the version of the row that it changes.

SQLAlchemy does not apply ``onupdate`` there, so the version has to be among the values that the
upsert sets. A watched session refuses one in which it is not. ``excluded.version`` does not move
it: that is the first version, which a new row would have had, unless the statement gives another.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Alias, Column, Insert, Integer
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError
from optilock.mapped import facts
from optilock.mapping.tables import moved_by_flushes, versioned_tables
from optilock.statements.by_key import refuse_first_versions
from optilock.tokens.timestamp import NextServerTime
from optilock.undocumented import given_by, prefixes_of, subject_of, upsert_of

__all__ = ["changes_stored_rows", "leaves_version", "refuse_insert", "replaces"]

_REPLACES = re.compile(r"\bREPLACE\b", re.IGNORECASE)


def leaves_version(statement: Insert, version: Column[Any], given: Collection[str] = ()) -> bool:
    """Does the upsert change stored rows and leave them in the version that others have read?

    ``given`` names what the parameters say of new rows.
    """
    values = _set_by_upsert(statement)
    names = {version.key, version.name}
    named = [value for name, value in values.items() if name in names]
    if not named:
        return bool(values)
    return (
        _is_of_new_row(named[0], version)
        and _repeats(version)
        and names.isdisjoint({*given, *given_by(statement)})
    )


def replaces(statement: Insert) -> bool:
    """Does it delete a stored row and make it again (``INSERT OR REPLACE``)?"""
    return any(map(_REPLACES.search, prefixes_of(statement)))


def changes_stored_rows(statement: Insert) -> bool:
    """May it change a row that is there already, or make it again?"""
    return bool(_set_by_upsert(statement)) or replaces(statement)


def _set_by_upsert(statement: Insert) -> dict[str, Any]:
    """The columns that the statement sets where the row is there, by name; often none."""
    clause = upsert_of(statement)
    values = getattr(clause, "update_values_to_set", None) or getattr(clause, "update", None) or ()
    pairs = values.items() if isinstance(values, Mapping) else values
    return {str(getattr(name, "key", name)): value for name, value in pairs}


def _is_of_new_row(value: Any, version: Column[Any]) -> bool:
    """Is it ``excluded.version``, as PostgreSQL and SQLite say; MariaDB: ``inserted``?"""
    table = getattr(value, "table", None)
    if getattr(value, "name", None) == "values":  # VALUES(version)
        return any(version.shares_lineage(one) for one in value.clauses if isinstance(one, Column))
    return (
        isinstance(table, Alias)
        and table.name in ("excluded", "inserted")
        and bool(version.shares_lineage(value))
    )


def _repeats(version: Column[Any]) -> bool:
    """Do two new rows get one version by the column's default, or by none?"""
    default: Any = version.default
    return default is None or not default.is_callable or isinstance(version.type, Integer)


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
        version = facts(mapper).version
        if version is not None and params:
            refuse_first_versions(mapper, params if isinstance(params, list) else [params])
    if version is None:
        return
    if replaces(statement):
        raise ConfigurationError(
            f"INSERT OR REPLACE deletes a row of {statement.table.description} and makes it again"
            " with its first version: whoever has read it would overwrite it unseen. Use ON"
            " CONFLICT DO UPDATE and set the version in it. Nothing was sent."
        )
    rows = params if isinstance(params, list) else [params or {}]
    given = {name for row in rows for name in row}
    if isinstance(mapper, Mapper):
        given = set()  # SQLAlchemy stores the first version, whatever these rows say
    if not leaves_version(statement, version, given):
        return
    if not isinstance(mapper, Mapper):
        if version.onupdate is None and moved_by_flushes(version) is None:
            return  # the database moves it, or the application
        raise _left(statement.table.description, version, str(version))
    if facts(mapper).by_application or facts(mapper).by_itself:
        return
    cls, key = mapper.class_.__name__, facts(mapper).token
    raise _left(cls, version, f"{cls}.{key}", by_values=facts(mapper).by_values)


def _left(
    what: str, version: Column[Any], now: str, *, by_values: bool = False
) -> ConfigurationError:
    onupdate: Any = version.onupdate
    following = f"{now} + 1" if isinstance(version.type, Integer) else "the next random value"
    if onupdate is not None and isinstance(onupdate.arg, NextServerTime):
        following = f"optilock.tokens.timestamp.NextServerTime({now})"
    if by_values:
        following = "the one that its token makes from the new values"
    return ConfigurationError(
        f"The upsert of {what} changes a stored row and leaves its version: whoever has read the"
        f" row would overwrite it unseen. Set {version.name!r} in it to {following} (and not to"
        " that of the new row, which is the first one). Nothing was sent."
    )
