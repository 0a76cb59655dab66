"""The rows of a flush as events: what each object's row got, once all of them are settled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import NO_VALUE, UOWTransaction

from optilock._mapped import Identity, Place, State, facts
from optilock._watched.guard.records import Flush
from optilock._watched.rows.entries import AFTER_DELETE, AFTER_INSERT, AFTER_UPDATE, Missed
from optilock._watched.session.commit_events import author_of, note_row
from optilock._watched.session.record import record_of
from optilock.conditions.write import expected_versions
from optilock.serialize import is_expression

#: What a settled row got, by the event of its final write.
_SETTLED = {AFTER_INSERT: "insert", AFTER_UPDATE: "update", AFTER_DELETE: "delete"}


def note_expressions(uow: UOWTransaction) -> None:
    """Note the attributes that the flush sets to SQL expressions: SQLAlchemy expires them."""
    running: Flush | None = record_of(uow.session).flush
    if running is not None:
        running.set_by_sql = {
            state: frozenset(
                name for name in state.committed_state if is_expression(state.dict.get(name))
            )
            for state in uow.states
        }


def note_flush(running: Flush) -> None:
    """Note each row that the flush has written, for the event after COMMIT."""
    assert running.uow is not None
    versions = expected_versions(running.record.sent[running.began :])
    for state, (is_delete, is_only_listed) in running.uow.states.items():
        missed = running.missed_states.get(state)
        if missed is not None:
            action = _SETTLED.get(missed.written or "")
            if action is not None:
                _note(running, state, action, missed, versions)
        elif not is_only_listed and state not in running.skipped:
            action = "delete" if is_delete else "insert" if state.key is None else "update"
            _note(running, state, action, None, versions)


def _note(
    running: Flush, state: State, action: str, missed: Missed | None, versions: Mapping[Place, Any]
) -> None:
    known, mapper = facts(state.mapper), state.mapper
    identity = _identity(state)
    place = known.root, identity
    if action == "insert" and missed is None and place in versions:
        action = "update"  # SQLAlchemy has written a deleted row of this key again
    columns = _columns(running, state, action)
    if action == "update" and not columns and missed is None and place not in versions:
        return  # nothing was sent
    stored = None if missed is None else missed.entry.database
    before = versions.get(place) if stored is None else stored.get(known.token)
    if action == "insert" or not known.token:
        before = None
    version = state.dict.get(known.token) if known.token and action != "delete" else None
    author = None if action == "delete" else author_of(mapper, state.dict)
    note_row(
        running.session,
        mapper,
        action,
        identity,
        before=before,
        version=version,
        columns=columns,
        author=author,
    )


def _identity(state: State) -> Identity:
    if state.key is not None:
        return tuple(state.key[1])
    return tuple(state.mapper.primary_key_from_instance(state.obj()))


def _columns(running: Flush, state: State, action: str) -> tuple[str, ...]:
    """Return the attributes that were written."""
    known = facts(state.mapper)
    if action == "delete":
        return ()
    if action == "insert":
        return tuple(name for name in known.columns if name in state.dict)
    by_sql = running.set_by_sql.get(state, ())
    return tuple(
        name for name in known.columns if name in by_sql or _is_changed(state, name, known.same)
    )


def _is_changed(state: State, name: str, same: Any) -> bool:
    if name not in state.committed_state or name not in state.dict:
        return False
    before = state.committed_state[name]
    return before is NO_VALUE or not same(name, state.dict[name], before)
