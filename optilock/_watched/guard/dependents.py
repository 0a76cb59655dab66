"""The dependents of a row (joined tables, children, link rows), and its parents.

Tables without the token are written only for rows whose token matched, and a row whose dependents
were already written cannot be skipped silently. For each child that missed, the guard checks
whether its parent is deleted. Deleted parents are sorted once for each foreign key, so that this
costs the same for one of them as for ten thousand. An orphan that a resolver keeps returns to the
parent that had let it go.

Link rows have no version: removing one that is already gone is no version conflict, and no edit is
lost. SQLAlchemy reports it with the error of a version conflict and rolls back. Here the flush goes
on, everything else is written, and :class:`~optilock.errors.LinkGone` reports the count, unless the
policy for deletes of a class at one end of the link lets it pass. A link that another transaction
has added already stays an ``IntegrityError``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Delete, ForeignKeyConstraint, Table
from sqlalchemy.orm import Mapper, PassiveFlag, RelationshipDirection
from sqlalchemy.orm.attributes import instance_state

from optilock._mapped import State, facts
from optilock._undocumented.flushes import states_marked_deleted
from optilock._undocumented.mappers import attach_to_parent
from optilock._watched.guard.records import Flush
from optilock._watched.rows.entries import Missed
from optilock._watched.rows.stored import Values
from optilock._watched.writes.answers import CountedResult
from optilock._watched.writes.shapes import compared_columns
from optilock.dialects import database_of
from optilock.dialects.values import rows_with_keys
from optilock.errors import LinkGone
from optilock.resolvers.resolution import OnDelete, policy_for


def has_dependents(mapper: Mapper[Any]) -> bool:
    """Return whether a delete of a row writes other tables, or other rows, before it."""
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
    """Return the collections of the object that this flush has written: children, link rows."""
    return [
        relationship.key
        for relationship in state.mapper.relationships
        if _writes_elsewhere(relationship)
        and relationship.key in state.dict
        and state.attrs[relationship.key].history.has_changes()
    ]


def drop_missed_rows(flush: Flush, statement: Any, params: list[Any]) -> list[Any]:
    """Return the rows without those of a row that missed, and links of one that is gone."""
    compared = compared_columns(statement)
    if not compared:
        return params
    place = (statement.table, *compared.items())
    if place not in flush.left_out:
        flush.left_out[place] = SkippedRows(statement.table, compared)
    left_out = flush.left_out[place]
    left_out.take(flush.misses, flush.skipped)
    return [row for row in params if row not in left_out]


class SkippedRows:
    """Rows of one table that are not written, by the columns that a statement names them by.

    Such a statement may come for each row of the flush, so each row that missed is counted once.
    """

    def __init__(self, table: Any, compared: dict[Column[Any], str]) -> None:
        self._table = table
        self._compared = compared
        self._misses = 0
        self._skipped: frozenset[State] = frozenset()
        #: Parameters of the statement -> what they hold in the rows that are left out.
        self._held: dict[tuple[str, ...], set[tuple[Any, ...]]] = {}

    def take(self, misses: Sequence[Missed], skipped: frozenset[State]) -> None:
        """Add the rows that have missed, or were skipped, since the last statement."""
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
        """Skip the rows by which a link table refers to the object."""
        if not any(one.secondary is self._table for one in state.mapper.relationships):
            return
        for constraint in self._table.foreign_key_constraints:
            if constraint.referred_table in state.mapper.tables:
                compared = [key for key in constraint.elements if key.parent in self._compared]
                self._take(state, {self._compared[key.parent]: key.column for key in compared})

    def _take(self, state: State, columns: dict[str, Any]) -> None:
        values = tuple(_key_of(state, column) for column in columns.values())
        self._held.setdefault(tuple(columns), set()).add(values)


def _key_of(state: State, column: Any) -> Any:
    """Return the stored value of a key column of the object's row."""
    name = facts(state.mapper).names[column]
    return state.committed_state.get(name, state.dict.get(name))


class DeletedRows:
    """Rows that are to be deleted."""

    def __init__(self, states: Iterable[State]) -> None:
        self._states = tuple(states)
        self._sorted: dict[ForeignKeyConstraint, dict[tuple[Any, ...], list[State]]] = {}

    def parents_of(self, state: State, stored: Values) -> Iterator[State]:
        """Yield those to which the stored row of ``state`` has a foreign key."""
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
                    values = tuple(_key_of(state, one.column) for one in key.elements)
                    found.setdefault(values, []).append(state)
        return self._sorted[key]


