"""What hangs on a row: joined tables, children, link rows.

Tables without the token are written only for rows whose token matched, and a row whose dependents
were already written cannot quietly be left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column
from sqlalchemy.orm import Mapper, RelationshipDirection
from sqlalchemy.orm.state import InstanceState

from optilock.guard.shapes import compared_columns
from optilock.mapping.facts import facts

if TYPE_CHECKING:
    from optilock.guard.flush import Flush
    from optilock.guard.missed import Missed

__all__ = ["LeftOut", "changed_links", "has_dependents", "key_in", "without_missed"]

State = InstanceState[Any]


def has_dependents(mapper: Mapper[Any]) -> bool:
    """Would deleting a row write other tables, or other rows, before it?"""
    return len(mapper.tables) > 1 or any(
        _writes_elsewhere(relationship) for relationship in mapper.relationships
    )


def _writes_elsewhere(relationship: Any) -> bool:
    if relationship.viewonly:
        return False
    if relationship.post_update or relationship.secondary is not None:
        return True
    return (
        relationship.direction is RelationshipDirection.ONETOMANY
        and relationship.passive_deletes != "all"
    )


def changed_links(state: State) -> list[str]:
    """Collections of the object that this flush has written: children and link rows."""
    return [
        relationship.key
        for relationship in state.mapper.relationships
        if _writes_elsewhere(relationship)
        and relationship.key in state.dict
        and state.attrs[relationship.key].history.has_changes()
    ]


def without_missed(flush: Flush, statement: Any, params: list[Any]) -> list[Any]:
    """Without what belongs to a row that missed: joined tables, the links of one that is gone."""
    compared = compared_columns(statement)
    if not compared:
        return params
    place = (statement.table, *compared.items())
    if place not in flush.left_out:
        flush.left_out[place] = LeftOut(statement.table, compared)
    left_out = flush.left_out[place]
    left_out.take(flush.misses, flush.skipped)
    return [row for row in params if row not in left_out]


class LeftOut:
    """Rows of one table that are not written, by the columns that a statement names them by.

    Such a statement may come for each row of the flush, so what missed is counted in once.
    """

    def __init__(self, table: Any, compared: dict[Column[Any], str]) -> None:
        self._table = table
        self._compared = compared
        self._misses = 0
        self._skipped: frozenset[State] = frozenset()
        #: Parameters of the statement -> what they hold in the rows that are left out.
        self._held: dict[tuple[str, ...], set[tuple[Any, ...]]] = {}

    def take(self, misses: Sequence[Missed], skipped: frozenset[State]) -> None:
        """Count in what has missed, or was skipped, since the last statement."""
        for missed in misses[self._misses :]:
            self._take_row(missed.state)
        for state in skipped - self._skipped if skipped is not self._skipped else ():
            self._take_row(state)
            self._take_links(state)
        self._misses, self._skipped = len(misses), skipped

    def __contains__(self, row: dict[str, Any]) -> bool:
        return any(tuple(row[n] for n in names) in held for names, held in self._held.items())

    def _take_row(self, state: State) -> None:
        if self._table in state.mapper.tables:
            self._take(state, {name: column for column, name in self._compared.items()})

    def _take_links(self, state: State) -> None:
        """The rows by which a link table refers to the object."""
        if not any(one.secondary is self._table for one in state.mapper.relationships):
            return
        for constraint in self._table.foreign_key_constraints:
            if constraint.referred_table in state.mapper.tables:
                compared = [key for key in constraint.elements if key.parent in self._compared]
                self._take(state, {self._compared[key.parent]: key.column for key in compared})

    def _take(self, state: State, columns: dict[str, Any]) -> None:
        values = tuple(key_in(state, column) for column in columns.values())
        self._held.setdefault(tuple(columns), set()).add(values)


def key_in(state: State, column: Any) -> Any:
    """The stored value of a key column of the object's row."""
    name = facts(state.mapper).names[column]
    return state.committed_state.get(name, state.dict.get(name))
