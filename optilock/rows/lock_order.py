"""In which order rows are locked, so that no two transactions wait for each other.

A flush writes parents before what refers to them, otherwise table by table, and the rows of a table
in the order of their keys. Whatever locks rows beside it keeps to the same order.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Table
from sqlalchemy.exc import NoReferenceError
from sqlalchemy.orm import Mapper

from optilock.mapped import Identity, facts

__all__ = ["lock_order"]

_generations: WeakKeyDictionary[Table, int] = WeakKeyDictionary()


def lock_order(mapper: Mapper[Any], identity: Identity) -> Any:
    """What rows are sorted by; numbers in a key as numbers, all else as text."""
    root = facts(mapper).root.class_
    of_table = _generation(facts(mapper).table), root.__module__, root.__qualname__
    return *of_table, tuple(map(_comparable, identity))


def _comparable(value: Any) -> Any:
    return (0, value, "") if isinstance(value, (int, float)) else (1, 0, str(value))


def _generation(table: Table) -> int:
    found = _generations.get(table)
    if found is None:
        found = _generations[table] = _below(table, frozenset())
    return found


def _below(table: Table, path: frozenset[Table]) -> int:
    """How many tables there are, one above the other, that it refers to."""
    path = path | {table}
    return max((1 + _below(parent, path) for parent in _parents(table) - path), default=0)


def _parents(table: Table) -> frozenset[Table]:
    found = set()
    for key in table.foreign_keys:
        try:
            found.add(key.column.table)
        except NoReferenceError:  # to a table that nobody has described
            continue
    return frozenset(found)
