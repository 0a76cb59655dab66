"""A refused row keeps its edits.

SQLAlchemy believes that the row was written and marks the object clean. Until then the object shows
what was loaded, because listeners look at it and nothing of it was written. Afterwards the edits
are put back as they were: pending values, history, the version that was read. The next flush tries
the row again, and conflicts again, until it is resolved, refreshed or expunged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import NO_VALUE

from optilock.mapped import State, facts
from optilock.mapping.moves import touch_state
from optilock.mapping.originals import original_of
from optilock.rows.sides import Missed
from optilock.rows.stored import Values
from optilock.rows.touch import is_touched, touch_with_next_flush
from optilock.undocumented.objects import expire_attribute, mark_changed, take_as_stored
from optilock.undocumented.sessions import mark_deleted, marked_deleted, unmark_deleted


@dataclass(frozen=True)
class Kept:
    """What a refused row gets back after the flush."""

    state: State
    #: Held until the object is dirty again: nobody else may reference it.
    obj: Any
    token: str
    version: Any
    #: Attribute -> pending value, and attribute -> value before the edit.
    pending: Values
    before: Values
    #: The next version was to be written, whatever else changes.
    touched: bool = False
    #: The session was told to touch it, or rows that belong to it were written.
    asked: bool = False
    #: An orphan: it was to be deleted without ``session.delete()``, because its parent let it go.
    orphan: bool = False
    #: It was to be deleted by ``session.delete()``.
    deleted: bool = False
    #: Composite values, which are made of the pending ones.
    composites: Values = field(default_factory=dict)

    @classmethod
    def of(cls, missed: Missed, *, for_others: bool = False) -> Kept:
        """Taken before SQLAlchemy marks the object clean; ``for_others``: they were written."""
        state = missed.state
        token = facts(state.mapper).token
        names = [name for name in facts(state.mapper).columns if name != token]
        before = {n: state.committed_state[n] for n in names if n in state.committed_state}
        pending = {name: state.dict[name] for name in before if name in state.dict}
        for column, expression in missed.expressions.items():
            name = facts(state.mapper).names[column]
            pending[name] = expression
            before[name] = missed.attempt.original.get(name)
        version = missed.attempt.original.get(token) if token else None
        if token and facts(state.mapper).by_application:
            before[token], pending[token] = version, missed.attempt.current[token]
        asked = for_others or is_touched(state)
        touched = missed.attempt.action == "update" and (
            missed.touched or asked or not missed.attempt.changes
        )
        return cls(
            state,
            missed.obj,
            token,
            version,
            pending,
            before,
            touched,
            asked,
            _is_orphan(missed),
            _is_deleted(missed),
        )

    def hide(self) -> None:
        """Show what was loaded, unchanged and not deleted, until :meth:`put_back`."""
        state = self.state
        if state.key is None:  # a new object that was to take over a row
            return
        for name in self.pending:
            before = self.before[name]
            if before is NO_VALUE:
                before = original_of(state, name, NO_VALUE)  # changed in place
            if before is NO_VALUE:
                expire_attribute(state, name)
            else:
                state.dict[name] = before
        if self.token:
            state.dict[self.token] = self.version
        for composite in state.mapper.composites:
            if composite.key in state.dict:
                self.composites[composite.key] = state.dict.pop(composite.key)
        take_as_stored(state)
        if self.deleted and state.session is not None:
            unmark_deleted(state.session, state)

    def put_back(self) -> None:
        """Make the object as dirty as it was, without events or validators."""
        state = self.state
        if self.token:
            state.dict[self.token] = self.version
            state.committed_state.pop(self.token, None)
        for name, value in self.pending.items():
            state.dict[name] = value
            state.expired_attributes.discard(name)
            mark_changed(state, name, self.before[name])
        state.dict.update(self.composites)
        if self.touched and self.token:
            (touch_with_next_flush if self.asked else touch_state)(state)
        if self.orphan and state.session is not None:
            state.session.delete(self.obj)  # its parent has let it go, and does not tell again
        if self.deleted and state.key is not None and state.session is not None:
            mark_deleted(state.session, state, self.obj)


def _is_orphan(missed: Missed) -> bool:
    return missed.attempt.action == "delete" and not _is_deleted(missed)


def _is_deleted(missed: Missed) -> bool:
    session = missed.state.session
    return session is not None and missed.state in marked_deleted(session)
