"""What UPDATE, DELETE and INSERT name and were given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

from sqlalchemy import Connection, Delete, Insert, Select, StatementLambdaElement, Update
from sqlalchemy.exc import DBAPIError, StatementError
from sqlalchemy.util import LRUCache

Change = Update | Delete | Insert


def is_server_side(context: Any) -> bool:
    """Are the rows of the statement fetched a few at a time, by a cursor of the server?"""
    return bool(context._is_server_side)


def subject_of(statement: Change | Select[Any]) -> Any:
    """The class, or the alias of one, that the statement names; ``None`` for a table."""
    return statement._propagate_attrs.get("plugin_subject")


def is_of_the_orm(statement: Any) -> bool:
    """Does the statement name a class?"""
    known = getattr(statement, "_propagate_attrs", None) or {}
    return known.get("compile_state_plugin") == "orm"


#: By what SQLAlchemy knows a statement again (``key``), without its values; ``None``: it does not.
#: The statement keeps it for its execution. Asked for every query, so no call of Python.
cache_key_of: Callable[[Any], Any] = methodcaller("_generate_cache_key")


def as_told(
    error: Exception, connection: Connection, statement: Change, params: Mapping[str, Any]
) -> Exception:
    """The error as SQLAlchemy tells one that comes before it has sent the statement."""
    if isinstance(error, StatementError):
        return error
    compiled = statement.compile(dialect=connection.dialect, column_keys=sorted(params))
    told: Any = DBAPIError.instance(
        str(compiled),
        [dict(params)],
        error,
        connection.dialect.loaded_dbapi.Error,
        hide_parameters=connection.engine.hide_parameters,
        dialect=connection.dialect,
        ismulti=False,
    )
    return told if isinstance(told, Exception) else error


def values_of(statement: Any) -> Mapping[Any, Any]:
    """What ``values()`` has given."""
    return getattr(statement, "_values", None) or {}


def given_by(statement: Insert) -> set[str]:
    """The names of the columns that ``values()`` or ``from_select()`` has given new rows."""
    rows = [values_of(statement), *(row for some in statement._multi_values for row in some)]
    names = [name for row in rows for name in row] + list(statement._select_names or ())
    return {str(getattr(name, "key", name)) for name in names}


def names_set_by(statement: Update) -> list[Any]:
    """What ``values()`` and ``ordered_values()`` have named: columns, attributes or texts."""
    ordered = getattr(statement, "_ordered_values", None) or ()  # SQLAlchemy 2.0
    return [*values_of(statement), *(name for name, _ in ordered)]


def is_ordered(statement: Update) -> bool:
    """Does it come from ``ordered_values()``, so that nothing can be added to its values?"""
    return bool(
        getattr(statement, "_ordered_values", None)  # SQLAlchemy 2.0
        or getattr(statement, "_maintain_values_ordering", False)
    )


def criteria_of(statement: Update | Delete) -> tuple[Any, ...]:
    """The parts of the WHERE."""
    return statement._where_criteria


def loader_options_of(statement: Update | Delete) -> tuple[Any, ...]:
    """What ``options()`` has added, ``with_loader_criteria()`` for instance."""
    return statement._with_options


def prefixes_of(statement: Update | Delete | Insert) -> list[str]:
    """What ``prefix_with()`` has put after the verb."""
    return [str(text) for text, _ in statement._prefixes]


def returns_values(statement: Update | Delete) -> bool:
    """Does it ask for values of the rows, by ``returning()`` or ``return_defaults()``?"""
    return bool(statement._returning or statement._return_defaults)


#: In the ``compiled_cache`` of what SQLAlchemy sends for its mappers, by a flush or in bulk; others
#: give ``None``, or a dictionary. Where it has another type, the statement itself tells
#: (:func:`optilock.writes.shapes.is_of_mappers`).
MappersCache = LRUCache


def upsert_of(statement: Insert) -> Any:
    """The ON CONFLICT or ON DUPLICATE KEY of an INSERT, if it has one."""
    return statement._post_values_clause


def resolved(statement: StatementLambdaElement) -> Any:
    """The statement that ``lambda_stmt()`` makes."""
    return statement._resolved
