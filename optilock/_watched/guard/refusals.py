"""Checks before a flush sends anything: rows that are refused, and deletes that are judged.

Raising is free here: nothing was sent, the transaction is alive, and every edit is where it was.

:func:`refuse_unread`: an object may stand for a row that was never read:
``make_transient_to_detached()``, a pickle of an expired object, or an object that was read after an
UPDATE statement which has been rolled back. Written without a version, it would overwrite any
stored row. SQLAlchemy's own behaviour depends on the mapping (it writes columns of a joined child
without a check).

:func:`refuse_two_classes`: objects of two classes over one table (:mod:`optilock._mapping.tables`).
:func:`refuse_guarded_writes`: rows that are guarded, over a connection where nothing is
(:mod:`optilock._watched.session.connections`). :func:`refuse_forgotten_rows`: rows without a
version, in a strict session (:mod:`optilock._watched.statements.refusals`).

:func:`judge_deletes`: SQLAlchemy writes a deleted row's dependents (joined tables, cascaded
children, link rows) before the row's own version is checked. Such rows are locked, and their
versions compared, before the flush begins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.orm import Mapper, Session
from sqlalchemy.orm.attributes import instance_state

from optilock import events
from optilock._mapped import State, facts, identity_of
from optilock._mapping.original_values import compared_names, edit_that_counts
from optilock._mapping.tables import is_shared, two_classes
from optilock._undocumented.flushes import states_marked_deleted
from optilock._watched.guard.connection import listen_in
from optilock._watched.guard.decisions import decide, resolvers_of
from optilock._watched.guard.dependents import DeletedRows, has_dependents
from optilock._watched.guard.own_statements import told_as_own
from optilock._watched.guard.records import Flush
from optilock._watched.rows.entries import Missed, equal_to_stored, stale_relationships
from optilock._watched.rows.locked import note_locked
from optilock._watched.rows.seen import version_seen
from optilock._watched.rows.stored import Values
from optilock._watched.rows.unknown_versions import unread_states, unseen_row_error
from optilock._watched.session.connections import AUTOCOMMIT_HINT, engine_to_write, is_autocommit
from optilock._watched.session.record import SessionRecord
from optilock._watched.statements.refusals import strict_mode_error
from optilock._watched.writes.send import find_moved
from optilock.errors import ConcurrencyError, ConfigurationError, PreconditionFailed
from optilock.resolvers.resolution import decide_by_policy


def refuse_guarded_writes(session: Session, connections: Iterable[Connection]) -> None:
    """Refuse a flush that would write guarded rows over one of these connections.

    Raises:
        ConfigurationError: a connection is in AUTOCOMMIT mode; nothing was sent.
    """
    engines = {connection.engine for connection in connections if is_autocommit(connection)}
    if not engines:
        return
    for obj in (*session.new, *session.dirty, *session.deleted):
        mapper = instance_state(obj).mapper
        if facts(mapper).guarded and engine_to_write(session, mapper) in engines:
            raise ConfigurationError(
                f"{mapper.class_.__name__} would be written over a connection in AUTOCOMMIT mode:"
                " every statement is stored at once, so a refused flush could not be taken back,"
                f" and no lock would hold. {AUTOCOMMIT_HINT} Nothing was sent."
            )


def refuse_two_classes(session: Session, record: SessionRecord) -> None:
    """Refuse to write one table through two classes.

    Raises:
        ConfigurationError: this flush would, or a row was written through the other class before
            and this object is as old as it was then. Nothing was sent.
    """
    first: dict[Table, Mapper[Any]] = {}
    for obj in (*session.new, *session.dirty, *session.deleted):
        state = instance_state(obj)
        mapper = state.mapper
        if is_shared(mapper):
            other = _written_as(state, record) or first.setdefault(facts(mapper).table, mapper)
            if other.base_mapper is not mapper.base_mapper:
                raise two_classes(other, mapper)


def _written_as(state: State, record: SessionRecord) -> Mapper[Any] | None:
    """Return the class through which the transaction has moved the object's version."""
    token = facts(state.mapper).token
    if state.key is None or not token:
        return None
    place = facts(state.mapper).table, identity_of(state), version_seen(state, token)
    for shape, params in record.sent:
        if place == (shape.table, shape.key_of(params), params.get(shape.token.parameter)):
            return shape.mapper
    return None


def refuse_unread(session: Session, objects: Any) -> None:
    """Raise ``ConfigurationError`` for an edit or a delete of a row that was never read."""
    for state in unread_states(session):
        obj = state.obj()
        if objects and not any(obj is one for one in objects):
            continue
        if obj in session.deleted or (state.modified and edit_that_counts(state)):
            assert state.key is not None
            raise unseen_row_error(state.mapper, identity_of(state))


def refuse_forgotten_rows(session: Session, objects: Any) -> None:
    """Refuse to update or delete, in a strict session, a row of a class without a version.

    Raises:
        ConfigurationError: there is one, and its class does not opt out. Nothing was sent.
    """
    for obj in (*session.deleted, *session.dirty):
        state = instance_state(obj)
        if not facts(state.mapper).forgotten or (objects and not any(obj is o for o in objects)):
            continue
        if obj in session.deleted or edit_that_counts(state):
            raise strict_mode_error(state.mapper, identity_of(state))


# -- deletes ---------------------------------------------------------------------------------------


def judge_deletes(flush: Flush, objects: Any) -> None:
    """Judge the deletes that have dependents."""
    deleted = [instance_state(obj) for obj in flush.session.deleted if _asked(obj, objects)]
    replaced = _taken_over(flush.session, deleted)
    states = [
        state
        for state in deleted
        if has_dependents(state.mapper) or (state.key in replaced and facts(state.mapper).compares)
    ]
    flush.note_looked(states)
    missed = find_moved(flush.session, states, deleting=True)
    if missed:
        _settle(flush, missed, objects)


