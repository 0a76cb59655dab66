"""Rows whose values are compared (``CompareValues``): judged before they are written.

SQLAlchemy's UPDATE of such a row has ``WHERE id = ?`` and nothing more. Where one row of plain
columns is written alone, the values that were read join its WHERE: one statement. Otherwise the
rows of the flush are locked in key order and looked at, once a table, and no row that differs is
written; SQLAlchemy's own statements, which batch well without a version, then write the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Column, Connection, Delete, and_, bindparam
from sqlalchemy.orm import Mapper

from optilock.dialects import database_of
from optilock.mapped import State, facts
from optilock.mapping.original_values import (
    changed_names,
    nulls_stored,
    values_read,
    values_written,
)
from optilock.watched.guard.batch import send_deferred
from optilock.watched.guard.records import Flush, ShortCount
from optilock.watched.rows.entries import Missed, attempt_of, error_if_not_written, has_moved
from optilock.watched.rows.stored import read_stored
from optilock.watched.writes.answers import CountedResult
from optilock.watched.writes.send import find_moved
from optilock.watched.writes.shapes import compared_columns

_PREFIX = "optilock_read_"


def write_one(
    flush: Flush, connection: Connection, native: Any, statement: Any, params: Any, options: Any
) -> Any:
    """Write the only row of the flush with its values in the WHERE; ``None`` if that is inexact."""
    rows = params if isinstance(params, list) else [params]
    state = _only_state(flush, statement, rows)
    if state is None:
        return None
    values = values_read(state, deleting=isinstance(statement, Delete))
    columns = facts(state.mapper).columns
    database = database_of(connection.dialect)
    if not all(database.values.compares_exactly(columns[name].type) for name in values):
        return None
    send_deferred(flush, connection)
    checked = _with_values(statement, {name: columns[name] for name in values})
    params = {**rows[0], **{_PREFIX + name: value for name, value in values.items()}}
    result = native(checked, params, **options)
    if result.rowcount:
        return result
    missed = _missed(connection, state, statement)
    if not has_moved(missed.attempt, missed.stored):  # not any more: it is locked now
        result = native(checked, params, **options)
        if result.rowcount:
            return result
        missed.problem = error_if_not_written(missed)
    flush.note_short(ShortCount(statement.table, isinstance(statement, Delete), 1, 1))
    flush.add_miss(missed)
    flush.skip({state})
    return CountedResult(result, 1)


def _only_state(flush: Flush, statement: Any, rows: list[Any]) -> State | None:
    """Return the object of the flush's only row, if its values alone decide about the write."""
    assert flush.uow is not None
    if len(flush.uow.states) > 1 or len(rows) > 1:
        return None
    found = _states_of(flush, statement, rows)
    if not found or found[0] in flush.skipped or len(found[0].mapper.tables) > 1:
        return None
    demands = flush.record.demands
    return None if demands is not None and demands.conditions_for(found[0].mapper) else found[0]


def _with_values(statement: Any, columns: Mapping[str, Column[Any]]) -> Any:
    """Return the statement for the row whose columns have the values that were read."""
    conditions = [
        column.is_not_distinct_from(bindparam(_PREFIX + name, type_=column.type, unique=False))
        for name, column in columns.items()
    ]
    return statement.where(and_(*conditions)) if conditions else statement


def judge_values(flush: Flush, connection: Connection, statement: Any, params: Any) -> None:
    """Lock and compare rows that were not compared yet, all of the flush at once."""
    rows = params if isinstance(params, list) else [params]
    waiting = [s for s in _states_of(flush, statement, rows) if s not in flush.looked]
    if not waiting:
        return
    assert flush.uow is not None
    mine = dict.fromkeys(waiting)
    for mapper, states in flush.uow.mappers.items():
        if facts(mapper).compares and statement.table in mapper.tables:
            mine |= dict.fromkeys(s for s in states if s not in flush.looked and _writes(flush, s))
    flush.looked |= mine.keys()
    for deleting in (False, True):
        judge_objects(flush, [s for s in mine if flush.is_delete(s) is deleting], deleting=deleting)


def judge_demands(flush: Flush, table: Any) -> None:
    """Check rows of ``table`` that have no version, where the session demands something of them.

    The others are judged with their version, or their values.
    """
    assert flush.uow is not None and flush.record.demands is not None
    for mapper, states in flush.uow.mappers.items():
        if table not in mapper.tables or facts(mapper).guarded:
            continue
        if flush.record.demands.conditions_for(mapper):
            mine = [s for s in states if s not in flush.looked and _writes(flush, s)]
            flush.looked |= set(mine)
            for deleting in (False, True):
                some = [state for state in mine if flush.is_delete(state) is deleting]
                judge_objects(flush, some, deleting=deleting)


def judge_objects(flush: Flush, states: list[State], *, deleting: bool) -> None:
    """Lock and check the rows; nothing is sent for those that moved, or are not as demanded."""
    found = find_moved(flush.session, states, deleting=deleting) if states else []
    if found and flush.short is None:
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


def _writes(flush: Flush, state: State) -> bool:
    return state.key is not None and (flush.is_delete(state) or bool(changed_names(state)))


def _states_of(flush: Flush, statement: Any, rows: Iterable[Any]) -> list[State]:
    """Return the objects of the rows whose values are compared."""
    mapper = _comparing(flush, statement.table)
    where = compared_columns(statement) if mapper is not None else None
    if mapper is None or not where:
        return []
    version = facts(mapper).version
    names = {facts(mapper).names[c]: p for c, p in where.items() if c is not version}
    keys = facts(mapper).keys
    if any(key not in names for key in keys):
        return []
    return [
        state
        for row in rows
        if (state := flush.find(mapper, tuple(row[names[key]] for key in keys))) is not None
        and facts(state.mapper).compares
        and state.key is not None
    ]


def _comparing(flush: Flush, table: Any) -> Mapper[Any] | None:
    assert flush.uow is not None
    return next((m for m in flush.uow.mappers if facts(m).compares and table in m.tables), None)


def _missed(connection: Connection, state: State, statement: Any) -> Missed:
    """Read a row that was not found as it was read."""
    token = facts(state.mapper).token
    version = state.committed_state.get(token, state.dict.get(token)) if token else None
    action = "delete" if isinstance(statement, Delete) else "update"
    attempt = attempt_of(state, action, version)  # type: ignore[arg-type]
    stored = read_stored(connection, state.mapper, [attempt.identity])
    return Missed(state, state.obj(), connection, attempt, stored.get(attempt.identity))
