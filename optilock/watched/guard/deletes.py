"""Deletes that must be judged before anything is written on their account.

SQLAlchemy writes a deleted row's dependents (joined tables, cascaded children, link rows) before
the row's own version is checked. Such rows are locked and looked at before the flush begins. Here
raising is free: nothing was sent, the transaction is alive, every edit is where it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state

from optilock import events
from optilock.errors import ConcurrencyError, PreconditionFailed
from optilock.mapped import State, facts
from optilock.mapping.compared import compared_names
from optilock.resolvers.resolution import settled_by_policy
from optilock.undocumented.flushes import marked_deleted
from optilock.watched.guard.decide import decide
from optilock.watched.guard.dependents import Doomed, has_dependents
from optilock.watched.guard.listeners import listen_in
from optilock.watched.guard.records import Flush
from optilock.watched.rows.entries import Missed, equal_to_stored, stale_relationships
from optilock.watched.rows.locked import note_locked
from optilock.watched.rows.stored import Values
from optilock.watched.writes.send import look


def check_before(flush: Flush, objects: Any) -> None:
    """Judge the deletes that have dependents."""
    deleted = [instance_state(obj) for obj in flush.session.deleted if _asked(obj, objects)]
    replaced = _taken_over(flush.session, deleted)
    missed = look(
        flush.session,
        (
            state
            for state in deleted
            if has_dependents(state.mapper)
            or (state.key in replaced and facts(state.mapper).compares)
        ),
        deleting=True,
    )
    if missed:
        _settle(flush, missed, objects)


def _taken_over(session: Session, deleted: Iterable[State]) -> set[Any]:
    """The keys of rows that new objects take over, and of which only values are known to compare.

    SQLAlchemy then sends an UPDATE for the new object, and that has read nothing.
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
    error = decide(missed, flush.known) or _without_parents(flush, missed)
    if type(error) in (ConcurrencyError, PreconditionFailed):
        assert isinstance(error, ConcurrencyError)
        error = _with_all(flush, error, missed, objects)
    entries = error.entries if isinstance(error, ConcurrencyError) else [s.entry for s in missed]
    events.emit(lambda: events.Conflict(tuple(entries)))
    if error is not None:
        raise error
    gone = {row.state for row in missed if row.stored is None}
    flush.skipped |= gone  # nothing is left to delete, and to tell
    listen_in({state.mapper for state in gone})
    for row in missed:
        if row.state not in gone:
            _apply(flush, row)
    events.emit(lambda: events.Resolved(tuple(row.entry for row in missed)))


def _with_all(
    flush: Flush, error: ConcurrencyError, missed: list[Missed], objects: Any
) -> ConcurrencyError:
    """One error for the whole flush: the updates that were to follow are looked at as well."""
    seen = {id(row.state) for row in missed}
    others = [
        instance_state(obj)
        for obj in (*flush.session.dirty, *flush.session.deleted)
        if _asked(obj, objects) and id(instance_state(obj)) not in seen
    ]
    more = [
        row
        for row in look(flush.session, others, deleting=False)
        if row.problem is None and settled_by_policy(row.entry, flush.known.on_delete) is None
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
    """What the DELETE will compare: the version, and the values of ``CompareValues``."""
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
        if instance_state(obj) in marked_deleted(session):
            session.add(obj)


def _with_children(row: Missed) -> list[Any]:
    cascaded = row.state.mapper.cascade_iterator("delete", row.state)
    return [row.obj, *(obj for obj, *_ in cascaded)]


def _without_parents(flush: Flush, missed: list[Missed]) -> ConcurrencyError | None:
    """The conflict of rows that are to be kept, and whose parents this flush deletes."""
    kept = [row for row in missed if _is_kept(row)]
    if not kept:
        return None
    spared = {id(obj) for row in kept for obj in _with_children(row)}
    deleted = flush.session.deleted
    doomed = Doomed(instance_state(obj) for obj in deleted if id(obj) not in spared)
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
