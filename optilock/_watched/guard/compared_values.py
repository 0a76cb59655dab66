"""Rows that are judged before they are written, because the SQL of their statement cannot.

* Values are compared (``CompareValues``): SQLAlchemy's statement has ``WHERE id = ?`` and nothing
  more, and only Python knows which values of a type are the same.
* The session demands something of rows without a version.
* The version is not in the table that is written first (joined tables).

They are locked in key order and looked at, all of a table at once, before the first statement for
one of them. No row that differs is written; SQLAlchemy's own statements then write the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Update
from sqlalchemy.orm import Mapper

from optilock._mapped import State, facts
from optilock._mapping.original_values import changed_names, nulls_stored, values_written
from optilock._watched.guard.records import Flush, ShortCount
from optilock._watched.writes.send import find_moved
from optilock._watched.writes.shapes import compared_columns


def judge_ahead(flush: Flush, statement: Any, params: Any) -> None:
    """Lock and compare rows that the statement would write unseen, with the others of its table."""
    assert flush.uow is not None
    mappers = [m for m in flush.uow.mappers if _is_unseen(flush, m, statement)]
    if not mappers:
        return
    mine = {
        state: None
        for state in _states_of(flush, mappers[0], statement, params)
        if state not in flush.looked and state.key is not None and state.mapper in mappers
    }
    if not mine:
        return
    for mapper in mappers:
        for state in flush.uow.mappers[mapper]:
            if state not in flush.looked and _is_written(flush, state):
                mine[state] = None
    flush.note_looked(mine)
    for deleting in (False, True):
        judge_objects(flush, [s for s in mine if flush.is_delete(s) is deleting], deleting=deleting)


def _is_unseen(flush: Flush, mapper: Mapper[Any], statement: Any) -> bool:
    """Return whether the statement writes rows of the class, and cannot judge them.

    A row is deleted from its first table last: its version was compared by then.
    """
    table = statement.table
    if table not in mapper.tables:
        return False
    known, demands = facts(mapper), flush.record.demands
    if known.compares:
        return True
    if known.version is None:
        return demands is not None and bool(demands.conditions_for(mapper))
    is_first = table is mapper.base_mapper.local_table is not known.version.table
    return is_first and isinstance(statement, Update)


def _states_of(flush: Flush, mapper: Mapper[Any], statement: Any, params: Any) -> Iterator[State]:
    """Yield the objects of the rows that a statement writes."""
    known = facts(mapper)
    compared = {known.names[c]: p for c, p in (compared_columns(statement) or {}).items()}
    names = [compared.get(key) for key in known.keys]
    for row in params if isinstance(params, list) else [params or {}]:
        state = flush.find(mapper, tuple(row.get(name) for name in names))
        if state is not None:
            yield state


def _is_written(flush: Flush, state: State) -> bool:
    return state.key is not None and (flush.is_delete(state) or bool(changed_names(state)))


def judge_objects(flush: Flush, states: list[State], *, deleting: bool) -> None:
    """Lock and check the rows; nothing is sent for those that moved, or are not as demanded."""
    found = find_moved(flush.session, states, deleting=deleting) if states else []
    if found:
        table = facts(found[0].state.mapper).table
        same = {state for state in states if facts(state.mapper).table is table}
        lost = sum(one.state in same for one in found)
        flush.note_short(ShortCount(table, deleting, len(same), lost))
    flush.skip(missed.state for missed in found)
    for missed in found:
        flush.add_miss(missed)


def note_written(flush: Flush) -> None:
    """Note that the values of these objects are stored, if the transaction commits."""
    assert flush.uow is not None
    refused = {kept.state for kept in flush.kept}
    states = {
        state
        for mapper, some in flush.uow.mappers.items()
        if facts(mapper).compares
        for state in some
        if state not in refused
    }
    for state in states:
        if state.key is None and not _is_switched(flush, state):
            nulls_stored(state)
        values_written(state)
    flush.record.note_compared(states)


def _is_switched(flush: Flush, state: State) -> bool:
    """Return whether a new object has the row of one that the same flush deleted."""
    return state.mapper.identity_key_from_instance(state.obj()) in flush.session.identity_map
