"""Tables that carry a version, and tables with a part of rows whose version is elsewhere.

Two classes over one table would each hold a version of their own for the same row. SQLAlchemy
writes each with an UPDATE that expects the version it was read in, so the second UPDATE would take
the first for another writer's change. An UPDATE does not show which of the two classes it belongs
to, either. So a flush with objects of both is refused (:mod:`optilock._watched.guard.refusals`). In
separate transactions each class is guarded as usual. Classes of one hierarchy are one class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import (
    Column,
    Table,
)
from sqlalchemy.orm import Mapper

from optilock._mapped import all_mappers, facts
from optilock.errors import ConfigurationError

T = TypeVar("T", Column[Any], Mapper[Any])


class _Features:
    """Unusual kinds of classes that the process has mapped; without them a flush skips checks."""

    #: Two hierarchies with rows in one table (:mod:`optilock._mapping.tables`).
    shared = False
    #: Values of rows are compared (:mod:`optilock._mapping.original_values`).
    compared = False
    #: Originals of mutable values are kept (:mod:`optilock._mapping.original_values`).
    kept = False


features_in_use = _Features()


class OfTables(Mapping[Table, T]):
    """A weak map from a table to a value that refers back to it; neither is kept alive."""

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[Table, ref[T]] = WeakKeyDictionary()

    def __getitem__(self, table: Table) -> T:
        found = self._values[table]()
        if found is None:
            raise KeyError(table)
        return found

    def __setitem__(self, table: Table, value: T) -> None:
        self._values[table] = ref(value)

    def __iter__(self) -> Iterator[Table]:
        return (table for table, value in self._values.items() if value() is not None)

    def __len__(self) -> int:
        return len(self._values)


#: Table -> its version column, for every class of the mixin that has one.
_tables: OfTables[Column[Any]] = OfTables()
#: Table -> the class of its rows.
_owners: OfTables[Mapper[Any]] = OfTables()
#: Table -> a class with a part of its rows there, and the version in another table.
_joined: OfTables[Mapper[Any]] = OfTables()
#: Version -> the name of its class, where it has no ``onupdate``.
_moved_by_flushes: WeakKeyDictionary[Column[Any], str] = WeakKeyDictionary()
#: Table -> the first class with the version, or the compared values, of its rows in it.
_first: OfTables[Mapper[Any]] = OfTables()
#: Tables with a second such class.
_shared: WeakSet[Table] = WeakSet()


#: An attribute of a table; Alembic would write ``info`` into a migration.
_CLASSES = "_optilock_classes"


class _Classes(set[type[Any]]):
    """The classes of a table with a version, kept alive with their table.

    Migrations get tables only, and must still find the version. A pickled table has no classes.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _Classes, ()


def versioned_tables() -> Mapping[Table, Column[Any]]:
    """Return the tables that carry a version, each with its column."""
    return _tables


def joined_tables() -> Mapping[Table, Mapper[Any]]:
    """Return tables of versioned classes without the version itself (joined inheritance)."""
    return _joined


def classes_over(table: Any) -> list[Mapper[Any]]:
    """Return all classes, versioned or not, with rows or parts of rows in the table."""
    return [mapper for mapper in all_mappers() if table in mapper.tables]


def owner_of(table: Any) -> Mapper[Any] | None:
    """Return the class of the rows of a table that carries a version."""
    return _owners.get(table) if isinstance(table, Table) else None


def moved_by_flushes(version: Any) -> str | None:
    """Return the class whose version no statement moves, because it has no ``onupdate``."""
    return _moved_by_flushes.get(version)


def register_tables(mapper: Mapper[Any], column: Column[Any]) -> None:
    """Note that ``column`` is the version of ``mapper``'s rows, in all of their tables."""
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
    """Note the hierarchy with rows in the table, and whether there is another one."""
    table = facts(mapper).table_if_any
    if table is None:
        return
    other = _first.get(table)
    if other is None or other is mapper.base_mapper or other not in other.registry.mappers:
        _first[table] = mapper.base_mapper
    else:
        _shared.add(table)
        features_in_use.shared = True


def is_shared(mapper: Mapper[Any]) -> bool:
    """Return whether a class of another hierarchy is mapped to the table with the version."""
    return facts(mapper).table_if_any in _shared


def share_one_table(one: Mapper[Any], other: Mapper[Any]) -> bool:
    """Return whether two classes belong to two hierarchies with rows in one table."""
    return (
        one.base_mapper is not other.base_mapper
        and facts(one).table_if_any is facts(other).table_if_any
    )


def two_classes(one: Mapper[Any], other: Mapper[Any]) -> ConfigurationError:
    """Return the error for two classes over one table in one flush."""
    table = facts(one).table_if_any
    names = sorted((one.class_.__name__, other.class_.__name__))
    return ConfigurationError(
        f"{' and '.join(names)} are two classes over the table {table}, and objects of"
        " both are changed in one transaction: each holds a version of its own, so the second"
        " UPDATE would be taken for another writer's conflict, or for one of the other class."
        f" Change them through {names[0]} alone, or {names[1]} alone, in a transaction; better,"
        " map the table once and read less of it by load_only() or mapped_column(deferred=True)."
    )
