"""``update(Model).where(...)`` in a watched session: the objects it moves, and their new versions.

The rules are in :mod:`optilock._watched.statements.execute`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy.orm import Mapper, Session

from optilock._mapped import Identity, State, facts
from optilock._undocumented.flushes import expire_with_savepoint
from optilock._watched.rows.seen import version_seen
from optilock._watched.session.record import session_record
from optilock._watched.statements.by_table import refuse_apart_in_flush, send_in_flush
from optilock._watched.statements.call import Call, finds_twice, flush_before, rows_found
from optilock._watched.statements.rollback_effects import (
    keep_promises,
    keep_versions,
    note_statement,
    objects_of,
    promised_rows,
    take_over_versions,
)
from optilock._watched.statements.version import (
    class_stands_still,
    columns_set,
    keep_version,
    move_in_other_table,
    move_version,
    refuse_children_by_key,
    version_not_moved_error,
)

#: Objects whose rows a statement finds in the version that they hold, with it.
Matched = list[tuple[State, Any]]


def update_by_criteria(call: Call, mapper: Mapper[Any]) -> Any:
    """Send the UPDATE of a class with a version."""
    version = facts(mapper).version
    columns = columns_set(mapper, call.statement, call.params)
    explicit, apart = version in columns, False
    if not explicit:
        if _keeps_version(call.session, mapper, columns):
            return _send_unmoved(call.with_statement(keep_version(mapper, call.statement)), mapper)
        if not _is_moved(mapper, columns):
            return _send_unmoved(call, mapper)
        if version.table is mapper.local_table:
            call = call.with_statement(move_version(mapper, call.statement))
        else:
            apart = not _writes(version.table, columns)
    if session_record(call.session).flush is None:
        return _send_and_follow(call, mapper, apart=apart, explicit=explicit)
    if apart:
        refuse_apart_in_flush(mapper)
    return send_in_flush(call, mapper)


def _send_unmoved(call: Call, mapper: Mapper[Any]) -> Any:
    """Send a statement that moves no version, so that no object has to follow it."""
    return (
        call.send() if session_record(call.session).flush is None else send_in_flush(call, mapper)
    )


def _send_and_follow(call: Call, mapper: Mapper[Any], *, apart: bool, explicit: bool) -> Any:
    """Send the statement, and bring the session's objects of its rows up to date."""
    call.flush_before()
    held = _objects_with_version(call.session, mapper) if call.synchronizes else {}
    matched = _lock_matched(call, mapper, held)
    if apart:
        move_in_other_table(
            call.connection(mapper), mapper, mapper.local_table, call.statement, call.params
        )
    with keep_versions(mapper, held.values()):
        result = call.send()
    _take_over(call, mapper, matched, certain=not explicit)
    return result


def _is_moved(mapper: Mapper[Any], columns: set[Any]) -> bool:
    """Return whether an UPDATE of these columns moves the version, if it does not name it."""
    if not columns.isdisjoint(facts(mapper).made_of):
        raise version_not_moved_error(
            mapper, "it is made from values, which only their object knows"
        )
    return not (facts(mapper).by_application or facts(mapper).by_values)


def update_with_children(call: Call, mapper: Mapper[Any], children: list[Mapper[Any]]) -> Any:
    """Send the UPDATE of a class without a version, and move the versions of joined children."""
    if isinstance(call.params, list):
        refuse_children_by_key(mapper, children)
    columns = columns_set(mapper, call.statement, call.params)
    flush_before(call.session, {})
    taken = []
    for child in children:
        if _keeps_version(call.session, child, columns) or not _is_moved(child, columns):
            continue
        if session_record(call.session).flush is not None:
            refuse_apart_in_flush(child)
        matched = _lock_matched(call, child, _objects_with_version(call.session, child))
        connection = call.connection(mapper)
        move_in_other_table(connection, child, mapper.local_table, call.statement, call.params)
        taken.append((child, matched))
    result = call.send()
    for child, matched in taken:
        _take_over(call, child, matched, certain=True)
    return result


def delete_promised(call: Call, mapper: Mapper[Any]) -> None:
    """Keep the promises about rows that we delete in the promised version."""
    if not facts(mapper).token:
        return
    call.flush_before()
    promised = promised_rows(call.session, mapper)
    if promised:
        call.connection(mapper)  # the transaction begins
        note_statement(call.session, mapper)
        keep_promises(call.session, promised, _lock_found(call, mapper, promised))


def _keeps_version(session: Session, mapper: Mapper[Any], columns: set[Any]) -> bool:
    """Return whether only ignored columns change, or a ``no_bump`` block is open."""
    return (bool(columns) and columns <= facts(mapper).ignored) or class_stands_still(
        session, mapper
    )


def _writes(table: Any, columns: set[Any]) -> bool:
    """Return whether it sets columns of ``table``, too (MariaDB). Its ``onupdate`` acts then."""
    return any(getattr(column, "table", None) is table for column in columns)


def _objects_with_version(session: Session, mapper: Mapper[Any]) -> dict[Identity, State]:
    """Return the session's objects of the class whose version is known, by their keys."""
    key = facts(mapper).token
    return {
        identity: state
        for identity, state in objects_of(session, mapper).items()
        if state.mapper.isa(mapper) and version_seen(state, key) is not None
    }


def _lock_matched(call: Call, mapper: Mapper[Any], held: dict[Identity, State]) -> Matched:
    """Return those of ``held`` whose rows the statement will change, with their versions.

    Their rows are locked, and so are promised ones. Rows in the promised version are ours from now
    on.
    """
    promised = promised_rows(call.session, mapper)
    if not held and not promised:
        return []
    found = _lock_found(call, mapper, {*held, *promised})
    keep_promises(call.session, promised, found)
    key = facts(mapper).token
    return [
        (state, found[identity])
        for identity, state in held.items()
        if identity in found and version_seen(state, key) == found[identity]
    ]


def _lock_found(call: Call, mapper: Mapper[Any], wanted: Iterable[Identity]) -> dict[Identity, Any]:
    """Lock the rows that the statement finds among ``wanted``, and return their versions by key."""
    key = facts(mapper).token
    connection, table = call.connection(mapper), facts(mapper).table
    keys = [getattr(mapper.class_, name) for name in facts(mapper).keys]
    version = [getattr(mapper.class_, key)]
    found = rows_found(connection, call.statement, call.params, table, keys, version, wanted)
    return {identity: version for identity, (version,) in found.items()}


def _take_over(call: Call, mapper: Mapper[Any], matched: Matched, *, certain: bool) -> None:
    if matched:
        certain = certain and finds_twice(call.session, call.statement)
        take_over_versions(call.session, call.connection(mapper), mapper, matched, certain=certain)
        _expire_given(call, mapper, matched)


def _expire_given(call: Call, mapper: Mapper[Any], matched: Matched) -> None:
    """Expire what the statement sets from parameters, which SQLAlchemy does not give to objects.

    With the version of the change and the value of before, an object would overwrite the change.
    """
    if not isinstance(call.params, Mapping) or not call.params:
        return
    columns = columns_set(mapper, call.statement, call.params) - {facts(mapper).version}
    names = {one.key for one in mapper.column_attrs if not columns.isdisjoint(one.columns)}
    for state, _ in matched:
        if stale := names & state.dict.keys() & state.unmodified:
            expire_with_savepoint(call.session, [state])
            call.session.expire(state.obj(), stale)
