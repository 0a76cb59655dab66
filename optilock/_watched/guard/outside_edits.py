"""Objects that were edited before an attempt of a retry, and added to a session in it.

::

    page.title = "New"                       # detached: from a form, a cache, another layer

    @unit_of_work(SessionLocal)
    def save(session):
        session.add(page)
        session.get_one(Visits, page.id).n += 1

The rollback of a failed attempt expires the object, and its edit with it. The next attempt would
add an unchanged object, store nothing of it, and succeed. So the object is noted as it was when it
was added, and is put back before the next attempt. Where that is not possible, no attempt follows.

New objects keep their values in a rollback, and ``merge(copy)`` leaves the copy alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state, set_committed_value
from sqlalchemy.orm.collections import collection_adapter

from optilock._mapped import State, identity_of
from optilock._undocumented.mappers import mark_changed
from optilock._watched.guard.running_attempts import RunningAttempt, attempt_here
from optilock._watched.rows.entries import detached_copy
from optilock.serialize import is_expression


class Edited(NamedTuple):
    """An object as it was when it was added."""

    obj: Any
    #: Its columns that were loaded or set.
    columns: dict[str, Any]
    #: The members of its edited relationships; a list for a collection.
    related: dict[str, Any]
    #: The edited attributes, with the values before the edit.
    before: dict[str, Any]

    def put_back(self) -> None:
        """Make the object as dirty as it was, without events or validators."""
        state: State = instance_state(self.obj)
        held = state.dict
        for name, value in self.columns.items():
            held[name] = _copy(value, name)
        for name, value in self.related.items():
            set_committed_value(self.obj, name, list(value) if isinstance(value, list) else value)
        state.expired_attributes.difference_update(self.columns, self.related)
        for composite in state.mapper.composites:
            held.pop(composite.key, None)
        state.committed_state.clear()
        for name, value in self.before.items():
            mark_changed(state, name, value)
        state.manager.dispatch.refresh(state, None, [*self.columns])  # mutable types


def note_edited(obj: Any) -> None:
    """Note an object that was edited before it was added to a session of the attempt here."""
    attempt, state = attempt_here.get(), instance_state(obj)
    if attempt is None or not state.modified or state in attempt.edited:
        return
    mapper, held = state.mapper, state.dict
    columns = {name: _copy(held[name], name) for name in mapper.column_attrs.keys() & held.keys()}
    before = {name: value for name, value in state.committed_state.items() if name in held}
    related = {
        name: _members(held[name], mapper.relationships[name].uselist)
        for name in before.keys() & mapper.relationships.keys()
    }
    attempt.edited[state] = Edited(obj, columns, related, before)


def _copy(value: Any, name: str) -> Any:
    return value if is_expression(value) else detached_copy(value, name)


def _members(value: Any, several: bool | None) -> Any:
    return list(collection_adapter(value)) if several and value is not None else value


def put_back(attempt: RunningAttempt) -> str | None:
    """Put edits back before the next attempt; return a note if one of them cannot be."""
    for state, edited in attempt.edited.items():
        problem = _still_in(state.session) if state.session is not None else None
        try:
            if problem is None:
                edited.put_back()
        except Exception as error:  # of a type, or a collection, of the application
            problem = f"it could not be put back ({type(error).__name__})"
        if problem is not None:
            name = f"{state.mapper.class_.__name__} {identity_of(state)!r}"
            return (
                f"optilock: not run again, because {name} was edited before it was added to a"
                f" session in this attempt, and {problem}: another attempt would not store the"
                " edit. Edit the object inside the function, or use session.merge(obj)"
            )
    return None


def _still_in(session: Session) -> str:
    return f"it is still in that {type(session).__name__}, whose rollback has dropped the edit"
