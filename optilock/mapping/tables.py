"""Which tables carry a version, and which hold a part of rows whose version is elsewhere.

Two classes over one table would each hold a version of its own of the same row. SQLAlchemy writes
each with an UPDATE that expects the version it was read in, so the second one would meet the first
as another writer's change. Nothing tells which of the two classes an UPDATE belongs to, either: the
two have one table. So a flush with objects of both is refused
(:mod:`optilock.watched.guard.refusals`); in transactions of their own each is guarded like any
other. Classes of one hierarchy are one class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Column, Table
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError
from optilock.mapped import all_mappers, facts, there_are

T = TypeVar("T", Column[Any], Mapper[Any])


class _OfTables(Mapping[Table, T]):
    """Something of each table that knows its table itself: neither keeps the other here."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Table, ref[T]] = WeakKeyDictionary()

    def __getitem__(self, table: Table) -> T:
        found = self._known[table]()
        if found is None:
            raise KeyError(table)
        return found

    def __setitem__(self, table: Table, value: T) -> None:
        self._known[table] = ref(value)

    def __iter__(self) -> Iterator[Table]:
        return (table for table, value in self._known.items() if value() is not None)

    def __len__(self) -> int:
        return len(self._known)


#: Table -> its version column, for every class of the mixin that has one.
_tables: _OfTables[Column[Any]] = _OfTables()
#: Table -> the class whose rows these are.
_owners: _OfTables[Mapper[Any]] = _OfTables()
#: Table -> a class whose rows it holds a part of, and whose version is in another table.
_joined: _OfTables[Mapper[Any]] = _OfTables()
#: Version -> the name of its class, where it has no ``onupdate``.
_moved_by_flushes: WeakKeyDictionary[Column[Any], str] = WeakKeyDictionary()
#: Table -> the first class whose rows have their version, or their compared values, in it.
_first: _OfTables[Mapper[Any]] = _OfTables()
#: Tables of which there is a second one.
_shared: WeakSet[Table] = WeakSet()


#: An attribute of a table; Alembic would write ``info`` into a migration.
_CLASSES = "_optilock_classes"


class _Classes(set[type[Any]]):
    """The classes of a table with a version, which live as long as the table does.

    Or migrations, which are given the tables alone, would know nothing of the versions of classes
    that nobody holds. A pickled table is one without classes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _Classes, ()


def versioned_tables() -> Mapping[Table, Column[Any]]:
    """The tables that carry a version, each with the column."""
    return _tables


def joined_tables() -> Mapping[Table, Mapper[Any]]:
    """Tables of versioned classes that do not carry the version themselves (joined inheritance)."""
    return _joined


def classes_over(table: Any) -> list[Mapper[Any]]:
    """Those of them that have rows, or parts of rows, in the table, with a version or without."""
    return [mapper for mapper in all_mappers() if table in mapper.tables]


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
        column.table.__dict__.setdefault(_CLASSES, _Classes()).add(mapper.class_)
        _tables[column.table] = column
        for one in mapper.iterate_to_root():
            if one.local_table is column.table:
                _owners[column.table] = one
        for other in mapper.tables:
            if isinstance(other, Table) and other is not column.table:
                _joined[other] = mapper


def share_table(mapper: Mapper[Any]) -> None:
    """Note whose rows are in the table, and whether those of another hierarchy are there, too."""
    table = facts(mapper).table_if_any
    if table is None:
        return
    other = _first.get(table)
    if other is None or other is mapper.base_mapper or other not in other.registry.mappers:
        _first[table] = mapper.base_mapper
    else:
        _shared.add(table)
        there_are.shared = True


def is_shared(mapper: Mapper[Any]) -> bool:
    """Is there a class of another hierarchy over the table with the version?"""
    return facts(mapper).table_if_any in _shared


def share_one_table(one: Mapper[Any], other: Mapper[Any]) -> bool:
    """Are they of two hierarchies, and have their rows in one table?"""
    return (
        one.base_mapper is not other.base_mapper
        and facts(one).table_if_any is facts(other).table_if_any
    )


def two_classes(one: Mapper[Any], other: Mapper[Any]) -> ConfigurationError:
    """Both take part in one flush."""
    table = facts(one).table_if_any
    names = sorted((one.class_.__name__, other.class_.__name__))
    return ConfigurationError(
        f"{' and '.join(names)} are two classes over the table {table}, and objects of"
        " both are changed in one transaction: each holds a version of its own, so the second"
        " UPDATE would be taken for another writer's conflict, or for one of the other class."
        f" Change them through {names[0]} alone, or {names[1]} alone, in a transaction; better,"
        " map the table once and read less of it by load_only() or mapped_column(deferred=True)."
    )