def has_deleted_parent(flush: Flush, missed: Missed) -> bool:
    """Return whether the row, which stays, is a child of one that this flush deletes.

    A delete may have been undone since the flush began.
    """
    assert missed.stored is not None
    if flush.doomed is None:
        assert flush.uow is not None
        states = flush.uow.states.items()
        flush.doomed = DeletedRows(state for state, (is_delete, _) in states if is_delete)
    parents = flush.doomed.parents_of(missed.state, missed.stored)
    return any(flush.is_delete(parent) for parent in parents)


def give_back_to_parent(flush: Flush, state: State) -> None:
    """Give the object back to the parent of its row; the next flush would delete it."""
    if state in states_marked_deleted(flush.session):
        return  # by session.delete(), and not because of a parent
    if flush.let_go is None:
        flush.let_go = _let_go(flush)
    for parent, name in flush.let_go.get(state, ()):
        attach_to_parent(state, parent, name)
        flush.expire_later.append((parent, name))


def _let_go(flush: Flush) -> dict[State, list[tuple[State, str]]]:
    assert flush.uow is not None
    found: dict[State, list[tuple[State, str]]] = {}
    for parent in flush.uow.states:
        for relationship in parent.mapper.relationships:
            if relationship.cascade.delete_orphan and relationship.key in parent.committed_state:
                history = parent.get_history(relationship.key, PassiveFlag.PASSIVE_NO_INITIALIZE)
                for child in history.deleted:
                    if child is not None:
                        found.setdefault(instance_state(child), []).append(
                            (parent, relationship.key)
                        )
    return found


# -- link rows -------------------------------------------------------------------------------------

#: Values in one statement; every database takes more.
_VALUES = 500


def delete_links(
    flush: Flush, connection: Connection, native: Any, statement: Any, rows: list[Any]
) -> Any:
    """Delete link rows so that they are counted.

    Some drivers (asyncpg, asyncmy) do not count the rows of an ``executemany``. For these, one
    statement names many of them.
    """
    counts = connection.dialect.supports_sane_multi_rowcount
    compared = None if counts or type(statement) is not Delete else compared_columns(statement)
    if not compared or not rows or not _ends(flush, statement.table):
        return native(statement, rows)
    columns = list(compared)
    step = max(1, _VALUES // len(columns))
    found = 0
    for start in range(0, len(rows), step):
        keys = [
            tuple(row[name] for name in compared.values()) for row in rows[start : start + step]
        ]
        result = native(statement.table.delete().where(rows_with_keys(columns, keys)))
        found += result.rowcount
    return _Added(result, found)


class _Added(CountedResult):
    """The answer for rows that were sent in statements with a count each."""

    def supports_sane_multi_rowcount(self) -> bool:
        return True


def judge_links(
    flush: Flush, connection: Connection, statement: Any, rows: list[Any], result: Any
) -> Any:
    """Return the answer for link rows that a flush removes, or moves to another key."""
    if result.rowcount == len(rows) or not result.supports_sane_multi_rowcount():
        return result
    ends = _ends(flush, statement.table)
    if not ends:
        return result
    verb = "delete" if isinstance(statement, Delete) else "update"
    on_delete = flush.record.on_delete
    lenient = any(policy_for(end, on_delete) is not OnDelete.STRICT for end in ends)
    if result.rowcount > len(rows) and not lenient:
        return result  # a table without a key has a link twice: SQLAlchemy warns, none is gone
    hidden = result.rowcount < len(rows) and database_of(connection.dialect).locks.may_hide_rows(
        connection, [statement.table]
    )
    if verb == "update" or hidden or not lenient:
        gone = LinkGone(statement.table.description, rows, result.rowcount, verb)
        if hidden:
            gone.add_note(
                "optilock: row-level security may hide these links, which are not deleted"
            )
        flush.gone_links = [*flush.gone_links, gone]
    return CountedResult(result, len(rows), rows)


def _ends(flush: Flush, table: Table) -> list[type[Any]]:
    """Return the classes of this flush that are linked by ``table``."""
    assert flush.uow is not None
    return [
        mapper.class_
        for mapper in flush.uow.mappers
        if any(relationship.secondary is table for relationship in mapper.relationships)
    ]