def _taken_over(session: Session, deleted: Iterable[State]) -> set[Any]:
    """Return the keys of deleted rows, compared by values, that new objects take over.

    SQLAlchemy then sends an UPDATE for the new object, which has read nothing.
    """
    bases = {facts(state.mapper).root for state in deleted if facts(state.mapper).compares}
    if not bases:
        return set()
    new = ((instance_state(obj).mapper, obj) for obj in session.new)
    return {
        mapper.identity_key_from_instance(obj) for mapper, obj in new if facts(mapper).root in bases
    }


def _asked(obj: Any, objects: Any) -> bool:
    return not objects or any(obj is one for one in objects)


def _settle(flush: Flush, missed: list[Missed], objects: Any) -> None:
    for row in missed:
        if row.problem is not None:
            raise row.problem
    error = decide(missed, flush.record) or _without_parents(flush, missed)
    if error is not None:
        error = told_as_own(flush.session, missed, error)
    if type(error) in (ConcurrencyError, PreconditionFailed):
        assert isinstance(error, ConcurrencyError)
        error = _with_all(flush, error, missed, objects)
    entries = [row.entry for row in missed]
    if isinstance(error, ConcurrencyError):
        entries = [*error.entries]
    reason: Any = getattr(error, "reason", "race")
    events.emit(lambda: events.Conflict(tuple(entries), reason=reason))
    if error is not None:
        if isinstance(error, ConcurrencyError):
            error.reported = True
        raise error
    _delete_as_decided(flush, missed)


def _delete_as_decided(flush: Flush, missed: list[Missed]) -> None:
    gone = {row.state for row in missed if row.stored is None}
    flush.skip(gone)  # nothing is left to delete, and to tell
    listen_in({state.mapper for state in gone})
    for row in missed:
        if row.state not in gone:
            _apply(flush, row)
    events.emit(
        lambda: events.Resolved(
            tuple(row.entry for row in missed), resolvers_of(missed, flush.record)
        )
    )


def _with_all(
    flush: Flush, error: ConcurrencyError, missed: list[Missed], objects: Any
) -> ConcurrencyError:
    """Return one error for the whole flush: the updates that were to follow are checked as well."""
    seen = {id(row.state) for row in missed}
    others = [
        instance_state(obj)
        for obj in (*flush.session.dirty, *flush.session.deleted)
        if _asked(obj, objects) and id(instance_state(obj)) not in seen
    ]
    more = [
        row
        for row in find_moved(flush.session, others, deleting=False)
        if row.problem is None and decide_by_policy(row.entry, flush.record.on_delete) is None
    ]
    if not more:
        return error
    complete = type(error)([*error.entries, *(row.entry for row in more)])
    complete.__cause__ = error.__cause__
    for note in getattr(error, "__notes__", ()):
        complete.add_note(note)
    return complete


def _apply(flush: Flush, row: Missed) -> None:
    """Carry out a decision on the object, so that the flush that follows does the rest."""
    resolution = row.resolution
    assert resolution is not None and row.stored is not None
    if resolution.decision == "overwrite":
        equal_to_stored(row.state, _compared_part(row.state, row.stored))
        return
    _undelete(flush, row)
    _take_stored(flush, row)
    for name, value in resolution.values.items():
        setattr(row.obj, name, value)


def _compared_part(state: State, stored: Values) -> Values:
    """Return the values that the DELETE compares: the version, and those of ``CompareValues``."""
    token = facts(state.mapper).token
    names = compared_names(state.mapper, changed=(), deleting=True)
    return {n: stored[n] for n in (*names, *([token] if token else ()))}


def _take_stored(flush: Flush, row: Missed) -> None:
    assert row.stored is not None
    relationships = stale_relationships(row.state, row.stored)
    equal_to_stored(row.state, row.stored)
    note_locked(flush.session, row.state)
    if relationships:
        flush.session.expire(row.obj, relationships)


def _undelete(flush: Flush, row: Missed) -> None:
    """Take back ``session.delete()``, together with what it cascaded to."""
    session = flush.session
    for obj in _with_children(row):
        if instance_state(obj) in states_marked_deleted(session):
            session.add(obj)


def _with_children(row: Missed) -> list[Any]:
    cascaded = row.state.mapper.cascade_iterator("delete", row.state)
    return [row.obj, *(obj for obj, *_ in cascaded)]


def _without_parents(flush: Flush, missed: list[Missed]) -> ConcurrencyError | None:
    """Return the conflict of rows that are to be kept, and whose parents this flush deletes."""
    kept = [row for row in missed if _is_kept(row)]
    if not kept:
        return None
    spared = {id(obj) for row in kept for obj in _with_children(row)}
    deleted = flush.session.deleted
    doomed = DeletedRows(instance_state(obj) for obj in deleted if id(obj) not in spared)
    lost = [row for row in kept if any(True for _ in doomed.parents_of(row.state, _as_kept(row)))]
    if not lost:
        return None
    conflict = ConcurrencyError(row.entry for row in missed)
    for row in lost:
        conflict.add_note(
            f"optilock: {row.entry.describe()}: its parent is deleted in the same flush"
        )
    return conflict


def _is_kept(row: Missed) -> bool:
    assert row.resolution is not None
    return row.stored is not None and row.resolution.decision != "overwrite"


def _as_kept(row: Missed) -> Values:
    assert row.stored is not None and row.resolution is not None
    return {**row.stored, **row.resolution.values}
