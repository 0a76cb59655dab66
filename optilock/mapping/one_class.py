"""Two classes over one table: each would hold a version of its own of the same row.

SQLAlchemy writes each with an UPDATE that expects the version it was read in, so the second one
would meet the first as another writer's change. Nothing tells which of the two classes an UPDATE
belongs to, either: the two have one table. So a flush with objects of both is refused
(:mod:`optilock.guard.refusals`); in transactions of their own each is guarded like any other.
Classes of one hierarchy are one class here.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Table
from sqlalchemy.orm import Mapper

from optilock.errors import ConfigurationError
from optilock.mapped.facts import facts
from optilock.mapping.kinds import there_are

__all__ = [
    "is_shared",
    "share_one_table",
    "share_table",
    "two_classes",
]

#: Table -> the first class whose rows have their version, or their compared values, in it.
_first: WeakKeyDictionary[Table, ref[Mapper[Any]]] = WeakKeyDictionary()
#: Tables of which there is a second one.
_shared: WeakSet[Table] = WeakSet()


def share_table(mapper: Mapper[Any]) -> None:
    """Note whose rows are in the table, and whether those of another hierarchy are there, too."""
    table = facts(mapper).table_if_any
    if table is None:
        return
    known = _first.get(table)
    other = None if known is None else known()
    if other is None or other is mapper.base_mapper or other not in other.registry.mappers:
        _first[table] = ref(mapper.base_mapper)
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
