"""``update(Model).where(...)`` in a watched session: which objects it moves, and to what version.

The rules are in :mod:`optilock.watched.statements.execute`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy.orm import Mapper, Session

from optilock.mapped import Identity, State, facts
from optilock.watched.rows.seen import version_seen
from optilock.watched.session.watched import watched
from optilock.watched.statements.by_table import in_flush, refuse_apart_in_flush
from optilock.watched.statements.call import Call, finds_twice, flush_before, rows_found
from optilock.watched.statements.rollback_effects import (
    keep_promises,
    note,
    objects_of,
    promised_rows,
    take_over,
    versions_kept,
)
from optilock.watched.statements.version import (
    class_stands_still,
    columns_set,
    move_apart,
    moving,
    refuse_by_key,
    say_it,
    unmoved,
)

#: Objects whose rows a statement finds in the version that they hold, with it.
Matched = list[tuple[State, Any]]


def by_criteria(call: Call, mapper: Mapper[Any]) -> Any:
    """The UPDATE of a class with a version."""
    version = facts(mapper).version
    columns = columns_set(mapper, call.statement, call.params)
    explicit, apart = version in columns, False
    if not explicit:
        if _stays(call.session, mapper, columns):
            return _plainly(call.with_statement(unmoved(mapper, call.statement)), mapper)
        if not _is_moved(mapper, columns):
            return _plainly(call, mapper)
        if version.table is mapper.local_table:
            call = call.with_statement(moving(mapper, call.statement))
        else:
            apart = not _writes(version.table, columns)
    if watched(call.session).flush is None:
        return _followed(call, mapper, apart=apart, explicit=explicit)
    if apart:
        refuse_apart_in_flush(mapper)
    return in_flush(call, mapper)


def _plainly(call: Call, mapper: Mapper[Any]) -> Any:
    """The statement moves no version: no object has to follow it."""
    return call.send() if watched(call.session).flush is None else in_flush(call, mapper)


def _followed(call: Call, mapper: Mapper[Any], *, apart: bool, explicit: bool) -> Any:
    """The statement, with the session's objects of its rows brought up to date."""
    call.flush_before()
    held = _objects_with_version(call.session, mapper) if call.synchronizes else {}
    matched = _matched(call, mapper, held)
    if apart:
        move_apart(call.connection(mapper), mapper, mapper.local_table, call.statement, call.params)
    with versions_kept(mapper, held.values()):
        result = call.send()
    _take_over(call, mapper, matched, certain=not explicit)
    return result


def _is_moved(mapper: Mapper[Any], columns: set[Any]) -> bool:
    """Does an UPDATE of these columns move the version, if it does not name it?"""
    if not columns.isdisjoint(facts(mapper).made_of):
        raise say_it(mapper, "it is made from values, which only their object knows")
    return not (facts(mapper).by_application or facts(mapper).by_values)


def with_children(call: Call, mapper: Mapper[Any], children: list[Mapper[Any]]) -> Any:
    """The class has no version, but joined children of it have one, which stands for both."""
    if isinstance(call.params, list):
        refuse_by_key(mapper, children)
    columns = columns_set(mapper, call.statement, call.params)
    flush_before(call.session, {})
    taken = []
    for child in children:
        if _stays(call.session, child, columns) or not _is_moved(child, columns):
            continue
        if watched(call.session).flush is not None:
            refuse_apart_in_flush(child)
        matched = _matched(call, child, _objects_with_version(call.session, child))
        connection = call.connection(mapper)
        move_apart(connection, child, mapper.local_table, call.statement, call.params)
        taken.append((child, matched))
    result = call.send()
    for child, matched in taken:
        _take_over(call, child, matched, certain=True)
    return result


def delete_promised(call: Call, mapper: Mapper[Any]) -> None:
    """Rows that we delete in the version that was promised are no conflict before COMMIT."""
    if not facts(mapper).token:
        return
    call.flush_before()
    promised = promised_rows(call.session, mapper)
    if promised:
        call.connection(mapper)  # the transaction begins
        note(call.session, mapper)
        keep_promises(call.session, promised, _found(call, mapper, promised))


def _stays(session: Session, mapper: Mapper[Any], columns: set[Any]) -> bool:
    """Do only ignored columns change, or is a ``no_bump`` block open?"""
    return (bool(columns) and columns <= facts(mapper).ignored) or class_stands_still(
        session, mapper
    )


def _writes(table: Any, columns: set[Any]) -> bool:
    """Does the statement set columns of ``table``, too (MariaDB)? Its ``onupdate`` acts then."""
    return any(getattr(column, "table", None) is table for column in columns)


def _objects_with_version(session: Session, mapper: Mapper[Any]) -> dict[Identity, State]:
    """Objects of the class in the session whose version is known, by their keys."""
    key = facts(mapper).token
    return {
        identity: state
        for identity, state in objects_of(session, mapper).items()
        if state.mapper.isa(mapper) and version_seen(state, key) is not None
    }


def _matched(call: Call, mapper: Mapper[Any], held: dict[Identity, State]) -> Matched:
    """Those of the objects ``held`` whose rows the statement will change, with their versions.

    Their rows are locked, and so are promised ones: what is in the promised version is ours now.
    """
    promised = promised_rows(call.session, mapper)
    if not held and not promised:
        return []
    found = _found(call, mapper, {*held, *promised})
    keep_promises(call.session, promised, found)
    key = facts(mapper).token
    return [
        (state, found[identity])
        for identity, state in held.items()
        if identity in found and version_seen(state, key) == found[identity]
    ]


def _found(call: Call, mapper: Mapper[Any], wanted: Iterable[Identity]) -> dict[Identity, Any]:
    """Key -> version of those of the rows that the statement finds; locked."""
    key = facts(mapper).token
    connection, table = call.connection(mapper), facts(mapper).table
    keys = [getattr(mapper.class_, name) for name in facts(mapper).keys]
    version = [getattr(mapper.class_, key)]
    found = rows_found(connection, call.statement, call.params, table, keys, version, wanted)
    return {identity: version for identity, (version,) in found.items()}


def _take_over(call: Call, mapper: Mapper[Any], matched: Matched, *, certain: bool) -> None:
    if matched:
        certain = certain and finds_twice(call.session, call.statement)
        take_over(call.session, call.connection(mapper), mapper, matched, certain=certain)
