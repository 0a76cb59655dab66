"""Rows that a flush deletes, found by the foreign keys that refer to them.

Of every child that missed it is asked whether its parent goes. So the parents are sorted once for
each foreign key, by the values that a child holds: to ask costs the same whether one parent is
deleted or ten thousand are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy import ForeignKeyConstraint, Table
from sqlalchemy.orm.state import InstanceState

from optilock.guard.dependents import key_in
from optilock.mapping.facts import facts
from optilock.rows.sides import Values

if TYPE_CHECKING:
    from optilock.guard.flush import Flush
    from optilock.guard.missed import Missed

__all__ = ["Doomed", "kept_by_a_deleted_parent"]

State = InstanceState[Any]


class Doomed:
    """Rows that are to be deleted."""

    def __init__(self, states: Iterable[State]) -> None:
        self._states = tuple(states)
        self._sorted: dict[ForeignKeyConstraint, dict[tuple[Any, ...], list[State]]] = {}

    def parents_of(self, state: State, stored: Values) -> Iterator[State]:
        """Those to which the row of ``state``, as it is stored, has a foreign key."""
        if not self._states:
            return
        names = {column: name for name, column in facts(state.mapper).columns.items()}
        for table in state.mapper.tables:
            for key in table.foreign_key_constraints if isinstance(table, Table) else ():
                held = tuple(stored.get(names.get(one.parent, "")) for one in key.elements)
                for parent in self._by_value_of(key).get(held, ()):
                    if parent is not state:
                        yield parent

    def _by_value_of(self, key: ForeignKeyConstraint) -> dict[tuple[Any, ...], list[State]]:
        if key not in self._sorted:
            found = self._sorted[key] = {}
            for state in self._states:
                if key.referred_table in state.mapper.tables:
                    values = tuple(key_in(state, one.column) for one in key.elements)
                    found.setdefault(values, []).append(state)
        return self._sorted[key]


def kept_by_a_deleted_parent(flush: Flush, missed: Missed) -> bool:
    """Is the row, which is to stay, a child of one that this flush deletes?

    A delete may have been taken back since the flush began.
    """
    assert missed.stored is not None
    parents = flush.doomed().parents_of(missed.state, missed.stored)
    return any(flush.is_delete(parent) for parent in parents)
