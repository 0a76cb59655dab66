"""A row whose version is NULL cannot be checked: it is refused, and left as it is."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Table
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError

__all__ = ["never_seen", "no_version"]


def no_version(mapper: Mapper[Any], key: tuple[Any, ...]) -> ConfigurationError:
    """What is wrong with the row, and how to repair the table."""
    token = mapper.version_id_col
    assert isinstance(token, Column) and isinstance(token.table, Table)
    table, column = token.table.fullname, token.name
    return ConfigurationError(
        f"{mapper.class_.__name__} {key!r} has no version: {table}.{column} is NULL,"
        f" probably because the row is older than the column. {_repair(mapper, table, column)}"
        " Then declare the column NOT NULL."
    )


def never_seen(mapper: Mapper[Any], key: tuple[Any, ...]) -> ConfigurationError:
    """An object that stands for a row which nobody has read."""
    name = mapper.class_.__name__
    return ConfigurationError(
        f"{name} {key!r} cannot be written: it was changed without having been read since it came"
        " to the session without a version, or since its INSERT or an UPDATE statement was rolled"
        " back, so nobody knows which changes of others its author has seen. Read it first"
        " (session.get(),"
        " session.refresh()), or say which version was seen:"
        " sqlalchemy.orm.attributes.set_committed_value(obj, version attribute, value)."
    )


def _repair(mapper: Mapper[Any], table: str, column: str) -> str:
    generator: Any = mapper.version_id_generator
    first = generator(None) if callable(generator) else None
    if type(first) is int:
        return (
            "Give every row a version, for example"
            f" UPDATE {table} SET {column} = {first} WHERE {column} IS NULL."
        )
    return f"Give every row of {table} whose {column} is NULL a version of its own."
