"""Which tables carry a version, and which hold a part of rows whose version is elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Column, Table
from sqlalchemy.orm import Mapper

__all__ = ["joined_tables", "know_tables", "moved_by_flushes", "owner_of", "versioned_tables"]

#: Table -> its version column, for every class of the mixin that has one.
_tables: WeakKeyDictionary[Table, Column[Any]] = WeakKeyDictionary()
#: Table -> the class whose rows these are.
_owners: WeakKeyDictionary[Table, Mapper[Any]] = WeakKeyDictionary()
#: Table -> a class whose rows it holds a part of, and whose version is in another table.
_joined: WeakKeyDictionary[Table, Mapper[Any]] = WeakKeyDictionary()
#: Version -> the name of its class, where it has no ``onupdate``.
_moved_by_flushes: WeakKeyDictionary[Column[Any], str] = WeakKeyDictionary()


def versioned_tables() -> Mapping[Table, Column[Any]]:
    """The tables that carry a version, each with the column."""
    return _tables


def joined_tables() -> Mapping[Table, Mapper[Any]]:
    """Tables of versioned classes that do not carry the version themselves (joined inheritance)."""
    return _joined


def owner_of(table: Any) -> Mapper[Any] | None:
    """The class to which the rows of a table that carries a version belong."""
    return _owners.get(table) if isinstance(table, Table) else None


def moved_by_flushes(version: Any) -> str | None:
    """The class whose version no statement moves: there is no ``onupdate``. Otherwise ``None``."""
    return _moved_by_flushes.get(version)


def know_tables(mapper: Mapper[Any], column: Column[Any]) -> None:
    """Note that ``column`` is the version of ``mapper``'s rows, in whatever tables they are."""
    if callable(mapper.version_id_generator) and column.onupdate is None:
        _moved_by_flushes[column] = mapper.class_.__name__
    if isinstance(column.table, Table):
        _tables[column.table] = column
        for one in mapper.iterate_to_root():
            if one.local_table is column.table:
                _owners[column.table] = one
        for other in mapper.tables:
            if isinstance(other, Table) and other is not column.table:
                _joined[other] = mapper
